"""Trained trackers as teachers that label clips without labels.

Section 3.2 of arXiv:2410.11831. A teacher is frozen. T frames, N points, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from overt.data.tracking.clips import TrackBatch
from overt.data.tracking.settings import TeacherSettings, UnlabeledSettings
from overt.data.tracking.unlabeled import UnlabeledBatch
from overt.errors import ConfigError, DataError
from overt.geometry.grid import pixel_scale, point_grid
from overt.recipes.cotracker3.windows import since_query
from overt.tasks import open_tracker

STUDENT, RANDOM = "student", "random"
GRID = 5  # side of the grid of support points in the first frame
ONNX, SCRIPTS = (".onnx",), (".torchscript", ".ts")
INPUTS, OUTPUTS = ("video", "queries"), ("tracks", "visibility")


class Teacher(Protocol):
    """A frozen tracker and its capabilities."""

    name: str
    tracks_backward: bool  # are its positions before the query meant?
    support: str  # which points it wants to follow beside the queries, one of SUPPORT

    def track(self, video: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return tracks (T, N, 2) in pixels and visibility (T, N) from 0 to 1.

        The video is (T, 3, H, W) uint8, the queries are (N, 3) as t, x, y.
        """


class TrackerTeacher:
    """A tracker that overt trained, or whose weights it loads."""

    def __init__(self, source: str, recipe: str | None, device: torch.device) -> None:
        self.recipe, model, self.name = open_tracker(source, recipe)
        self.model = model.to(device).eval().requires_grad_(False)
        self.tracks_backward = bool(getattr(self.recipe, "tracks_backward", False))
        self.support = str(getattr(self.recipe, "teacher_support", "none"))

    def track(self, video: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        tracks = self.recipe.track_points(self.model, video, queries)
        return tracks.tracks_xy, tracks.visibility


class ScriptTeacher:
    """A TorchScript module: video (1, T, 3, H, W) float in 0..255 and queries (1, N, 3).

    It returns tracks (1, T, N, 2) and visibility (1, T, N); further outputs are ignored.
    """

    tracks_backward, support = False, "none"

    def __init__(self, file: Path, device: torch.device) -> None:
        self.name = file.name
        try:
            self.module = torch.jit.load(str(file), map_location=device).eval()  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise DataError(f"{file}: not a TorchScript module ({reason})") from None

    def track(self, video: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.module(video[None].float(), queries[None])
        return outputs[0][0], outputs[1][0]


class OnnxTeacher:
    """An ONNX file with the inputs `video` and `queries` and the outputs `tracks`, `visibility`.

    Shapes are those of a TorchScript module. Runs on the CPU if onnxruntime has no GPU support.
    """

    tracks_backward, support = False, "none"

    def __init__(self, file: Path) -> None:
        self.name = file.name
        try:
            import onnxruntime
        except ImportError:
            raise ConfigError(
                f"{file}: to run it, onnxruntime is needed: pip install 'overt[onnx]'"
            ) from None
        try:
            self.session = onnxruntime.InferenceSession(
                str(file), providers=onnxruntime.get_available_providers()
            )
        except Exception as error:  # its errors derive from RuntimeError only
            reason = str(error).strip().splitlines()[0]
            raise DataError(f"{file}: onnxruntime cannot load it ({reason})") from None
        inputs = {entry.name for entry in self.session.get_inputs()}
        outputs = {entry.name for entry in self.session.get_outputs()}
        if inputs != set(INPUTS) or not set(OUTPUTS) <= outputs:
            raise DataError(
                f"{file}: its inputs are {', '.join(sorted(inputs))} and its outputs "
                f"{', '.join(sorted(outputs))}; expected inputs {', '.join(INPUTS)} and outputs "
                f"{', '.join(OUTPUTS)}"
            )

    def track(self, video: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        inputs = {
            "video": video[None].float().cpu().numpy(),
            "queries": queries[None].cpu().numpy(),
        }
        tracks, visibility = self.session.run(list(OUTPUTS), inputs)
        return torch.from_numpy(tracks[0]), torch.from_numpy(visibility[0])


def load_teacher(settings: TeacherSettings, device: torch.device) -> Teacher:
    """Return the tracker named by a teacher's settings."""
    file = Path(settings.source)
    suffix = file.suffix.lower()
    if suffix in (*ONNX, *SCRIPTS) and not file.is_file():
        raise DataError(f"data.unlabeled.teachers: {file}: no such file")
    if suffix in ONNX:
        return OnnxTeacher(file)
    if suffix in SCRIPTS:
        return ScriptTeacher(file, device)
    return TrackerTeacher(settings.source, settings.recipe, device)


class Labels(NamedTuple):
    """A teacher's labels for one clip."""

    tracks: Tensor  # (T, N, 2) pixels
    visible: Tensor  # (T, N) bool
    valid: Tensor  # (T, N) bool: is the position to be learned?


class Faculty:
    """All teachers of a run; each process loads a teacher when a clip first needs it."""

    def __init__(self, settings: Sequence[TeacherSettings]) -> None:
        self.settings = list(settings)
        self._loaded: dict[tuple[int, torch.device], Teacher] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_loaded": {}}  # loader processes need no teacher

    def teacher(self, number: int, device: torch.device) -> Teacher:
        if (number, device) not in self._loaded:
            # Building a model uses random numbers before its weights are read. When that happens
            # differs between an uninterrupted and a resumed run, so the run's generators must not
            # be affected.
            with torch.random.fork_rng(devices=[]):
                self._loaded[number, device] = load_teacher(self.settings[number], device)
        return self._loaded[number, device]

    @torch.no_grad()
    def label(self, batch: UnlabeledBatch) -> TrackBatch:
        """Return the clips with the labels of their teachers.

        One clip at a time, so that labels do not depend on how a batch is split.
        """
        if isinstance(batch.video, FakeTensor):  # of `overt plan`: sizes only, nothing is loaded
            return _placeholder(batch)
        clips = zip(batch.teachers, batch.video, batch.queries, batch.support, strict=True)
        # Teachers run in float32, whatever the precision of the student.
        with torch.autocast(batch.video.device.type, enabled=False):
            labels = [
                label_clip(
                    self.teacher(number, video.device),
                    self.settings[number],
                    video,
                    queries,
                    support,
                )
                for number, video, queries, support in clips
            ]
        tracks, visible, valid = (torch.stack(parts) for parts in zip(*labels, strict=True))
        return TrackBatch(
            video=batch.video,
            tracks=tracks,
            visibility=visible,
            valid=valid,
            queries=batch.queries,
            redrawn=batch.redrawn,
            names=batch.names,
        )


def _placeholder(batch: UnlabeledBatch) -> TrackBatch:
    """Return labels of the right shapes; a plan ignores the memory of teachers."""
    clips, frames = batch.video.shape[:2]
    points = batch.queries.shape[1]
    visible = batch.video.new_ones((clips, frames, points), dtype=torch.bool)
    return TrackBatch(
        video=batch.video,
        tracks=batch.queries[:, None, :, 1:].expand(-1, frames, -1, -1).contiguous(),
        visibility=visible,
        valid=visible.clone(),
        queries=batch.queries,
        redrawn=batch.redrawn,
        names=batch.names,
    )


def label_clip(
    teacher: Teacher, settings: TeacherSettings, video: Tensor, queries: Tensor, support: Tensor
) -> Labels:
    """Track the queries of a clip (T, 3, H, W) and mark which tracks can be learned from."""
    kind = settings.support or teacher.support
    beside = {"random": support, "grid": _grid(video), "none": support[:0]}[kind]
    followed = torch.cat([queries, beside.to(queries)])
    tracks, visibility = _at_resolution(teacher, settings.resolution, video, followed)
    count, frames = len(queries), len(video)
    expected = (frames, len(followed))
    if tracks.shape != (*expected, 2) or visibility.shape != expected:
        raise DataError(
            f"the teacher {teacher.name} gave tracks of shape {tuple(tracks.shape)} and visibility "
            f"of shape {tuple(visibility.shape)}; expected {(*expected, 2)} and {expected}"
        )
    tracks = tracks[:, :count].to(video.device, torch.float32)
    visible = visibility[:, :count].to(video.device) > settings.visible_threshold
    # Masking is not enough: NaN times zero is NaN.
    finite = tracks.isfinite().all(-1)
    tracks = torch.where(finite[..., None], tracks, queries[:, 1:].to(tracks))
    visible = visible & finite
    valid = finite
    if not settings.occluded_positions:
        valid = valid & visible
    backward = settings.tracks_backward
    if not (teacher.tracks_backward if backward is None else backward):
        valid = valid & since_query(queries[None, :, 0], frames)[0]
    return Labels(tracks, visible, valid)


def _grid(video: Tensor) -> Tensor:
    height, width = video.shape[-2:]
    return F.pad(point_grid(GRID, (height, width), device=video.device), (1, 0))


def _at_resolution(
    teacher: Teacher, resolution: list[int] | None, video: Tensor, queries: Tensor
) -> tuple[Tensor, Tensor]:
    """Run a teacher at its own resolution; tracks are returned in pixels of the video."""
    if resolution is None:
        return teacher.track(video, queries)
    height, width = video.shape[-2:]
    size = (resolution[0], resolution[1])
    resized = F.interpolate(video.float(), size, mode="bilinear", align_corners=True)
    scale_xy = pixel_scale((height, width), size, queries.device)
    scaled = torch.cat([queries[:, :1], queries[:, 1:] * scale_xy], dim=1)
    tracks, visibility = teacher.track(resized.round().to(torch.uint8), scaled)
    return tracks / scale_xy.to(tracks.device), visibility


def teachers_of(settings: UnlabeledSettings | None) -> Faculty | None:
    """Return the teachers of `data.unlabeled`, if any."""
    if settings is None:
        return None
    student = settings.student or STUDENT  # training without one is rejected before it is opened
    return Faculty(
        [
            replace(teacher, source=student) if teacher.source == STUDENT else teacher
            for teacher in settings.teachers
        ]
    )


def refuse_untrained(settings: UnlabeledSettings) -> None:
    """Reject training a student from random weights, unless requested."""
    if settings.student is None:
        raise ConfigError(
            "data.unlabeled improves a trained tracker, and checkpoint.init_from=null starts from "
            "random weights: set checkpoint.init_from=FILE, or data.unlabeled.student=random "
            "together with teachers that are not the student"
        )
    if settings.student == RANDOM and any(
        teacher.source == STUDENT for teacher in settings.teachers
    ):
        raise ConfigError(
            f"data.unlabeled.student={RANDOM}, so {STUDENT} cannot be a teacher; name a trained "
            "tracker in data.unlabeled.teachers"
        )
