"""The toy recipe, and the faults that happen within a training process or its loader."""

import os
import resource
import signal
import sys
import time
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info
from toy_recipe.config import DataSettings, Settings
from toy_recipe.recipe import Batch, Model, Regression, Toy

from overt.errors import DataError
from overt.recipe import StepOutput


@dataclass(frozen=True)
class Fault:
    """What goes wrong in this process, if anything: at `step`, or at the `draw`-th sample."""

    kind: str = "none"
    step: int = 0
    draw: int = 0
    amount: float = 0.0
    path: Path | None = None
    # where to report each step to, for faults that come from outside
    steps: Connection | None = field(default=None, compare=False)


NONE = Fault()
current = NONE  # set by the process's entry, before training starts


class FaultyRegression(Regression):
    """Samples whose reading fails: by an error of the data, by a bug, or by a killed worker."""

    def __init__(self, settings: DataSettings, fault: Fault) -> None:
        super().__init__(settings)
        self.kind, self.draw, self.drawn = fault.kind, fault.draw, 0
        self.delay = fault.amount

    def sample(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor, int]:
        self.drawn += 1
        if self.drawn == self.draw:
            if self.kind == "unreadable sample":
                raise DataError(f"toy file {index} is unreadable; write it again")
            if self.kind == "sample with a bug":
                raise ValueError(f"toy file {index} has another shape")
            if self.kind == "killed worker":
                assert get_worker_info() is not None
                kill = partial(os.kill, os.getpid(), signal.SIGKILL)
                Timer(self.delay, kill).start() if self.delay else kill()
        return super().sample(index, rng)


class FaultyToy(Toy):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.fault = current
        self.seen = -1  # the step last begun
        _die_if(self.fault, "killed after the group has formed")
        if self.fault.kind == "lost tracker":
            sys.modules["wandb"] = _client_without_server(lambda: self.seen >= self.fault.step)

    def __getstate__(self) -> dict[str, Any]:
        """What loader processes get: not the line to the driver, whose end would go unseen."""
        return {**vars(self), "fault": NONE}

    def build_dataset(self) -> FaultyRegression:
        _die_if(self.fault, "killed while data are opened")
        return FaultyRegression(self.settings.data, self.fault)

    def build_model(self) -> Model:
        _die_if(self.fault, "killed while the model is built")
        return super().build_model()

    def loss(
        self, model: nn.Module, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        fault = self.fault
        begins, self.seen = step != self.seen, step
        if begins and fault.steps is not None:
            with suppress(BrokenPipeError):  # the driver has seen enough
                fault.steps.send(step)
        if begins and step == fault.step:
            self.strike()
        output = super().loss(model, batch, counts, step)
        if step == fault.step and fault.kind == "NaN loss":
            return StepOutput({"fit": output.losses["fit"] * float("nan")}, output.metrics)
        if step == fault.step and fault.kind == "NaN gradient":
            output.losses["fit"].register_hook(lambda gradient: gradient * float("nan"))
        return output

    def strike(self) -> None:
        match self.fault.kind:
            case "full disk":
                assert self.fault.path is not None
                _fill(self.fault.path)
            case "file size limit":
                hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(self.fault.amount), hard))
            case "clock":
                _move_clock(self.fault.amount)
            case "killed in the first step":
                os.kill(os.getpid(), signal.SIGKILL)
            case "frozen":
                os.kill(os.getpid(), signal.SIGSTOP)

    def after_step(
        self, model: Model, step: int, applied: Tensor, carry: dict[str, Tensor]
    ) -> None:
        super().after_step(model, step, applied, carry)
        assert torch.isfinite(model.first.weight).all(), "NaN reached the weights"
        if self.seen == self.fault.step and self.fault.kind == "non-finite update":
            with torch.no_grad():
                model.last.weight += float("inf")  # as an optimizer that divides by zero


def _die_if(fault: Fault, kind: str) -> None:
    if fault.kind == kind:
        os.kill(os.getpid(), signal.SIGKILL)


def _fill(folder: Path) -> None:
    """Take all the space that is left."""
    with open(folder / "filler", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def _move_clock(seconds: float) -> None:
    now, nanoseconds = time.time, time.time_ns
    time.time = lambda: now() + seconds
    time.time_ns = lambda: nanoseconds() + int(seconds * 1e9)


def _client_without_server(is_gone: Callable[[], bool]) -> types.ModuleType:
    """A stand-in for the package wandb, whose every call fails once the server is gone."""

    def call(*_: Any, **__: Any) -> None:
        if is_gone():
            raise ConnectionError("the server does not answer")

    run = types.SimpleNamespace(define_metric=call, log=call, finish=call)

    def init(**_: Any) -> types.SimpleNamespace:
        call()
        return run

    module = types.ModuleType("wandb")
    module.init, module.Settings, module.Image = init, dict, dict  # type: ignore[attr-defined]
    return module
