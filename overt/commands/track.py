"""`overt track VIDEO [--checkpoint FILE]`: follow points through a video, and draw them.

VIDEO is any video file, a folder of frames, a GIF or WebP, or a uint8 array (.npy, .npz). With
--online frames are followed as they arrive, by LBM or by CoTracker3 online, and VIDEO may be the
number of a camera; --frames or Ctrl-C ends it. --page opens VIDEO in a browser, where a click is a
point. A checkpoint folder of overt knows its recipe; for any other file name it by --recipe. Without --checkpoint a small tracker that comes with overt is used.
Writes a video with coloured trails and the tracks themselves, as tracks.npz and tracks.csv.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overt.checkpoint.trained import load_model, shipped_weights
from overt.commands.arguments import (
    configure_model,
    finite_number,
    model_options,
    whole_number,
)
from overt.config import Config, build_recipe
from overt.errors import ConfigError, DataError, need_folder
from overt.tasks import OnlinePointTracker, PointTracker, need_task
from overt.tracker import SHIPPED, choose_queries, progress_line

if TYPE_CHECKING:
    from overt.tasks import PointTracks

SMALL = 384  # pixels: shorter videos than this are drawn enlarged
USUAL_FPS = 12.0
USUAL_GRID = 20

Queries = NDArray[np.float32]  # (N, 3): frame, x, y in pixels


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    # What the user gave is read before torch is: a mistake in it shows at once.
    from overt.data.tracking.video import has_pyav, need_pyav, read_video, write_video

    if options.frames is not None and not options.online:
        raise ConfigError("--frames ends a stream; add --online, or leave it out")
    folder = need_folder("--output", options.output or Path(f"{options.video.stem}_tracks"))
    format = options.format or ("mp4" if has_pyav() else "webp")
    if format == "mp4":
        need_pyav("--format mp4: to write it", ", or give --format webp")
    config = _configure(options)
    fps = None
    if not options.online:
        video, fps = read_video(options.video)
    asked = None if options.queries is None else read_queries(options.queries)
    if not options.online:
        mask = None if options.mask is None else read_mask(options.mask)
        grid = None if asked is not None or options.dense else options.grid or USUAL_GRID
        chosen = choose_queries(video, asked, grid, mask, options.dense, options.query_frame)
        height, width = video.shape[2:]
        print(
            f"{options.video}: {len(video)} frames of {width} x {height} pixels; following "
            f"{len(chosen)} points with {config.recipe.name}"
        )
    else:
        if options.query_frame:
            raise ConfigError("--query-frame is for videos that are read at once; give --queries")
        until = f"after {options.frames} frames" if options.frames else "with Ctrl-C"
        print(f"{options.video}: following points as frames arrive; it ends with them, or {until}")

    import torch

    from overt.distributed import init_distributed
    from overt.viz.tracks import draw_video

    world = init_distributed(config.training.device)
    recipe: Any = build_recipe(config)
    need_task(recipe, OnlinePointTracker if options.online else PointTracker, config.recipe.name)
    model, report = load_model(recipe, options.checkpoint, options.part)
    if options.checkpoint != shipped_weights(SHIPPED):
        print(report)
    model.to(world.device)
    if options.online:
        video, queries, tracks = follow(recipe, model, options, asked)
        frames = torch.from_numpy(video)
    else:
        queries = chosen
        frames = torch.from_numpy(video)
        with torch.inference_mode():
            tracks = recipe.track_points(
                model,
                frames,
                torch.from_numpy(queries),
                **tracking_options(recipe, options, queries),
            )

    scale = max(1, SMALL // max(video.shape[2:]))
    drawn = draw_video(frames, tracks.tracks_xy, tracks.visible, scale=scale)
    write_video(folder / f"video.{format}", drawn.numpy(), options.fps or fps or USUAL_FPS)
    write_tracks(folder, queries, tracks)
    print(
        f"{len(queries)} points in {len(video)} frames, visible in "
        f"{tracks.visible.float().mean():.0%} of them\n"
        f"written to {folder}: video.{format}, tracks.npz, tracks.csv"
    )
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt track",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[model_options(default=f"the small {SHIPPED}")],
    )
    parser.add_argument("video", type=Path, metavar="VIDEO", help="file, folder, or camera number")
    parser.add_argument("--online", action="store_true", help="frame by frame, as they arrive")
    parser.add_argument(
        "--frames", type=whole_number(1), metavar="N", help="--online: stop after N"
    )
    parser.add_argument(
        "--grid",
        type=whole_number(1),
        metavar="N",
        help=f"N x N points of the first frame; default: {USUAL_GRID}",
    )
    parser.add_argument("--dense", action="store_true", help="every pixel instead of a grid")
    parser.add_argument(
        "--mask", type=Path, metavar="PICTURE", help="only points where this is not black"
    )
    parser.add_argument(
        "--query-frame",
        type=whole_number(0),
        default=0,
        metavar="T",
        help="take grid, mask or pixels in frame T instead of the first",
    )
    parser.add_argument(
        "--as-hub",
        action="store_true",
        help="track back, and call points visible, as CoTracker's published predictor does",
    )
    parser.add_argument(
        "--queries", type=Path, metavar="FILE", help="follow these instead: CSV or JSON of t, x, y"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: VIDEO_tracks")
    parser.add_argument(
        "--format", choices=("mp4", "webp", "gif"), help="default: mp4; webp where PyAV is missing"
    )
    parser.add_argument(
        "--fps", type=finite_number(0, above=True), help="default: that of the video, or 12"
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the configuration")
    return parser


def tracking_options(recipe: Any, options: argparse.Namespace, queries: Queries) -> dict[str, Any]:
    """What of the options a recipe's `track_points` can take."""
    offered = inspect.signature(recipe.track_points).parameters
    if options.as_hub and "as_hub" not in offered:
        raise ConfigError("--as-hub is for CoTracker3's trackers; leave it out")
    given = {"as_hub": True} if options.as_hub else {}
    return given | ({"report": progress_line(len(queries))} if "report" in offered else {})


def read_mask(path: Path) -> NDArray[np.bool_]:
    """A picture as true where it is not black."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB")).max(-1) > 0  # type: ignore[no-any-return]
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"--mask {path}: not a readable picture ({error})") from error


def follow(
    recipe: Any, model: Any, options: argparse.Namespace, asked: Queries | None
) -> tuple[NDArray[np.uint8], Queries, PointTracks]:
    """The frames seen (T, 3, H, W), the queries, and their tracks, found as the frames arrived."""
    import time

    import torch

    from overt.data.tracking.video_stream import stream_frames
    from overt.tasks import PointTracks

    name = str(options.video)
    source = int(name) if name.isdecimal() and not options.video.exists() else options.video
    seen: list[NDArray[np.uint8]] = []
    rows: list[tuple[Any, ...]] = []  # of each frame: points, positions, visible, probabilities
    tracker, given, queries = None, np.zeros(0, np.intp), asked
    began = time.perf_counter()
    try:
        for frame in stream_frames(source):
            if tracker is None or queries is None:
                if queries is None:
                    mask = None if options.mask is None else read_mask(options.mask)
                    grid = None if options.dense else options.grid or USUAL_GRID
                    queries = choose_queries(frame[None], None, grid, mask, options.dense, 0)
                tracker = recipe.online_tracker(model, frame.shape[1:], len(queries))
                began = time.perf_counter()
            tracker.observe(torch.from_numpy(frame))
            new = np.flatnonzero(queries[:, 0] == len(seen))
            if len(new):
                tracker.add(torch.from_numpy(queries[new, 1:]))
                given = np.concatenate([given, new])
            state = tracker.advance()
            parts = (state.points_xy, state.visible, state.visibility, 1 - state.rho)
            rows.append((given, *(part.cpu() for part in parts)))
            seen.append(frame)
            if options.frames is not None and len(seen) == options.frames:
                break
    except KeyboardInterrupt:
        print()
    if queries is None or not seen:
        raise DataError(f"{options.video}: not one frame arrived")
    late = np.flatnonzero(queries[:, 0] >= len(seen))
    if len(late):
        raise DataError(
            f"query {late[0]} begins in frame {queries[late[0], 0]:g}, but {len(seen)} frames came"
        )
    print(f"{len(seen) / (time.perf_counter() - began):.1f} frames per second, reading included")
    if hasattr(tracker, "finish"):  # knows positions better in hindsight
        order = torch.from_numpy(np.argsort(given))  # points were given in the order of frames
        return np.stack(seen), queries, PointTracks(*(part[:, order] for part in tracker.finish()))
    # Before it is given, a point rests at its query, invisible.
    points_xy = torch.from_numpy(queries[:, 1:]).repeat(len(seen), 1, 1)
    visible = torch.zeros(points_xy.shape[:2], dtype=torch.bool)
    sure, right = torch.zeros(points_xy.shape[:2]), torch.zeros(points_xy.shape[:2])
    for time_step, (numbers, *values) in enumerate(rows):
        for whole, part in zip((points_xy, visible, sure, right), values, strict=True):
            whole[time_step, torch.from_numpy(numbers)] = part
    return np.stack(seen), queries, PointTracks(points_xy, visible, sure, right)


def _configure(options: argparse.Namespace) -> Config:
    if options.checkpoint is None:
        if options.recipe not in (None, SHIPPED) or options.online:
            asked = "--online" if options.online else f"--recipe {options.recipe}"
            raise ConfigError(f"{asked} needs --checkpoint FILE: only {SHIPPED} comes with overt")
        options.recipe = SHIPPED
        options.checkpoint = shipped_weights(SHIPPED)
    return configure_model(options.checkpoint, options.recipe, options.overrides, options.package)


def read_queries(path: Path) -> Queries:
    """Queries from a CSV file, with a heading t,x,y or without, or from JSON of such triples."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--queries {path}: it cannot be read ({error})") from error
    rows = _json_rows(path, text) if path.suffix.lower() == ".json" else _csv_rows(text)
    if not rows:
        raise DataError(f"--queries {path}: it has no queries; give lines of t,x,y")
    queries = np.zeros((len(rows), 3), dtype=np.float32)
    for number, row in enumerate(rows):
        try:
            values = [float(value) for value in row]
        except (TypeError, ValueError, OverflowError):
            values = []
        if len(values) != 3 or not all(map(math.isfinite, values)) or values[0] % 1:
            raise _bad_query(path, number, row)
        queries[number] = values
    return queries


def _csv_rows(text: str) -> list[list[str]]:
    rows = [row for row in csv.reader(io.StringIO(text)) if any(map(str.strip, row))]
    heading = [word.strip().lower() for word in rows[0]] if rows else []
    return rows[1:] if heading == ["t", "x", "y"] else rows


def _json_rows(path: Path, text: str) -> list[Any]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"--queries {path}: not valid JSON ({error})") from error
    if not isinstance(rows, list):
        raise DataError(f"--queries {path}: expected a list of [t, x, y]")
    rows = [
        [row.get(key) for key in ("t", "x", "y")] if isinstance(row, dict) else row for row in rows
    ]
    for number, row in enumerate(rows):
        # A text is a list of letters to Python, and true is 1.
        if not isinstance(row, list) or not {type(value) for value in row} <= {int, float}:
            raise _bad_query(path, number, row)
    return rows


def _bad_query(path: Path, number: int, row: object) -> DataError:
    return DataError(
        f"--queries {path}: query {number} is {row}; expected [t, x, y]: integer frame index, "
        "then x and y in pixels"
    )


def write_tracks(folder: Path, queries: Queries, tracks: PointTracks) -> None:
    """The tracks as arrays (T, N, ...) in tracks.npz and, a line for each point, in tracks.csv."""
    arrays = {name: part.numpy() for name, part in tracks._asdict().items()}
    np.savez_compressed(folder / "tracks.npz", queries=queries, **arrays)
    frames, points = arrays["visible"].shape
    with (folder / "tracks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["point", "t", "x", "y", "visible", "visibility", "confidence"])
        for point in range(points):
            for frame in range(frames):
                x, y = arrays["tracks_xy"][frame, point]
                sure = (arrays[name][frame, point] for name in ("visibility", "confidence"))
                visible = int(arrays["visible"][frame, point])
                numbers = [f"{x:.3f}", f"{y:.3f}", visible, *(f"{part:.4f}" for part in sure)]
                writer.writerow([point, frame, *numbers])
