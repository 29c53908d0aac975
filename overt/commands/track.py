"""`overt track VIDEO [--checkpoint FILE]`: track points through a video, and draw them.

VIDEO is any video file, a folder of frames, a GIF or WebP, or a uint8 array (.npy, .npz). With
--online frames are tracked as they arrive, by LBM or CoTracker3 online, and VIDEO may be the number
of a camera; --frames or Ctrl-C ends it. --page opens VIDEO in a browser, where a click is a point.
A checkpoint folder and an exported safetensors file name their recipe; for any other file, give
--recipe. Without --checkpoint, overt uses the small tracker that it ships with. Writes a video with
colored trails, and the tracks as tracks.npz and tracks.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overt.checkpoint.trained import load_model, shipped_weights
from overt.commands.arguments import (
    configure_model,
    model_options,
    whole_number,
)
from overt.config import Config, build_recipe
from overt.errors import ConfigError, DataError, need_folder
from overt.progress import report as report_progress
from overt.progress import shown
from overt.tasks import OnlinePointTracker, PointTracker, need_task
from overt.tracker import (
    FPS_RANGE,
    HIGHEST_FPS,
    LOWEST_FPS,
    MOST_GRID,
    SHIPPED,
    USUAL_FPS,
    USUAL_GRID,
    choose_queries,
    drawn_fps,
    point_counter,
    refuse_outside,
)

if TYPE_CHECKING:
    from overt.tasks import PointTracks

SMALL = 384  # pixels: shorter videos than this are drawn enlarged

Queries = NDArray[np.float32]  # (N, 3): frame, x, y in pixels
Mask = NDArray[np.bool_]  # (H, W)


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    with shown():
        return _track(options)


def _track(options: argparse.Namespace) -> int:
    # What the user gave is read before torch is: a mistake in it shows at once.
    from overt.data.tracking.track_files import read_mask, read_queries, write_tracks
    from overt.data.tracking.video import has_pyav, need_pyav, read_video, write_video
    from overt.data.tracking.video_stream import stream_rate

    _refuse_contradictions(options)
    folder = need_folder("--output", options.output or Path(f"{options.video.stem}_tracks"))
    format = options.format or ("mp4" if has_pyav() else "webp")
    if format == "mp4":
        need_pyav("--format mp4: to write it", ", or give --format webp")
    config = _configure(options)
    if options.online:
        fps = stream_rate(_source(options))
    else:
        video, fps = read_video(options.video)
    given_queries = None if options.queries is None else read_queries(options.queries)
    mask = None if options.mask is None else read_mask(options.mask)
    if not options.online:
        chosen = choose_queries(
            video, given_queries, options.grid, mask, options.dense, options.query_frame
        )
        height, width = video.shape[2:]
        points = "the points you click" if options.page else f"{len(chosen)} points"
        print(
            f"{options.video}: {len(video)} frames of {width} x {height} pixels; following "
            f"{points} with {config.recipe.name}"
        )
    else:
        until = f"after {options.frames} frames" if options.frames else "with Ctrl-C"
        print(f"{options.video}: following points as frames arrive; it ends with them, or {until}")

    import torch

    from overt.distributed import init_distributed
    from overt.viz.tracks import draw_video

    world = init_distributed(config.training.device)
    recipe: Any = build_recipe(config)
    need_task(recipe, OnlinePointTracker if options.online else PointTracker, config.recipe.name)
    model, report = load_model(recipe, options.checkpoint, options.part, options.rename)
    if options.checkpoint != shipped_weights(SHIPPED):
        print(report)
    model.to(world.device)
    rate = drawn_fps(options.fps, fps or USUAL_FPS)

    def write(queries: Queries, tracks: PointTracks) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # First what took long to find: the video may fail to be drawn or encoded.
        write_tracks(folder, queries, {key: part.numpy() for key, part in tracks._asdict().items()})
        scale = max(1, SMALL // max(video.shape[2:]))
        drawn = draw_video(torch.from_numpy(video), tracks.tracks_xy, tracks.visible, scale=scale)
        write_video(folder / f"video.{format}", drawn.numpy(), rate)

    def track(queries: Queries) -> PointTracks:
        tracker_options = tracking_options(recipe, options, queries)
        with torch.inference_mode():
            tracks: PointTracks = recipe.track_points(
                model, torch.from_numpy(video), torch.from_numpy(queries), **tracker_options
            )
        return tracks

    if options.page:
        files = {name: folder / name for name in (f"video.{format}", "tracks.npz", "tracks.csv")}
        return show_page(options, video, rate, track, write, files)
    if options.online:
        video, queries, tracks, failure = follow(recipe, model, options, given_queries, mask)
    else:
        queries, failure = chosen, None
        report_progress("tracking", 0, 1)  # the stage has a name before the first points are done
        tracks = track(queries)

    write(queries, tracks)
    print(
        f"{len(queries)} points in {len(video)} frames, visible in "
        f"{tracks.visible.float().mean():.0%} of them\n"
        f"written to {folder}: video.{format}, tracks.npz, tracks.csv"
    )
    if failure is not None:
        raise failure
    return 0


def _source(options: argparse.Namespace) -> Path | int:
    """Return what --online reads: a path, or the number of a camera."""
    name = str(options.video)
    return int(name) if name.isdecimal() and not options.video.exists() else options.video


def _refuse_contradictions(options: argparse.Namespace) -> None:
    """Refuse options that would be ignored beside others."""
    if options.page and options.online:
        raise ConfigError("--page shows a video that is read at once; drop --online")
    if options.port is not None and not options.page:
        raise ConfigError("--port is for --page; add --page, or drop --port")
    if options.frames is not None and not options.online:
        raise ConfigError("--frames ends a stream; add --online, or drop --frames")
    if not options.online and str(options.video).isdecimal() and not options.video.exists():
        raise ConfigError(
            f"{options.video} is the number of a camera, which never ends; add --online (with "
            "--checkpoint FILE of an online model), or give a video file"
        )
    if options.online and options.query_frame:
        raise ConfigError("--query-frame is for videos that are read at once; give --queries")
    if options.online and options.as_hub:
        raise ConfigError("--as-hub tracks backward in a video that is read at once; drop it")
    _refuse_two_choices_of_points(options)


def _refuse_two_choices_of_points(options: argparse.Namespace) -> None:
    choices = {
        "--grid": options.grid is not None,
        "--mask": options.mask is not None,
        "--dense": options.dense,
        "--query-frame": options.query_frame is not None,
    }
    chosen = [option for option, is_given in choices.items() if is_given]
    if options.page and (chosen or options.queries is not None):
        named = chosen if options.queries is None else ["--queries", *chosen]
        raise ConfigError(f"--page follows the points you click; drop {', '.join(named)}")
    if options.queries is not None and chosen:
        raise ConfigError(
            f"--queries names every point; drop {', '.join(chosen)}, or drop --queries"
        )
    if options.dense and options.grid is not None:
        raise ConfigError(f"--dense follows every pixel; drop --grid {options.grid}")


def _frame_rate(text: str) -> float:
    """Parse --fps, within what every format of a video stores."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not LOWEST_FPS <= rate <= HIGHEST_FPS:
        raise argparse.ArgumentTypeError(f"{text} is not a number {FPS_RANGE}")
    return rate


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt track",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[model_options(default=f"{SHIPPED}, which ships with overt")],
    )
    parser.add_argument("video", type=Path, metavar="VIDEO", help="file, folder, or camera number")
    parser.add_argument(
        "--page", action="store_true", help="click the points in a browser on this machine"
    )
    parser.add_argument(
        "--port", type=whole_number(1), metavar="N", help="--page: default: any free port"
    )
    parser.add_argument("--online", action="store_true", help="track frames as they arrive")
    parser.add_argument(
        "--frames", type=whole_number(1), metavar="N", help="with --online: stop after N frames"
    )
    parser.add_argument(
        "--grid",
        type=whole_number(1, most=MOST_GRID),
        metavar="N",
        help=f"N x N points of the first frame; default: {USUAL_GRID}",
    )
    parser.add_argument("--dense", action="store_true", help="every pixel instead of a grid")
    parser.add_argument(
        "--mask", type=Path, metavar="PICTURE", help="points where this is not black or transparent"
    )
    parser.add_argument(
        "--query-frame",
        type=whole_number(0),
        metavar="T",
        help="place grid, mask or pixels in frame T instead of the first",
    )
    parser.add_argument(
        "--as-hub",
        action="store_true",
        help="track backward and threshold visibility like CoTracker's published predictor",
    )
    parser.add_argument(
        "--queries",
        type=Path,
        metavar="FILE",
        help="track these points: CSV or JSON of t, x, y",
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: VIDEO_tracks")
    parser.add_argument(
        "--format", choices=("mp4", "webp", "gif"), help="default: mp4; webp where PyAV is missing"
    )
    parser.add_argument(
        "--fps", type=_frame_rate, help=f"{FPS_RANGE}; default: that of the video, or 12"
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings to change"
    )
    return parser


def show_page(
    options: argparse.Namespace,
    video: NDArray[np.uint8],
    fps: float,
    track: Callable[[Queries], PointTracks],
    write: Callable[[Queries, PointTracks], None],
    files: dict[str, Path],
) -> int:
    """Serve the page on which points are clicked, until Ctrl-C."""
    from overt.viz.click_page import ClickServer, Shown

    def follow_clicks(queries: Queries) -> Shown:
        tracks = track(queries)
        write(queries, tracks)
        return Shown(tracks.tracks_xy.numpy(), tracks.visible.numpy(), files)

    try:
        server = ClickServer(video, fps, options.video.name, follow_clicks, options.port or 0)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {options.port}: {error}; choose another") from None
    with server:
        print(f"open {server.url} in a browser on this machine; Ctrl-C ends", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return 0


def tracking_options(recipe: Any, options: argparse.Namespace, queries: Queries) -> dict[str, Any]:
    """Return the options that a recipe's `track_points` accepts."""
    offered = inspect.signature(recipe.track_points).parameters
    if options.as_hub and "as_hub" not in offered:
        raise ConfigError("--as-hub is for CoTracker3's trackers; drop it")
    tracker_options = {"as_hub": True} if options.as_hub else {}
    return tracker_options | (
        {"report": point_counter(len(queries))} if "report" in offered else {}
    )


def follow(
    recipe: Any,
    model: Any,
    options: argparse.Namespace,
    given_queries: Queries | None,
    mask: Mask | None,
) -> tuple[NDArray[np.uint8], Queries, PointTracks, DataError | None]:
    """The frames seen (T, 3, H, W), the queries, and their tracks, found as the frames arrived.

    Also why the stream broke off, if it did: what was tracked until then is kept.
    """
    import time

    import torch

    from overt.data.tracking.video_stream import stream_frames
    from overt.tasks import HindsightTracker, PointTracks

    frames: list[NDArray[np.uint8]] = []
    rows: list[tuple[Any, ...]] = []  # of each frame: points, positions, visible, probabilities
    tracker, added, queries = None, np.zeros(0, np.intp), given_queries
    has_ended = True
    failure: DataError | None = None
    began = time.perf_counter()
    try:
        for frame in stream_frames(_source(options)):
            if tracker is None or queries is None:
                if queries is None:
                    queries = choose_queries(
                        frame[None], None, options.grid, mask, options.dense, 0
                    )
                refuse_outside(queries, frame.shape[1:], options.frames)
                tracker = recipe.online_tracker(model, frame.shape[1:], len(queries))
                began = time.perf_counter()
            new = np.flatnonzero(queries[:, 0] == len(frames))
            tracker.observe(torch.from_numpy(frame))
            frames.append(frame)  # seen, also if Ctrl-C ends what follows
            if len(new):
                tracker.add(torch.from_numpy(queries[new, 1:]))
                added = np.concatenate([added, new])
            state = tracker.advance()
            parts = (state.points_xy, state.visible, state.visibility, 1 - state.rho)
            rows.append((added, *(part.cpu() for part in parts)))
            if options.frames is not None and len(frames) == options.frames:
                break
    except KeyboardInterrupt:
        has_ended = False
        print()
    except DataError as error:
        if not frames:
            raise
        has_ended, failure = False, error
    if queries is None or not frames:
        raise DataError(f"{options.video}: no frame arrived")
    late = np.setdiff1d(np.arange(len(queries)), added)
    if len(late):
        first = queries[late[0], 0]
        problem = f"query {late[0]} starts in frame {first:g}, but {len(frames)} frames arrived"
        if has_ended or len(late) == len(queries):
            raise failure or DataError(problem)
        print(f"{problem}; {len(late)} of {len(queries)} queries are left out")
    kept = np.sort(added)
    assert tracker is not None, "frames were seen"
    # Its last frames are only tracked now, which belongs to the time they take.
    finished = tracker.finish() if isinstance(tracker, HindsightTracker) else None
    print(f"{len(frames) / (time.perf_counter() - began):.1f} frames per second, including reading")
    if finished is not None:
        order = torch.from_numpy(np.argsort(added))  # points were given in the order of frames
        tracks = PointTracks(*(part[:, order] for part in finished))
        return np.stack(frames), queries[kept], tracks, failure
    # Before it is given, a point rests at its query, invisible.
    if not rows:
        raise DataError(f"{options.video}: it was interrupted before the first frame was tracked")
    frames = frames[: len(rows)]
    points_xy = torch.from_numpy(queries[:, 1:]).repeat(len(frames), 1, 1)
    visible = torch.zeros(points_xy.shape[:2], dtype=torch.bool)
    sure, right = torch.zeros(points_xy.shape[:2]), torch.zeros(points_xy.shape[:2])
    for time_step, (numbers, *values) in enumerate(rows):
        for stacked, part in zip((points_xy, visible, sure, right), values, strict=True):
            stacked[time_step, torch.from_numpy(numbers)] = part
    tracks = PointTracks(*(part[:, kept] for part in (points_xy, visible, sure, right)))
    return np.stack(frames), queries[kept], tracks, failure


def _configure(options: argparse.Namespace) -> Config:
    if options.checkpoint is None:
        if options.recipe not in (None, SHIPPED) or options.online:
            given_option = "--online" if options.online else f"--recipe {options.recipe}"
            raise ConfigError(
                f"{given_option} needs --checkpoint FILE: only {SHIPPED} comes with overt"
            )
        options.recipe = SHIPPED
        options.checkpoint = shipped_weights(SHIPPED)
    return configure_model(options.checkpoint, options.recipe, options.overrides, options.package)
