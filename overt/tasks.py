"""What a trained model can do besides training: a recipe has the methods of what it offers.

Each protocol names the command that asks for it. They can be checked with `isinstance`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from overt.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from overt.distributed import World

Array = NDArray[np.float32]


class PointTracks(NamedTuple):
    """Where queried points are in each frame of a video; on the CPU."""

    tracks_xy: Tensor  # (T, N, 2) pixels of the video
    visible: Tensor  # (T, N) bool
    visibility: Tensor  # (T, N) probabilities
    confidence: Tensor  # (T, N) probabilities


@runtime_checkable
class PointTracker(Protocol):
    """`overt track`: follow points through a video."""

    def track_points(self, model: Any, video: Tensor, queries: Tensor) -> PointTracks:
        """Return the tracks of queries (N, 3) [t, x, y] through a video (T, 3, H, W) uint8."""


class FrameTracker(Protocol):
    """Follows points through frames that arrive one by one."""

    def observe(self, frame: Tensor) -> None:
        """Take the next frame (3, H, W) uint8."""

    def add(self, points_xy: Tensor) -> list[int]:
        """Follow points (n, 2) of the newest frame from here on; return their numbers."""

    def advance(self) -> Any:
        """Return `points_xy`, `visible`, `visibility` and `rho` of all points in that frame."""


@runtime_checkable
class HindsightTracker(FrameTracker, Protocol):
    """A tracker that knows positions better once later frames have been seen."""

    def finish(self) -> PointTracks:
        """Return the tracks through all frames."""


@runtime_checkable
class OnlinePointTracker(Protocol):
    """`overt track --online`: follow points frame by frame."""

    def online_tracker(self, model: Any, frame_size: tuple[int, int], points: int) -> FrameTracker:
        """Return a tracker of up to `points` points in frames of (height, width)."""


@runtime_checkable
class ImageEncoder(Protocol):
    """`overt features`: features of images, for probes and other tools."""

    def prepare_image(self, pixels: Tensor) -> Tensor:
        """Return an image (3, H, W) uint8 of any size as the model takes it."""

    def encode_images(self, model: Any, images: Tensor) -> Tensor:
        """Return features (B, D) of images (B, 3, H, W) uint8."""


@runtime_checkable
class SkullCompleter(Protocol):
    """`overt complete`: complete a defective skull with an implant."""

    def complete(self, model: Any, skull: Any, where: str) -> Any:
        """Return implants for a defective skull; `where` names it in messages."""


@runtime_checkable
class ListCompleter(Protocol):
    """`overt data implants`: complete all skulls of a list, to train on what comes out."""

    def complete_listed(self, model: Any) -> Iterator[tuple[Path, NDArray[Any]]]:
        """Yield for each skull of `data.test_list` the file to write, and implants (n, K, 3)."""


@runtime_checkable
class ImplantVoxelizer(Protocol):
    """`overt complete --voxels`: make volumes of sampled implants."""

    def implant_volumes(self, model: Any, known: Any, implants: Tensor, grid: Any) -> list[Any]:
        """Return a mask in the voxels of a scan for each implant (n, K, 3)."""


@dataclass(frozen=True)
class PersonEstimate:
    """A person and the camera that saw them; meters in the camera frame, pixels of the picture."""

    vertices: Array  # (V, 3)
    faces: NDArray[np.int64]  # (F, 3)
    joints: Array  # (55, 3)
    focal: float
    centre: tuple[float, float]  # principal point
    image_size: tuple[int, int]  # (height, width)
    pelvis: Array  # (3,)
    translation: Array  # (3,): `transl` of SMPL-X
    global_orient: Array  # (3,) axis-angle
    body_pose: Array  # (21, 3) axis-angle
    betas: Array  # (10,)
    keypoints: Array  # (12, 2) limb joints that the camera was fitted to
    overlay: NDArray[np.uint8]  # (H, W, 3)

    def camera(self) -> dict[str, Any]:
        """Return everything but the mesh, as plain numbers for JSON."""
        x, y = self.centre
        return {
            "focal_length": self.focal,
            "K": [[self.focal, 0.0, x], [0.0, self.focal, y], [0.0, 0.0, 1.0]],
            "image_height_width": list(self.image_size),
            "pelvis": self.pelvis.tolist(),
            "smplx": {
                "transl": self.translation.tolist(),
                "global_orient": self.global_orient.tolist(),
                "body_pose": self.body_pose.tolist(),
                "betas": self.betas.tolist(),
            },
            "keypoints2d": self.keypoints.tolist(),
        }


@runtime_checkable
class PersonEstimator(Protocol):
    """`overt estimate`: mesh and camera of the person in a picture."""

    def estimate(
        self,
        model: Any,
        picture: Any,
        mask: Any,
        keypoints: Any,
        box: Any,
        focal: float | None = None,
    ) -> PersonEstimate:
        """Return the person in a picture (H, W, 3) uint8; all that follows it may be None.

        `focal` is the focal length in pixels, where it is known: for people of one picture.
        """

    def predicts_mask(self) -> bool:
        """Return whether the model predicts the mask of a person itself."""


class ExportedStep(NamedTuple):
    """What an exporter needs to write a step of a model."""

    module: nn.Module
    example: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    points_axis: dict[str, int]  # inputs and outputs with an axis of any length, the same for all
    note: str
    axis_name: str = "points"


@runtime_checkable
class Exportable(Protocol):
    """`overt ckpt export --to onnx` and `--to torchscript`."""

    def export_step(self, model: Any) -> ExportedStep:
        """Return one frame or sample as a module with example inputs."""


@runtime_checkable
class RowScorer(Protocol):
    """`overt evaluate`: scores sample by sample; `Recipe.evaluate` returns `summarize` of these."""

    def evaluate_rows(self, model: Any, world: World) -> list[dict[str, Any]]:
        """Return a row per sample, its `name` and numbers."""


@runtime_checkable
class BaselineScorer(Protocol):
    """`overt evaluate --baselines`: what a score is to be compared with."""

    def baseline_rows(self, world: World) -> dict[str, list[dict[str, Any]]]:
        """Return, by name, the rows of methods that need no training, on the same samples."""


@runtime_checkable
class TrainingRecaller(Protocol):
    """All commands that use a trained model: know what its training data were like."""

    def recall_training(self, state: Mapping[str, Any]) -> None:
        """Take it from the plain values of `Recipe.state_dict`; older and other files have none."""


@runtime_checkable
class ScoreTabulator(Protocol):
    """`overt evaluate`: a table as the method's papers print it."""

    def score_table(self, rows: list[dict[str, Any]], scores: dict[str, float]) -> str:
        """Return the rows and their means as text."""


def open_tracker(source: str, recipe: str | None = None) -> tuple[Any, Any, str]:
    """Return recipe, model and name of a trained tracker, for methods that learn from it.

    It is reached by its name, as recipes are by `_target_`: a method knows neither checkpoints nor
    other methods.
    """
    opened: tuple[Any, Any, str] = import_module("overt.tracker").open_tracker(source, recipe)
    need_task(opened[0], PointTracker, opened[2])
    return opened


def need_task(recipe: object, task: Any, name: str) -> Any:
    """Return the recipe where it can do a task, one of the protocols above; else refuse it."""
    if not isinstance(recipe, task):
        methods = [word for word in vars(task) if not word.startswith("_")]
        raise ConfigError(
            f"the recipe {name} cannot do this: it has no {', '.join(methods)} ({task.__name__} in "
            "overt/tasks.py). Give a checkpoint of another recipe; for one of your own see `overt "
            "docs add_a_recipe`"
        )
    return recipe
