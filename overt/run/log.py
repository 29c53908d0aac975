"""MetricsLogger: numbers, pictures, videos and events of a run, written by the main process.

Always into the run folder; to TensorBoard and Weights & Biases as asked. It never stops training.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from overt.data.pictures import with_palette
from overt.distributed import is_main_process
from overt.errors import STOPPED_EXIT_CODES, exit_code_of
from overt.health.system import SystemMeter, environment, gpu_memory, gpu_use
from overt.run.trackers import (
    OWN_FIELDS,
    Pixels,
    RunFolder,
    Start,
    TensorBoard,
    TextTracker,
    Tracker,
    TrackerMaker,
    WeightsAndBiases,
)

logger = logging.getLogger(__name__)


class MetricsLogger:
    """Writes to `log_dir`; on all processes but the main one every method does nothing.

    `resume_step` is the step of the checkpoint that training resumes from: what was logged beyond
    it is taken back, because these steps come again. Without it a run starts from scratch, and rows
    of an earlier start are set aside. No failure of a disk, package or network raises: there is one
    warning, and a tracker that failed is disabled; the run folder is tried every time.

    Examples:
        >>> with overt.MetricsLogger("trial", "runs/trial", use_tensorboard=False) as log:
        ...     log.log_metrics({"loss": 0.5}, step=1, prefix="train")
    """

    def __init__(
        self,
        experiment_name: str,
        log_dir: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        use_wandb: bool = False,
        use_tensorboard: bool = True,
        wandb_project: str = "overt",
        wandb_tags: Sequence[str] = (),
        *,
        wandb_entity: str | None = None,
        wandb_mode: str | None = None,
        wandb_run_id: str | None = None,
        resume_step: int | None = None,
        trackers: Sequence[TrackerMaker] = (),
        inactive: bool = False,
    ) -> None:
        self.log_dir = Path(log_dir)
        self.wandb_run_id: str | None = None
        self._active = is_main_process() and not inactive
        self._folder = RunFolder(self.log_dir)
        self._trackers: list[Tracker] = []
        self._warned: set[str] = set()
        self._sums: dict[str, tuple[Any, int]] = {}
        self._last_step = -1 if resume_step is None else resume_step
        self._names_at_last_step: set[str] = set()
        self._system = SystemMeter(self.log_dir)
        if not self._active:
            return
        self._trackers.append(self._folder)
        with self._never_stop("the run folder"):
            self._open_folder(resume_step)
        if use_tensorboard:
            with self._never_stop("TensorBoard", advice="pip install tensorboard"):
                folder = self.log_dir / "tensorboard"
                self._trackers.append(TensorBoard(folder, self._last_step + 1, config))
        if use_wandb:
            advice = (
                "it needs pip install 'overt[wandb]', and a login or logging.wandb_mode=offline"
            )
            with self._never_stop("Weights & Biases", advice=advice):
                wandb = WeightsAndBiases(
                    self.log_dir,
                    experiment_name,
                    config,
                    wandb_project,
                    wandb_entity,
                    wandb_tags,
                    wandb_mode,
                    wandb_run_id,
                )
                self.wandb_run_id = wandb.run_id
                self._trackers.append(wandb)
        start = Start(experiment_name, self.log_dir, dict(config or {}), resume_step)
        for make in trackers:
            with self._never_stop(getattr(getattr(make, "func", make), "__name__", repr(make))):
                self._trackers.append(make(start))

    def _open_folder(self, resume_step: int | None) -> None:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        if resume_step is None:
            self._folder.set_aside()
            self._folder.event("start", environment())
        else:
            self._names_at_last_step = self._folder.cut_after(resume_step)
            self._folder.event("resume", {"step": resume_step, **environment()})

    def log_metrics(
        self, metrics: Mapping[str, Any], step: int | None = None, prefix: str = ""
    ) -> None:
        """Log numbers; without a step, for the step after the last one logged.

        Steps never go backwards and a name has one value per step: anything else is dropped.
        Without a prefix, `step` and `time`, which every row has, become `metrics/step` and
        `metrics/time`.
        """
        if not self._active:
            return
        step = self._last_step + 1 if step is None else int(step)
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            key = _printable(f"{prefix.rstrip('/')}/{name}" if prefix else str(name))
            with self._never_stop(f"the metric {name}"):
                numbers[f"metrics/{key}" if key in OWN_FIELDS else key] = _number(value)
        fresh = self._only_new(numbers, step)
        if fresh:
            self._send(lambda tracker: tracker.metrics(fresh, step))

    def accumulate_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Add to the means that `log_accumulated_metrics` logs; tensors stay on their device."""
        if not self._active:
            return
        for name, value in metrics.items():
            with self._never_stop(f"the metric {name}"):
                value = value.detach() if isinstance(value, Tensor) else value
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = (total + value, count + 1)

    def log_accumulated_metrics(self, step: int | None = None, prefix: str = "") -> None:
        """Log the mean of what was accumulated since the last time, and reset."""
        means = {name: total / count for name, (total, count) in self._sums.items()}
        self._sums = {}
        self.log_metrics(means, step, prefix)

    def log_image(self, name: str, image: Any, step: int, caption: str | None = None) -> None:
        """Log a picture: (C, H, W), (H, W, C) or (H, W), uint8, or float from 0 to 1."""
        if not self._active:
            return
        with self._never_stop(f"the image {name}"):
            pixels, title, at = as_pixels(image), _printable(name), int(step)
            self._send(lambda tracker: tracker.image(title, pixels, at, caption))

    def log_video(self, name: str, frames: Any, step: int, fps: float = 10) -> None:
        """Log a video, (T, 3, H, W) uint8, as an animated GIF."""
        if not self._active:
            return
        with self._never_stop(f"the video {name}"):
            gif, title, at = as_gif(frames, fps), _printable(name), int(step)
            self._send(lambda tracker: tracker.video(title, gif, at))

    def log_picture(self, name: str, pixels: Any, step: int) -> None:
        """Log a picture, or, with a dimension more, (T, 3, H, W), a video."""
        with self._never_stop(f"the picture {name}"):
            log = self.log_video if np.ndim(pixels) == 4 else self.log_image
            log(name, pixels, step)

    def log_text(self, name: str, text: str, step: int) -> None:
        """Log a text; trackers without a method `text` are skipped."""
        if not self._active:
            return
        with self._never_stop(f"the text {name}"):
            title, words, at = _printable(name), _printable(text), int(step)
            self._send(
                lambda tracker: (
                    tracker.text(title, words, at) if isinstance(tracker, TextTracker) else None
                )
            )

    def log_sample(self, name: str, sample: Any, step: int) -> None:
        """Log what a recipe shows of its model: a text, a picture or a video."""
        (self.log_text if isinstance(sample, str) else self.log_picture)(name, sample, step)

    def log_histogram(self, name: str, values: Any, step: int) -> None:
        """Log how values are spread; NaN and Inf are excluded."""
        if not self._active:
            return
        with self._never_stop(f"the histogram {name}"):
            array = as_array(values).astype(np.float64).ravel()
            finite = array[np.isfinite(array)]
            title, at = _printable(name), int(step)
            if finite.size and self._only_new({title: 0.0}, at):
                self._send(lambda tracker: tracker.histogram(title, finite, at))

    def log_model_gradients(self, model: nn.Module, step: int) -> None:
        """A histogram of each parameter's gradient; call it before the gradients are cleared.

        Of a sharded model on every process, since its tensors are gathered.
        """
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self._log_first(f"gradients/{name}", _full_tensor(parameter.grad), step)

    def log_model_weights(self, model: nn.Module, step: int) -> None:
        """A histogram of each parameter; of a sharded model on every process."""
        for name, parameter in model.named_parameters():
            self._log_first(f"weights/{name}", _full_tensor(parameter), step)

    def _log_first(self, name: str, values: Tensor, step: int) -> None:
        """Log a histogram unless the step has it: a step may have several updates."""
        if step != self._last_step or name not in self._names_at_last_step:
            self.log_histogram(name, values, step)

    def log_system_metrics(self, step: int) -> None:
        """Log how busy processor, memory, disk and network of this host and its GPUs are."""
        self.log_metrics(self.system_metrics(), step)

    def system_metrics(self) -> dict[str, float]:
        """Return what `log_system_metrics` logs; nothing on other processes than the main one."""
        numbers: dict[str, float] = {}
        if not self._active:
            return numbers
        with self._never_stop("system metrics"):
            numbers |= self._system.host()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for index in range(torch.cuda.device_count()):
                numbers |= gpu_memory(index)
                with self._never_stop("GPU use", advice="pip install nvidia-ml-py"):
                    numbers |= gpu_use(index)
        return {f"system/{name}": value for name, value in numbers.items()}

    def log_event(self, kind: str, **fields: Any) -> None:
        """Record that something happened (a restart, a skipped step) in events.jsonl."""
        if not self._active:
            return
        with self._never_stop("events.jsonl"):
            self._folder.event(kind, fields)

    def finish(self, exit_code: int = 0, step: int | None = None) -> None:
        """Flush and close; nothing is logged afterward.

        An error on its way out is recorded; a requested stop is not an error.
        """
        error = sys.exception()
        self._folder.last_step = step
        if error is not None and exit_code and self._active:
            line = (str(error).splitlines() or [""])[0][:500]
            if exit_code in STOPPED_EXIT_CODES:
                self._folder.stopped_by = line or type(error).__name__
            else:
                self._folder.error = f"{type(error).__name__}: {line}"
        self._send(lambda tracker: tracker.close(exit_code))
        self._active = False
        self._trackers = []

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.finish(exit_code_of(error))

    # --- what keeps the log in order, and training alive ----------------------------------------

    def _only_new(self, numbers: Mapping[str, float], step: int) -> dict[str, float]:
        if step < self._last_step:
            self._warn(
                "backwards", f"step {step} was not logged: step {self._last_step} is logged already"
            )
            return {}
        if step > self._last_step:
            self._last_step, self._names_at_last_step = step, set()
        fresh = {k: v for k, v in numbers.items() if k not in self._names_at_last_step}
        if len(fresh) < len(numbers):
            twice = ", ".join(sorted(self._names_at_last_step.intersection(numbers)))
            self._warn("twice", f"{twice} logged twice for step {step}; the first value is kept")
        self._names_at_last_step.update(fresh)
        return fresh

    def _send(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            # A user's tracker can be without a name.
            name = getattr(tracker, "name", type(tracker).__name__)
            with self._never_stop(name, tracker):
                call(tracker)

    @contextmanager
    def _never_stop(
        self, action: str, tracker: Tracker | None = None, advice: str = ""
    ) -> Iterator[None]:
        """Turn any error raised inside into one warning: a run is worth more than its log."""
        try:
            yield
        except Exception as error:
            fix = f" ({advice})" if advice else ""
            # The disk may have room again later; a broken tracker stays broken.
            if tracker is not None and tracker is not self._folder:
                self._trackers.remove(tracker)
                fix += "; it is disabled"
            self._warn(action, f"logging to {action} failed: {error!r}{fix}; training continues")

    def _warn(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            logger.warning(text)


def _number(value: Any) -> float:
    if isinstance(value, Tensor | np.generic | np.ndarray):
        value = value.item()  # host-device sync
    number = float(value)  # raises for an integer that no tracker can hold
    return value if type(value) is int else number


def _printable(text: str) -> str:
    """Return the text with half surrogates as question marks: trackers fail to encode them."""
    return text.encode(errors="replace").decode()


def _full_tensor(tensor: Tensor) -> Tensor:
    """Return a sharded tensor gathered from all processes; any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def as_array(values: Any) -> NDArray[Any]:
    """Return a tensor, array or list as a NumPy array; bfloat16, which NumPy lacks, as float32."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    return np.asarray(values)


def as_pixels(image: Any) -> Pixels:
    """Return a picture in any of the usual layouts as (H, W, 3) uint8."""
    array = as_array(image)
    if array.size == 0:
        raise ValueError(f"a picture of shape {array.shape} has no pixels")
    array = array[None] if array.ndim == 2 else array
    if array.ndim == 3 and array.shape[0] in (1, 3, 4):  # channels first, where both could be
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise ValueError(
            f"shape {array.shape} is not a picture; give (C, H, W), (H, W, C) or (H, W)"
        )
    if array.dtype == bool or np.issubdtype(array.dtype, np.floating):
        array = np.round(np.nan_to_num(array.astype(np.float32)).clip(0, 1) * 255)
    pixels = array.clip(0, 255).astype(np.uint8)
    return pixels.repeat(3, axis=2) if pixels.shape[2] == 1 else pixels[:, :, :3].copy()


def as_gif(frames: Any, fps: float) -> bytes:
    """Return a video, (T, 3, H, W), as the bytes of an animated GIF that loops."""
    pictures = [with_palette(as_pixels(frame)) for frame in frames]
    if not pictures:
        raise ValueError("a video needs at least one frame")
    buffer = io.BytesIO()
    milliseconds = max(round(1000 / fps), 20)  # viewers slow down shorter delays
    pictures[0].save(
        buffer, "GIF", save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0
    )
    return buffer.getvalue()
