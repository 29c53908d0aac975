"""The engine's own build and step on fake tensors: what a step would hold, and what it computes.

Nothing is computed and no device is needed: `overt.engine.build` builds, `Trainer.train_step` runs,
and a dispatch mode adds up the memory. Global switches that `build` sets are put back.
"""

from __future__ import annotations

import dataclasses
import gc
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.fsdp._fully_shard._fsdp_param as fsdp_storage
import torch.nn.parallel.distributed as ddp_checks
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from overt.checkpoint import random_state
from overt.config import Config, build_recipe
from overt.distributed import World
from overt.engine import loader
from overt.engine.build import build
from overt.engine.loader import MicroBatch, StepBatch
from overt.engine.order import START
from overt.engine.strategy import fsdp
from overt.engine.trainer import Trainer
from overt.garbage import no_collection
from overt.nested import map_tensors
from overt.recipe import Recipe
from overt.tools.plan.cuda_rules import Answers, as_on_cuda
from overt.tools.plan.live_memory import ACTIVATIONS, LiveMemory

STEPS_PLANNED = 1000  # only for schedules of the recipe's own, which need to know an end


@dataclass(frozen=True)
class Model:
    """Numbers of a model that do not depend on the batch."""

    parameters: int  # that are trained
    frozen: int  # further parameters
    saved: int  # bytes of weights in a checkpoint, which may leave out frozen ones
    blocks: int
    unit_sizes: tuple[int, ...]  # parameters of each unit that FSDP gathers on its own
    compile_units: int = 0  # modules that training.compile=blocks compiles


@dataclass(frozen=True)
class StepMemory:
    """Bytes on one device during a step; parts are those at the peak."""

    batch_size: int
    peak: int
    parameters: int
    frozen: int  # parameters that are not trained, buffers, averages of weights
    optimizer: int
    gradients: int  # all of them; at the peak some may not exist yet, or no more
    batch: int
    activations: int  # at the peak, and whatever else is there only within a step
    transient: int  # the most that a step holds besides weights, optimizer and gradients
    flops: int


class ExampleLoader:
    """Hands out one example batch in place of a loader; nothing is read."""

    length = steps_per_epoch = STEPS_PLANNED
    position = START

    def __init__(self, batch: Any, size: int, world_size: int) -> None:
        micro_batch = MicroBatch((), batch, is_padding=False)
        self.step_batch = StepBatch([micro_batch], size * world_size, 0.0)

    def next_step(self) -> StepBatch:
        return self.step_batch


class EngineStep:
    """Measures one step of a recipe on one of `devices` ranks, of which only sizes are known."""

    def __init__(
        self,
        config: Config,
        recipe: Recipe,
        checkpointing: bool,
        strategy: str = "single",
        devices: int = 1,
    ) -> None:
        self.config, self.recipe, self.devices = config, recipe, devices
        self.training = dataclasses.replace(
            config.training,
            strategy=strategy,
            activation_checkpointing=checkpointing,
            # Only a run can tell what compiled code keeps, and a recording needs a device.
            compile="none",
            cuda_graph=False,
            memory_snapshot=False,
            memory_gib=1.0,  # not asked for: see `fit_memory` below
            profile_steps=None,
            batch_size=1,
            accumulation_steps=1,
            global_batch_size=None,
        )
        self.numbers = self._count(self._build_model())

    def _build_model(self) -> nn.Module:
        """Build with real tensors, since models read values while they are built."""
        with without_first_weights(), torch.random.fork_rng(devices=[]):
            return self.recipe.build_model()

    def _count(self, model: nn.Module) -> Model:
        units = self.recipe.shard_units(model)
        sizes = [(value.numel(), value.requires_grad) for value in model.parameters()]
        return Model(
            sum(size for size, trained in sizes if trained),
            sum(size for size, trained in sizes if not trained),
            sum(value.nbytes for value in model.state_dict().values()),
            len(self.recipe.blocks(model)),
            tuple(sum(value.numel() for value in unit.parameters()) for unit in units),
            len(self.recipe.compile_units(model)),
        )

    def run(self, batch: Any, size: int) -> StepMemory:
        """Return memory and FLOPs of one step on this batch of real tensors."""
        training = dataclasses.replace(self.training, batch_size=size)
        config = dataclasses.replace(
            self.config,
            training=training,
            checkpoint=dataclasses.replace(
                self.config.checkpoint, init_from=None, init_skip=[], metric_name="planned"
            ),
            logging=dataclasses.replace(
                self.config.logging, norms_depth=None, histograms_every_steps=None, trackers=[]
            ),
        )
        world = World(0, self.devices, 0, torch.device("cuda", 0))
        with tempfile.TemporaryDirectory() as folder:  # of a run that writes nothing
            return self._measure(dataclasses.replace(config, output_dir=folder), world, batch, size)

    def _measure(self, config: Config, world: World, batch: Any, size: int) -> StepMemory:
        memory, model = ShardMemory(), self._build_model()  # a build changes its model for good
        with (
            random_state.undisturbed(),
            switches_kept(),
            planned_recipe(self.recipe),
            _fakes(memory, self.devices) as mode,
            warnings.catch_warnings(),
        ):
            # Copying a model looks at them; torch takes that for a mistake.
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
            with mode:
                make_fake(model)
            with (
                patch.object(self.recipe, "build_model", lambda: model),
                # What is free here says nothing about the device that is planned for.
                patch.object(self.recipe, "fit_memory", lambda samples, gib: None),
            ):
                example: Any = ExampleLoader(batch, size, self.devices)
                parts = build(config, self.recipe, world, loader=example, loads_weights=False)
            trainer = Trainer(config, self.recipe, world, parts=parts)
            if trainer.wrapping.ddp is not None:
                # In place of an all-reduce, whose fake result DDP would refuse.
                reduced = lambda state, bucket: _finished(bucket.buffer())  # noqa: E731
                trainer.wrapping.ddp.register_comm_hook(None, reduced)
            self._assign(trainer, memory)
            # At step 0, or a round one, recipes may look closer than at most.
            trainer.state.step = self.recipe.largest_step()
            # When Python collects by itself depends on all that ran before: tensors that refer to
            # each other would count or not.
            gc.collect()
            with patch.object(self.recipe, "loss", self._counted(memory)), no_collection():
                memory.reset()
                held = {name: memory.live[name] for name in ("parameters", "frozen", "optimizer")}
                trainer.train_step()
            return StepMemory(
                batch_size=size,
                peak=memory.peak,
                gradients=memory.gradient_bytes(map(local, trainer.parameters)),
                batch=memory.at_peak["batch"],
                activations=memory.at_peak[ACTIVATIONS],
                transient=memory.peak_besides_gradients - sum(held.values()),
                flops=memory.flops,
                **held,
            )

    def _assign(self, trainer: Trainer, memory: LiveMemory) -> None:
        """Name what is held between steps, the state of the optimizer included."""
        trained = {id(value) for value in trainer.parameters}
        memory.assign(map(local, trainer.parameters), "parameters")
        for owner in filter(None, (trainer.model, trainer.average)):
            tensors = [*owner.parameters(), *owner.buffers()]
            memory.assign((local(value) for value in tensors if id(value) not in trained), "frozen")
        for parameter in trainer.parameters:
            parameter.grad = torch.empty_like(parameter)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        states = (value for state in trainer.optimizer.state.values() for value in state.values())
        memory.assign((local(v) for v in states if isinstance(v, Tensor)), "optimizer")

        def has_gradient(parameter: Tensor) -> None:
            assert parameter.grad is not None
            memory.assign([local(parameter.grad)], "gradients")

        for parameter in trainer.parameters:
            parameter.register_post_accumulate_grad_hook(has_gradient)  # type: ignore[no-untyped-call]

    def _counted(self, memory: LiveMemory) -> Any:
        """Return the recipe's loss; what it is given is the batch."""
        loss = self.recipe.loss

        def run(model: Any, batch: Any, counts: dict[str, Tensor], step: int) -> Any:
            def assign(tensor: Tensor) -> Tensor:
                memory.assign([tensor], "batch")
                return tensor

            map_tensors(batch, assign)
            return loss(model, batch, counts, step)

        return run


class ShardMemory(LiveMemory):  # type: ignore[no-untyped-call]
    """Counts the local tensors of sharded ones, and gathered weights while they are there."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # their local tensors come by themselves
        return super().__torch_dispatch__(function, types, args, kwargs)

    def add(self, tensor: Tensor, purpose: str) -> None:
        if isinstance(tensor, FakeTensor) and tensor.fake_device.type != "meta":
            super().add(tensor, purpose)

    def assign(self, tensors: Any, purpose: str) -> None:
        fakes = [value for value in tensors if isinstance(value, FakeTensor)]
        super().assign([value for value in fakes if value.fake_device.type != "meta"], purpose)


class EngineReads(TorchFunctionMode):
    """Answers what the engine reads on the host as in a good step; a recipe's read still raises."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.to and type(args[0]) is Tensor and str(args[1]).startswith("cuda"):
            return torch.empty_like(args[0], device="cpu")  # a copy on the stand-in device
        reads = (Tensor.__bool__, Tensor.__float__, Tensor.item)
        if function in reads and isinstance(args[0], FakeTensor) and _engine_asks():
            if function is Tensor.__bool__:
                return True
            # The scaler reads how many gradients were infinite.
            in_scaler = "grad_scaler" in sys._getframe(1).f_code.co_filename
            return 0.0 if in_scaler else 1.0
        return function(*args, **kwargs)


@contextmanager
def planned_recipe(recipe: Recipe) -> Iterator[None]:
    """Let the recipe take its example batch; afterward it is as it was."""
    with (
        patch.object(recipe, "stackable", True),  # example samples have one shape
        patch.object(recipe, "prepares_beside_step", False),  # nothing runs beside a fake step
    ):
        yield


def recipe_on_cuda(config: Config, ranks: int = 1) -> Recipe:
    """Build the recipe as one of `ranks` ranks with a CUDA device; neither has to exist.

    What a recipe settles when it is built may depend on both.
    """
    with ExitStack() as stack:
        if ranks > 1:
            stack.enter_context(_fake_ranks(ranks, ShardMemory()))
        stack.enter_context(patch.object(torch.cuda, "is_available", lambda: True))
        stack.enter_context(Answers())
        return build_recipe(config)


def _engine_asks() -> bool:
    frame = sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(("torch", __name__)):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith("overt.engine")


@contextmanager
def _fakes(memory: ShardMemory, devices: int) -> Iterator[FakeTensorMode]:
    """Everything made within is fake, on CUDA to whoever asks, and counted."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with ExitStack() as stack:
        loader._number.cache_clear()
        stack.callback(loader._number.cache_clear)  # it would keep a fake tensor
        if devices > 1:
            stack.enter_context(_fake_ranks(devices, memory))
        for name, stand_in in {"to": _itself, "float": _itself}.items():
            stack.enter_context(patch.object(nn.Module, name, stand_in))
        stack.enter_context(patch.object(torch.cuda, "Event", _Event))
        stack.enter_context(patch.object(torch.cuda, "get_rng_state", lambda *_: torch.empty(0)))
        stack.enter_context(patch.object(torch.cuda, "set_rng_state", lambda *_: None))
        scaler = "torch.cuda.amp.common.amp_definitely_not_available"
        stack.enter_context(patch(scaler, lambda: False))
        for context in (mode, as_on_cuda(), EngineReads(), memory):
            stack.enter_context(context)
        yield mode


@contextmanager
def _fake_ranks(devices: int, memory: ShardMemory) -> Iterator[None]:
    """A process group of which only this rank exists."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def mesh(world: World) -> DeviceMesh:
        with unset_fake_temporarily():
            return init_device_mesh("cpu", (world.world_size,))

    def resized(resize: Any) -> Any:
        def call(tensor: Tensor) -> None:
            resize(tensor)
            memory.resize(tensor)

        return call

    dist.init_process_group("fake", rank=0, world_size=devices, store=FakeStore())
    try:
        with ExitStack() as stack:
            stack.enter_context(patch.object(fsdp, "make_mesh", mesh))
            for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
                stack.enter_context(patch.object(ddp_checks, name, lambda *_, **__: None))
            for name in ("alloc_storage", "free_storage"):
                stand_in = resized(getattr(fsdp_storage, name))
                stack.enter_context(patch.object(fsdp_storage, name, stand_in))
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def switches_kept() -> Iterator[None]:
    """Put torch's global switches back as they were."""
    precision = torch.get_float32_matmul_precision()
    cudnn, tf32 = torch.backends.cudnn, torch.backends.cudnn.allow_tf32
    benchmark, repeatable = cudnn.benchmark, torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        cudnn.allow_tf32, cudnn.benchmark = tf32, benchmark
        torch.use_deterministic_algorithms(repeatable, warn_only=warns)


@contextmanager
def without_first_weights() -> Iterator[None]:
    """Skip initialization: drawing billions of unused random numbers is slow."""

    def leave(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return tensor

    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(nn.init, name, leave))
        yield


def make_fake(model: nn.Module) -> None:
    """Replace parameters and buffers by fake ones, in place; those that were one stay one."""
    fakes: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in fakes:
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            is_parameter = isinstance(tensor, nn.Parameter)
            fakes[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        return fakes[id(tensor)]

    for module in model.modules():
        for owned in (module._parameters, module._buffers):
            for name, value in owned.items():
                if value is not None:
                    owned[name] = fake(value)  # type: ignore[assignment]


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor."""
    shard: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return shard


def _finished(result: Tensor) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(result)
    return future


def _itself(module: nn.Module, *arguments: Any, **named: Any) -> nn.Module:
    return module


class _Event:
    """An event of a device that does not exist."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        pass

    def record(self, *arguments: Any) -> None:
        pass
