"""The user's own proof that a run survives: trained, killed, resumed, and compared bit for bit."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from overt.config.overrides import quoted
from overt.errors import ConfigError, OvertError
from overt.tools.proof.compare import (
    compare_checkpoints,
    largest_relative,
    loss_difference,
    read_losses,
)
from overt.tools.proof.processes import Ended, Group

GRACE = 15.0  # seconds that the other processes have once one was killed, as under a launcher


@dataclass(frozen=True)
class Plan:
    """The training runs of a proof."""

    overrides: Sequence[str]
    packages: Sequence[str]
    config_file: str | None
    folder: Path
    steps: int
    save_every: int
    processes: int
    deadline: float  # seconds for each of the runs

    def words(self, name: str, *overrides: str) -> list[str]:
        """Return what comes after `overt train`: short, logged at every step, to its own folder."""
        packages = [word for package in self.packages for word in ("--package", package)]
        config = [] if self.config_file is None else ["--config", self.config_file]
        return [
            *packages,
            *config,
            *self.overrides,
            f"output_dir={quoted(str(self.folder))}",
            f"exp_name={name}",
            f"training.num_steps={self.steps}",
            "training.num_epochs=null",
            "logging.every_steps=1",
            "logging.use_wandb=false",
            "logging.use_tensorboard=false",
            f"checkpoint.every_steps={self.save_every}",
            "checkpoint.resume=auto",
            *overrides,
        ]

    def last_checkpoint(self, name: str) -> Path:
        return self.folder / name / "checkpoints" / f"step_{self.steps:08d}"


class Verdict(NamedTuple):
    """`difference` is None where the proof succeeded; `facts` say what was done."""

    facts: dict[str, str]
    difference: str | None


def choose_kill(
    kill_at: str, steps: int, save_every: int, processes: int, seed: int
) -> tuple[int, int]:
    """After which step and on which rank the kill comes, by the seed; after the first save."""
    rng = random.Random(seed)
    first = min(save_every + 1, steps - 1)
    step = rng.randint(first, steps - 1)
    victim = rng.randrange(processes)
    if kill_at != "random":
        if not kill_at.isdecimal() or not 0 < int(kill_at) < steps:
            raise ConfigError(f"--kill-at {kill_at}; use random, or 1 to {steps - 1}")
        step = int(kill_at)
    return step, victim


def prove_resume(plan: Plan, kill_at: int, victim: int, say: Callable[[str], None]) -> Verdict:
    """Train undisturbed; train again, kill, resume; compare the two last checkpoints."""
    facts = {}
    ended = _train(plan, "undisturbed", plan.processes)
    _expect_success(plan, "undisturbed", ended)
    facts["undisturbed"] = f"{plan.steps} steps in {ended.seconds:.1f} s"
    say(f"undisturbed  {facts['undisturbed']}")

    ended = _train(plan, "killed", plan.processes, kill_at, victim)
    if ended.codes[victim] != -signal.SIGKILL:
        raise OvertError(
            f"rank {victim} ended with code {ended.codes[victim]} before it could be "
            f"killed; its output is in {plan.folder / 'killed.log'}"
        )
    newest = _newest_step(plan.folder / "killed")
    facts["killed"] = f"rank {victim} by SIGKILL before step {kill_at + 1}, saved: step {newest}"
    say(f"killed       {facts['killed']}")

    ended = _train(plan, "killed", plan.processes)
    _expect_success(plan, "killed", ended)
    facts["resumed"] = f"from step {newest} to {plan.steps} in {ended.seconds:.1f} s"
    say(f"resumed      {facts['resumed']}")

    ends = (plan.last_checkpoint("undisturbed"), plan.last_checkpoint("killed"))
    compared = compare_checkpoints(*ends)
    losses = [read_losses(plan.folder / name) for name in ("undisturbed", "killed")]
    counts = ", ".join(
        f"{count} of {name.removesuffix('.safetensors')}"
        for name, count in compared.tensors.items()
    )
    facts["compared"] = f"tensors: {counts}; {len(losses[0])} losses"
    say(f"compared     {facts['compared']}")
    return Verdict(facts, compared.difference or loss_difference(*losses))


def prove_world(
    plan: Plan, batch_size: int, tolerance: float, say: Callable[[str], None]
) -> Verdict:
    """One process that accumulates against as many processes as micro-batches: the same losses."""
    total = batch_size * plan.processes
    sizes = (f"training.global_batch_size={total}", f"training.batch_size={batch_size}")
    split = (*sizes, "training.accumulation_steps=null")
    facts, curves = {}, []
    for name, count in (("accumulated", 1), ("spread", plan.processes)):
        ended = _train(plan, name, count, overrides=split)
        _expect_success(plan, name, ended)
        curves.append(read_losses(plan.folder / name))
        text = f"{count} process(es) x {plan.processes // count} accumulated x {batch_size}"
        facts[name] = f"{text} samples, {plan.steps} steps in {ended.seconds:.1f} s"
        say(f"{name:<12} {facts[name]}")
    if curves[0].keys() != curves[1].keys():
        return Verdict(facts, "the two runs logged different steps")
    worst, step = largest_relative(*curves)
    facts["compared"] = f"largest relative difference of the loss {worst:.1e}, at step {step}"
    say(f"compared     {facts['compared']}")
    if worst <= tolerance:
        return Verdict(facts, None)
    return Verdict(
        facts, f"the losses of step {step} differ by {worst:.1e}, more than {tolerance:g}"
    )


def _train(
    plan: Plan,
    name: str,
    processes: int,
    kill_at: int | None = None,
    victim: int | None = None,
    overrides: Sequence[str] = (),
) -> Ended:
    words = plan.words(name, *overrides)
    arguments = [(words, kill_at if rank == victim else None) for rank in range(processes)]
    group = Group(train, arguments, plan.folder / f"{name}.log")
    return group.wait(plan.deadline, grace=GRACE)


def train(words: list[str], kill_at: int | None) -> int:
    """Runs in each process: what `overt train` does, with an end before step `kill_at`."""
    from overt.engine.loader import StepBatch as Batch
    from overt.engine.loader import StepLoader
    from overt.train import main

    if kill_at is not None:
        fetch, left = StepLoader.next_step, kill_at

        def fetch_or_die(loader: StepLoader) -> Batch:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return fetch(loader)

        # Only this process, before its next step.
        StepLoader.next_step = fetch_or_die  # type: ignore[method-assign,assignment]
    return main(words)


def _expect_success(plan: Plan, name: str, ended: Ended) -> None:
    log = plan.folder / f"{name}.log"
    if ended.late:
        raise OvertError(
            f"the run did not end within {plan.deadline:.0f} s; raise --deadline or lower --steps. "
            f"Its output is in {log}"
        )
    if any(ended.codes):
        last = "\n  ".join(log.read_text(errors="replace").splitlines()[-5:])
        raise OvertError(f"the run ended with exit codes {ended.codes}; {log} ends with\n  {last}")


def _newest_step(run: Path) -> int:
    from overt.checkpoint import storage

    stored, _ = storage.scan(run / "checkpoints")
    return int(stored[-1].manifest["step"]) if stored else 0
