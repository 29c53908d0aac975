"""Points followed through any video in three lines.

    tracker = overt.load_tracker()
    tracks = tracker("film.mp4", grid=20)
    tracks.draw("out.mp4")

T frames, N points, H x W pixels; positions (x, y) in pixels of the video, 0 at the center of the
first pixel. Imports torch when a tracker is loaded.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overt.checkpoint.recorded import recorded_recipe
from overt.checkpoint.trained import SHIPPED_PREFIX, configure, load_model, shipped_weights
from overt.config import build_recipe
from overt.errors import ConfigError, DataError
from overt.keywords import checked_keywords
from overt.progress import report as progress_of
from overt.progress import shown
from overt.tasks import PointTracker, need_task

if TYPE_CHECKING:
    from torch import nn

    from overt.files.key_maps import KeyRule

SMALL = "small"
SHIPPED = "cotracker3_small"  # the recipe of the weights that come with the package
# Weights that come with the package, by the words that stand for them.
SHIPPED_AS = {SMALL: SHIPPED, "tiny": "cotracker3_tiny"}
USUAL_FPS = 12.0
USUAL_GRID = 20
MOST_GRID = 1000  # points along a side: a typo should not ask for more than memory holds
# Frames per second: GIF stores delays of up to 655 s, and MP4 rates as fractions.
LOWEST_FPS, HIGHEST_FPS = 0.1, 1000.0
FPS_RANGE = f"from {LOWEST_FPS:g} to {HIGHEST_FPS:g}"
DRAWN_SIDE = 384  # pixels: smaller videos than this are drawn enlarged
# Keys of CoTracker's released weights, by which a file without a recipe is recognized.
OFFICIAL = {"offline": "cotracker3_offline", "online": "cotracker3_online"}

Frames = NDArray[np.uint8]  # (T, 3, H, W)
Queries = NDArray[np.float32]  # (N, 3): frame, x, y


@dataclass(frozen=True)
class VideoTracks:
    """Positions and visibility of points in each frame of a video."""

    tracks_xy: NDArray[np.float32]  # (T, N, 2)
    visible: NDArray[np.bool_]  # (T, N)
    visibility: NDArray[np.float32]  # (T, N) probabilities
    confidence: NDArray[np.float32]  # (T, N) probabilities
    queries: Queries
    video: Frames
    fps: float

    def draw(self, path: Path | str, fps: float | None = None) -> Path:
        """Write the video with every point and its trail: .mp4, .webp or .gif."""
        import torch

        from overt.data.tracking.video import write_video
        from overt.viz.tracks import draw_video

        path, rate = Path(path), drawn_fps(fps, self.fps)
        scale = max(1, DRAWN_SIDE // max(self.video.shape[2:]))
        drawn = draw_video(
            torch.from_numpy(self.video),
            torch.from_numpy(self.tracks_xy),
            torch.from_numpy(self.visible),
            scale=scale,
        )
        write_video(path, drawn.numpy(), rate)
        return path

    def save(self, path: Path | str) -> Path:
        """Write the arrays (all but the video) to one .npz file, and return its path."""
        names = ("tracks_xy", "visible", "visibility", "confidence", "queries")
        path = Path(path)
        if path.suffix != ".npz":
            path = path.with_name(f"{path.name}.npz")  # as NumPy does
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **{name: getattr(self, name) for name in names})
        return path


class Tracker:
    """A trained point tracker; call it with a video."""

    def __init__(self, recipe: Any, model: nn.Module, name: str) -> None:
        self.recipe, self.model, self.name = recipe, model, name

    @checked_keywords()
    def __call__(
        self,
        video: Path | str | int | Frames,
        queries: Any = None,
        *,
        grid: int | None = None,
        mask: Any = None,
        dense: bool = False,
        query_frame: int | None = None,
        frames: int | None = None,
        as_hub: bool = False,
        progress: bool = True,
    ) -> VideoTracks:
        """Follow points through a video.

        `video` is a path, an array (T, 3, H, W) or (T, H, W, 3) of bytes, or the number of a
        camera; no more than `frames` of it are read, which a camera needs. The points are `queries`
        (N, 3) of frame, x and y; or `grid` x `grid` points (default: 20 x 20) of frame
        `query_frame` (default: 0), of those only the ones in `mask` (H, W) where it is given; or
        with `dense` every pixel of that frame. `as_hub` tracks back and calls visible as
        CoTracker's published predictor does. `progress` says how long it still takes.
        """
        import torch

        pixels, fps = read_frames(video, frames)
        points = choose_queries(pixels, queries, grid, mask, dense, query_frame)
        options: dict[str, Any] = {}
        offered = inspect.signature(self.recipe.track_points).parameters
        if as_hub:
            if "as_hub" not in offered:
                raise ConfigError(
                    f"as_hub=True is for CoTracker3's trackers, and this is {self.name}; drop it"
                )
            options["as_hub"] = True
        if "report" in offered:
            options["report"] = point_counter(len(points))
        with torch.inference_mode(), shown() if progress else nullcontext():
            tracks = self.recipe.track_points(
                self.model, torch.from_numpy(pixels), torch.from_numpy(points), **options
            )
        tracks_xy, visible, visibility, confidence = (part.numpy() for part in tracks)
        return VideoTracks(
            tracks_xy, visible, visibility, confidence, points, pixels, fps or USUAL_FPS
        )


@checked_keywords()
def load_tracker(
    source: Path | str = SMALL,
    *,
    recipe: str | None = None,
    device: str = "auto",
    rename: Sequence[KeyRule] = (),
) -> Tracker:
    """Load a tracker: the small one that comes with overt, a checkpoint, or an official file.

    A checkpoint folder and an exported safetensors file know their recipe; for another file it is
    `recipe`, or guessed from the name of CoTracker3's released files. `rename` maps its keys, as
    for `overt.load_checkpoint`.

    Examples:
        >>> tracker = overt.load_tracker(device="cpu")
        >>> video = np.random.randint(0, 255, (3, 3, 64, 64), dtype=np.uint8)
        >>> tracks = tracker(video, grid=2, progress=False)
        >>> tracks.tracks_xy.shape, tracks.visible.shape
        ((3, 4, 2), (3, 4))
        >>> tracks.draw("tracks.gif").name
        'tracks.gif'
    """
    from overt.distributed import init_distributed

    built, model, name = open_tracker(source, recipe, rename)
    return Tracker(built, model.to(init_distributed(device).device), name)


def open_tracker(
    source: Path | str, recipe: str | None = None, rename: Sequence[KeyRule] = ()
) -> tuple[Any, nn.Module, str]:
    """Return a tracker's recipe, its model on the CPU and its name; the source as above."""
    shipped = SHIPPED_AS.get(str(source))
    if str(source).startswith(SHIPPED_PREFIX):  # as checkpoint.init_from names them
        shipped = str(source).removeprefix(SHIPPED_PREFIX)
    if shipped is not None:
        if recipe not in (None, shipped):
            raise ConfigError(
                f"recipe={recipe!r}, but {str(source)!r} is {shipped}, which ships with overt; "
                "give the file of the weights, or drop recipe"
            )
        recipe, file = shipped, shipped_weights(shipped)
    else:
        file = Path(source)
        if recipe is None and file.is_file() and recorded_recipe(file) is None:
            recipe = official_recipe(file)
    words = [f"recipe={recipe}"] if recipe else []
    config = configure(file, words, (), remedy='recipe="NAME"', needs_data=False)
    built: Any = build_recipe(config)
    need_task(built, PointTracker, config.recipe.name)
    model, _ = load_model(built, file, rename=rename)
    return built, model, config.recipe.name


def official_recipe(file: Path) -> str:
    """Return the recipe of a released file, by its name."""
    for word, recipe in OFFICIAL.items():
        if word in file.name:
            return recipe
    raise ConfigError(
        f"{file} does not say which model it is; add recipe=NAME, one of "
        f"{', '.join(OFFICIAL.values())}, or the recipe it was trained with"
    )


def read_frames(
    video: Path | str | int | Frames, most: int | None = None
) -> tuple[Frames, float | None]:
    """The frames (T, 3, H, W) of a path, a camera or an array, and their rate where it is known."""
    from overt.data.tracking.video import read_video
    from overt.data.tracking.video_stream import stream_frames

    if most is not None:
        need_integer("frames", most, 1)
    if isinstance(video, int):
        if most is None:
            raise ConfigError(
                f"camera {video} never ends; set frames=N, the number of frames to record"
            )
        recorded = list(islice(stream_frames(video), most))
        if not recorded:
            raise DataError(f"camera {video}: no frame arrived; check that it is connected")
        return np.stack(recorded), None
    if isinstance(video, Path | str):
        content = read_video(video)
        return content.frames[:most], content.fps
    given = _read_array("video", video)
    is_channels_last = given.ndim == 4 and given.shape[1] != 3 and given.shape[3] == 3
    frames = given.transpose(0, 3, 1, 2) if is_channels_last else given
    is_video = frames.ndim == 4 and frames.shape[1] == 3 and frames.dtype == np.uint8
    if not is_video or not len(frames) or min(frames.shape[2:]) < 2:
        raise DataError(
            f"a video of shape {given.shape} and type {given.dtype}; expected bytes (uint8) "
            "of shape (frames, 3, height, width) or (frames, height, width, 3), at least one frame "
            "of 2 x 2 pixels"
        )
    return np.ascontiguousarray(frames[:most]), None


def choose_queries(
    frames: Frames, queries: Any, grid: int | None, mask: Any, dense: bool, query_frame: int | None
) -> Queries:
    """Return the points that the arguments of a tracker's call mean."""
    from overt.geometry.grid import point_grid

    count, _, height, width = frames.shape
    if queries is not None:
        if grid is not None or mask is not None or dense or query_frame is not None:
            raise ConfigError("give queries, or grid, mask, dense and query_frame, not both")
        return _read_queries(queries, count, (height, width))
    query_frame = 0 if query_frame is None else query_frame
    if not is_integer(query_frame) or not 0 <= query_frame < count:
        raise DataError(
            f"query_frame={query_frame}; the video has frames 0 to {count - 1}, choose one of them"
        )
    if dense:
        if grid is not None:
            raise ConfigError(f"dense=True follows every pixel; drop grid={grid}")
        rows, columns = np.mgrid[0:height, 0:width]
        points_xy = np.stack([columns.ravel(), rows.ravel()], -1).astype(np.float32)
    else:
        side = USUAL_GRID if grid is None else need_integer("grid", grid, 1, MOST_GRID)
        points_xy = point_grid(side, (height, width)).numpy()
    if mask is not None:
        points_xy = _points_in_mask(points_xy, mask, (height, width))
    times = np.full((len(points_xy), 1), query_frame, np.float32)
    return np.concatenate([times, points_xy], axis=1, dtype=np.float32)


def _read_queries(queries: Any, count: int, frame_size: tuple[int, int]) -> Queries:
    """Return the queries of a call, refused where they are not points of the video."""
    points = _read_array("queries", queries)
    if points.dtype.kind not in "iuf" or points.ndim != 2 or points.shape[1] != 3:
        raise DataError(
            f"queries of shape {points.shape} and type {points.dtype}; expected numbers of shape "
            "(N, 3): frame, x, y"
        )
    if not len(points):
        raise DataError("queries has no rows; give at least one (frame, x, y)")
    refuse_outside(points, frame_size, count)
    return np.ascontiguousarray(points, dtype=np.float32)


def refuse_outside(points: NDArray[Any], frame_size: tuple[int, int], count: int | None) -> None:
    """Refuse queries (N, 3) that start between or outside `count` frames of (height, width).

    The count is None for a stream, which may end at any time.
    """
    from overt.data.tracking.clips import QUERY_MARGIN

    height, width = frame_size
    last = np.array([np.inf if count is None else count - 1, width - 1, height - 1])
    margin = np.array([0, QUERY_MARGIN, QUERY_MARGIN])
    is_inside = ((points >= -margin) & (points <= last + margin)).all(1)  # false for NaN
    if not is_inside.all():
        index = int(np.argmin(is_inside))
        query_text = ", ".join(f"{value:g}" for value in points[index].tolist())
        frame_text = "from 0 on" if count is None else f"0 to {count - 1}"
        raise DataError(
            f"{int((~is_inside).sum())} of {len(points)} queries lie outside the video, first "
            f"query {index}: ({query_text}). A query is (frame, x, y) with frame {frame_text}, "
            f"x 0 to {width - 1} and y 0 to {height - 1} pixels; correct it or drop it."
        )
    is_between = points[:, 0] % 1 != 0
    if is_between.any():
        index = int(np.argmax(is_between))
        raise DataError(
            f"query {index} starts in frame {points[index, 0]:g}, which is not an integer; round it"
        )


def _points_in_mask(
    points_xy: NDArray[np.float32], mask: Any, frame_size: tuple[int, int]
) -> NDArray[np.float32]:
    """Return the points (N, 2) whose nearest pixel is in the mask (H, W)."""
    height, width = frame_size
    pixels = _read_array("mask", mask)
    if pixels.shape != frame_size or pixels.dtype.kind not in "biuf":
        raise DataError(
            f"mask of shape {pixels.shape} and type {pixels.dtype}; expected numbers for "
            f"{height} rows and {width} columns, as the frames have"
        )
    column, row = points_xy.round().astype(int).T
    column, row = column.clip(0, width - 1), row.clip(0, height - 1)
    points_xy = points_xy[pixels[row, column] != 0]
    if not len(points_xy):
        raise DataError("no point of the grid lies in the mask; raise grid, or set dense=True")
    return points_xy


def _read_array(name: str, given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors of a GPU
        raise DataError(f"{name} cannot be read as one array ({error}); give an array") from None


def is_integer(value: object) -> bool:
    """Return whether a value is an integer of Python or NumPy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def need_integer(name: str, value: int, least: int, most: int | None = None) -> int:
    """Return an argument, refused where it is not an integer from `least` to `most`."""
    if not is_integer(value) or value < least or (most is not None and value > most):
        bound = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name}={value!r}; expected an integer, {bound}")
    return int(value)


def drawn_fps(given: float | None, stored: float) -> float:
    """Return the frame rate of a drawn video: as given, or about that of the source."""
    if given is None:
        return min(max(stored, LOWEST_FPS), HIGHEST_FPS)
    try:
        rate = float(given)
    except (TypeError, ValueError):
        rate = math.nan
    if not LOWEST_FPS <= rate <= HIGHEST_FPS:
        raise ConfigError(f"fps={given!r}; expected a number {FPS_RANGE}")
    return rate


def point_counter(points: int) -> Callable[[float], None]:
    """Tell how many points have been followed, from the fraction that is done."""
    return lambda done: progress_of("tracking points", round(done * points), points)
