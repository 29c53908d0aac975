"""One training step on fake tensors: what it would hold on the device, and what it computes.

`FakeStep` does in the same order what `overt.engine.trainer.Trainer.train_step` does, and offers
to a recipe's `custom_step` what the trainer does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from overt.config import Config
from overt.distributed import World
from overt.engine.guard import poison_if_nonfinite
from overt.engine.loader import MicroBatch
from overt.engine.optimizer import build_optimizer, clip_gradients
from overt.engine.precision import AUTOCAST
from overt.engine.strategy.blocks import need_blocks, recompute_in_backward
from overt.engine.trainable import Only, Trainable
from overt.nested import map_tensors
from overt.nn.ema import make_average, update_ema
from overt.recipe import Recipe, StepOutput
from overt.tools.plan.cuda_rules import as_on_cuda
from overt.tools.plan.live_memory import ACTIVATIONS, LiveMemory

STEPS_PLANNED = 1000  # only for schedules of the recipe's own, which need to know an end


@dataclass(frozen=True)
class Model:
    """Numbers of a model that do not depend on the batch."""

    parameters: int  # that are trained
    frozen: int  # further parameters
    blocks: int
    unit_sizes: tuple[int, ...]  # parameters of each part that FSDP gathers by itself


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one device during a step on its own; parts are those at the peak."""

    batch_size: int
    peak: int
    parameters: int
    frozen: int  # parameters that are not trained, buffers, averages of weights
    optimizer: int
    gradients: int  # all of them; at the peak some may not exist yet, or no more
    batch: int
    activations: int  # at the peak, and whatever else is there only within a step
    transient: int  # the most that a pass holds besides weights, optimizer and gradients
    transient_in_update: int  # likewise while weights are updated and averaged
    flops: int


@contextmanager
def without_first_weights() -> Iterator[None]:
    """First weights are never looked at: drawing billions of them would take its time."""

    def leave(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tensor

    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(nn.init, name, leave))
        yield


def make_fake(model: nn.Module) -> None:
    """Replace parameters and buffers by fake ones, in place; those that were one stay one."""
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        return made[id(tensor)]

    for module in model.modules():
        for owned in (module._parameters, module._buffers):
            for name, value in owned.items():
                if value is not None:
                    owned[name] = fake(value)  # type: ignore[assignment]


class FakeStep:
    """A recipe's step on one device, of which only sizes are known."""

    def __init__(self, config: Config, recipe: Recipe, checkpointing: bool) -> None:
        self.config, self.recipe = config, recipe
        self.device = torch.device("cuda", 0)
        self.world = World(0, 1, 0, torch.device("cpu"))
        self.dtype = AUTOCAST.get(config.training.precision)
        # At step 0, or a round one, recipes may look closer than at most.
        self.step = recipe.largest_step()
        self.memory = LiveMemory()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        recipe.begin(STEPS_PLANNED, STEPS_PLANNED)
        averaged = config.training.ema_momentum is not None
        with without_first_weights(), torch.random.fork_rng(devices=[]):
            self.model = recipe.build_model()
            self.average = make_average(self.model) if averaged else None
        blocks = recipe.blocks(self.model)
        units = recipe.shard_units(self.model)
        trained = [value for value in self.model.parameters() if value.requires_grad]
        self.numbers = Model(
            sum(value.numel() for value in trained),
            sum(value.numel() for value in self.model.parameters() if not value.requires_grad),
            len(blocks),
            tuple(sum(value.numel() for value in unit.parameters()) for unit in units),
        )
        with self.fakes():
            for owner in filter(None, (self.model, self.average)):
                make_fake(owner)
            if checkpointing:
                recompute_in_backward(need_blocks(blocks, "training.activation_checkpointing"))
            groups = recipe.parameter_groups(self.model)
            self.optimizer = build_optimizer(config.optimizer, self.model, groups)
            self.trainable = Trainable(self.model)
            self.parameters = self.trainable.parameters
            self.memory.assign(self.parameters, "parameters")
            for owner in filter(None, (self.model, self.average)):
                rest = [*owner.parameters(), *owner.buffers()]
                chosen = {id(value) for value in self.parameters}
                self.memory.assign((v for v in rest if id(v) not in chosen), "frozen")
            self._make_optimizer_state()
        for parameter in self.parameters:
            hook = self._has_gradient
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    @contextmanager
    def fakes(self) -> Iterator[None]:
        """Everything that is made within is fake, on CUDA to whoever asks, and counted."""
        with self.mode, as_on_cuda(), self.memory:
            yield

    def _make_optimizer_state(self) -> None:
        for parameter in self.parameters:
            parameter.grad = torch.empty_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        states = (value for state in self.optimizer.state.values() for value in state.values())
        self.memory.assign((v for v in states if isinstance(v, Tensor)), "optimizer")

    def _has_gradient(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.memory.assign([parameter.grad], "gradients")

    def _is_batch(self, tensor: Tensor) -> Tensor:
        self.memory.assign([tensor], "batch")
        return tensor

    def run(self, batch: Any, size: int) -> StepMemory:
        """The memory and FLOPs of a step on this batch of real tensors, as a loader makes it."""
        with self.fakes():
            self.memory.reset()
            counts = self._counts(batch, size)
            before = {
                name: self.memory.live[name] for name in ("parameters", "frozen", "optimizer")
            }
            static = sum(before.values())
            micro = [MicroBatch((), batch, is_padding=False)]
            if self.recipe.custom_step(self, micro, counts) is None:
                self.add_gradients(micro, counts)
                self.update()
            flops, after_pass, at_peak = self.memory.flops, self.memory.peak, self.memory.at_peak
            transient = self.memory.peak_besides_gradients - static
            self.memory.reset()
            applied = torch.ones((), device=self.device)
            if self.average is not None:
                update_ema(self.average, self.model, 0.5, applied)
            self.recipe.after_step(self.model, 1, applied, {})
            in_update = self.memory.peak_besides_gradients - static
            if self.memory.peak > after_pass:
                after_pass, at_peak = self.memory.peak, self.memory.at_peak
            return StepMemory(
                batch_size=size,
                peak=after_pass,
                gradients=self.memory.gradient_bytes(self.parameters),
                batch=at_peak["batch"],
                activations=at_peak[ACTIVATIONS],
                transient=transient,
                transient_in_update=in_update,
                flops=flops,
                **before,
            )

    def _counts(self, batch: Any, size: int) -> dict[str, Tensor]:
        counts = self.recipe.counts(batch)
        samples = {"samples": torch.full((), float(size))}
        return samples | {name: count.float() for name, count in counts.items()}

    # What a recipe's own step finds in a trainer.

    def add_gradients(
        self, micro_batches: list[MicroBatch], counts: dict[str, Tensor], only: Only = None
    ) -> list[StepOutput]:
        outputs = []
        with self.trainable.gradients_for(only):
            for micro in micro_batches:
                batch = self.to_device(micro.batch)
                with self.autocast():
                    output = self.recipe.loss(self.model, batch, counts, self.step)
                poison_if_nonfinite(output.total).backward()  # type: ignore[no-untyped-call]
                outputs.append(output)
        return outputs

    def update(self, only: Only = None) -> tuple[Tensor, Tensor]:
        with self.trainable.only_gradients_of(only) as parameters:
            norm = clip_gradients(parameters, self.config.training.grad_clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return norm, torch.ones(())

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", self.dtype) if self.dtype else nullcontext()

    def to_device(self, batch: Any) -> Any:
        """The batch as the loss takes it; what is on the host counts nothing."""
        batch = map_tensors(batch, lambda tensor: torch.empty_like(tensor, device="cpu"))
        map_tensors(batch, self._is_batch)
        return map_tensors(self.recipe.on_device(batch), self._is_batch)
