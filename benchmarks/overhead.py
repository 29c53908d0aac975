"""What the engine costs per step, against the loop one would write by hand.

    python benchmarks/overhead.py                 one process
    python benchmarks/overhead.py --processes 2   two Gloo processes, DistributedDataParallel in all

Four loops train the same two-layer perceptron on the same batches, taking turns in one run:
  bare       forward, backward, step
  plain      the same with gradient clipping, a schedule and a log line every 50 steps
  overt      the engine's train_step with its loader, guards, metrics and logs
  unwatched  the same trainer without what guards and watches it: its share of the step is shown
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from command import positive
from omegaconf import MISSING, OmegaConf
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

from overt.config import check
from overt.distributed import World, init_distributed, shutdown
from overt.engine.trainer import Trainer
from overt.recipe import Recipe, StepOutput

LOG_EVERY = 50


@dataclass
class Sizes:
    inputs: int = MISSING
    hidden: int = MISSING
    batch: int = MISSING


@dataclass
class Settings:
    model: Sizes = MISSING


@dataclass(frozen=True)
class Batch:
    images: Tensor  # (B, inputs)
    labels: Tensor  # (B,)


class ReadyBatches:
    """Whole batches as samples, so that all three loops get their data equally ready."""

    def __init__(self, sizes: Sizes) -> None:
        generator = torch.Generator().manual_seed(0)
        self.batches = [
            Batch(
                torch.randn(sizes.batch, sizes.inputs, generator=generator),
                torch.randint(10, (sizes.batch,), generator=generator),
            )
            for _ in range(16)
        ]

    def __len__(self) -> int:
        return 4096

    def sample(self, index: int, rng: np.random.Generator) -> Batch:
        return self.batches[index % len(self.batches)]


class Endless(IterableDataset[Batch]):
    """The same batches for the loops written by hand, in order."""

    def __init__(self, source: ReadyBatches) -> None:
        self.batches = source.batches

    def __iter__(self) -> Iterator[Batch]:
        return cycle(self.batches)


class Perceptron(Recipe):
    """The recipe of this benchmark."""

    def __init__(self, settings: Settings) -> None:
        self.sizes = settings.model

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(self.sizes.inputs, self.sizes.hidden),
            nn.ReLU(),
            nn.Linear(self.sizes.hidden, 10),
        )

    def build_dataset(self) -> ReadyBatches:
        return ReadyBatches(self.sizes)

    def collate(self, samples: list[Batch]) -> Batch:
        return samples[0]

    def loss(
        self, model: nn.Module, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        entropy = F.cross_entropy(model(batch.images), batch.labels)
        return StepOutput({"entropy": entropy / counts["samples"]})

    def evaluate(self, model: nn.Module, world: World) -> dict[str, float]:
        return {}


def build_trainer(sizes: Sizes, folder: str, world: World) -> Trainer:
    values = OmegaConf.create(engine_settings(sizes, folder))
    config = check(values, ["overt", "torch.optim", "benchmarks", "__main__", __name__])
    return Trainer(config, Perceptron(config.settings), world)


def engine_loop(trainer: Trainer, steps: int) -> None:
    """What `Trainer.train` does, for N steps."""
    for _ in range(steps):
        with trainer.profile.around(trainer.state.step + 1):
            trainer.train_step()
        if trainer.is_due(trainer.config.logging.every_steps):
            trainer.log()
        trainer.stop_if_asked()


def unwatched(trainer: Trainer) -> Callable[[int], None]:
    """The engine's loop without the guard against NaN, spikes, hangs, stragglers and signals.

    It is the same trainer: another one's tensors lie elsewhere in memory, which costs or saves a
    step more than what is to be measured.
    """
    applied = torch.ones(())

    def nothing(*arguments: object) -> None:
        return None

    stand_ins: dict[Any, dict[str, Callable[..., Any]]] = {
        trainer: {"stop_if_asked": nothing},
        trainer.heartbeat: {"at": nothing},
        trainer.guard: {"protect": lambda *_: applied, "remember": nothing},
        trainer.spikes: {"see": nothing, "allows": nothing, "add": lambda *_: []},
        trainer.pace: dict.fromkeys(("begin_forward", "end_forward", "add_step"), nothing),
    }

    def run(steps: int) -> None:
        for part, functions in stand_ins.items():
            vars(part).update(functions)  # before the methods of their class
        with patch("overt.engine.trainer.poison_if_nonfinite", lambda total: total):
            engine_loop(trainer, steps)
        for part, functions in stand_ins.items():
            for name in functions:
                del vars(part)[name]

    return run


def engine_settings(sizes: Sizes, folder: str) -> dict[str, Any]:
    """The defaults of every run, for this recipe: nothing is switched off."""
    from hydra import compose, initialize_config_dir

    from overt.config import CONF

    with initialize_config_dir(str(CONF), version_base="1.3"):
        values = compose("train", ["~recipe", "exp_name=overhead"])
    plain = OmegaConf.to_container(values)
    assert isinstance(plain, dict)
    plain["recipe"] = {
        "name": "overhead",
        "_target_": f"{__name__}.Perceptron",
        "settings": f"{__name__}.Settings",
    }
    plain["output_dir"] = folder
    plain["model"] = {"inputs": sizes.inputs, "hidden": sizes.hidden, "batch": sizes.batch}
    plain["training"] |= {
        "num_steps": 10**9,
        "batch_size": 1,
        "num_workers": 0,
        "device": "cpu",
        "grad_clip_norm": 1.0,
    }
    plain["logging"] |= {"every_steps": LOG_EVERY}
    return {str(key): value for key, value in plain.items()}


def hand_loop(sizes: Sizes, world: World, *, extras: bool, fused: bool) -> Callable[[int], None]:
    torch.manual_seed(0)
    recipe = Perceptron(Settings(model=sizes))
    model = recipe.build_model()
    wrapped = DistributedDataParallel(model) if world.world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused or None)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10**9)
    batches = iter(DataLoader(Endless(recipe.build_dataset()), batch_size=None))
    log = open(os.devnull, "w")  # noqa: SIM115  (lives as long as the loop)
    state = {"step": 0}

    def run(steps: int) -> None:
        for _ in range(steps):
            batch = next(batches)
            loss = F.cross_entropy(wrapped(batch.images), batch.labels)
            loss.backward()  # type: ignore[no-untyped-call]
            if extras:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            state["step"] += 1
            if extras:
                schedule.step()
                if state["step"] % LOG_EVERY == 0:
                    row = {"step": state["step"], "loss": loss.item(), "lr": schedule.get_last_lr()}
                    log.write(json.dumps(row) + "\n")
                    log.flush()

    return run


def measure(
    sizes: Sizes, rounds: int, steps: int, world: World, fused: bool
) -> dict[str, list[float]]:
    """Seconds per step of each loop in each round; they take turns, so noise hits all alike."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
    ):
        trainer = build_trainer(sizes, folder, world)
        trainer.preemption.listen()
        trainer.heartbeat.start()
        loops: dict[str, Callable[[int], None]] = {
            "bare": hand_loop(sizes, world, extras=False, fused=fused),
            "plain": hand_loop(sizes, world, extras=True, fused=fused),
            "overt": partial(engine_loop, trainer),
            "unwatched": unwatched(trainer),
        }
        times: dict[str, list[float]] = {name: [] for name in loops}
        for turn in range(rounds + 1):
            for name, loop in loops.items():
                began = time.perf_counter()
                loop(steps)
                if turn:  # the first round warms up
                    times[name].append((time.perf_counter() - began) / steps)
        trainer.close()
    return times


def report(times: dict[str, list[float]], sizes: Sizes, processes: int) -> str:
    medians = {name: statistics.median(values) for name, values in times.items()}
    # Round by round, since neighbors in time share the machine's moods.
    shares = [
        1 - without / whole
        for whole, without in zip(times["overt"], times["unwatched"], strict=True)
    ]
    ratio = medians["overt"] / medians["plain"]
    extra = (medians["overt"] - medians["plain"]) * 1e6
    lines = [
        f"{sizes.inputs}-{sizes.hidden}-10 perceptron, batch {sizes.batch}, {processes} "
        f"process(es), torch {torch.__version__}, {platform.machine()}, 1 thread each",
        *(f"  {name:<9} {seconds * 1e6:9.1f} us/step" for name, seconds in medians.items()),
        f"  overt / plain = {ratio:.3f}  ({extra:+.0f} us/step)   overt / bare = "
        f"{medians['overt'] / medians['bare']:.3f}",
        f"  guards and watching: {100 * statistics.median(shares):.1f} % of the engine's step",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=positive, default=1)
    parser.add_argument("--inputs", type=positive, default=784)
    parser.add_argument("--hidden", type=positive, default=512)
    parser.add_argument("--batch", type=positive, default=128)
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--steps", type=positive, default=200, help="per round and loop")
    parser.add_argument(
        "--fused", action="store_true", help="the fused AdamW in the hand-written loops too"
    )
    parser.add_argument("--limit", type=float, default=math.inf, help="fail above this ratio")
    options = parser.parse_args()
    if options.processes > 1 and "RANK" not in os.environ:
        return start_all(options.processes)
    torch.set_num_threads(1)
    world = init_distributed("cpu")
    sizes = Sizes(options.inputs, options.hidden, options.batch)
    times = measure(sizes, options.rounds, options.steps, world, options.fused)
    if world.is_main:
        print(report(times, sizes, world.world_size))
    shutdown()
    ratio = statistics.median(times["overt"]) / statistics.median(times["plain"])
    return int(ratio > options.limit)


def start_all(processes: int) -> int:
    """This script once per process, as torchrun would."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    children = []
    for rank in range(processes):
        variables = {**shared, "RANK": rank, "LOCAL_RANK": rank}
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:]]
        children.append(subprocess.Popen(command, env=environment))
    return max(abs(child.wait()) for child in children)


if __name__ == "__main__":
    sys.exit(main())
