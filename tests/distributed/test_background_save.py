"""While a checkpoint is being written all processes train on, and it holds what was saved."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toy_runs import same_bits, toy_config, train_toy, weights

RUNS = Callable[..., list[Any]]
SETTINGS = ["checkpoint.every_steps=4", "checkpoint.keep_last_n=9", "training.ema_momentum=0.9"]
SECONDS = 60.0


def train_while_writing(folder: Path) -> list[tuple[int, int]]:
    """Each write waits for two more steps; when it began, and when it went on."""
    from overt.checkpoint import writing
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    config = toy_config(folder, *SETTINGS, "checkpoint.background=true")
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    inner, seen = writing.write_folder, []

    def write(*arguments: Any, **named: Any) -> Any:
        began, give_up = trainer.state.step, time.monotonic() + SECONDS
        wanted = min(began + 2, trainer.total_steps)
        while trainer.state.step < wanted and time.monotonic() < give_up:
            threading.Event().wait(0.01)
        seen.append((began, trainer.state.step))
        return inner(*arguments, **named)

    writing.write_folder = write
    trainer.train()
    return seen


def test_steps_with_collectives_go_on_during_a_write(run_processes: RUNS, tmp_path: Path) -> None:
    seen, nothing = run_processes(train_while_writing, 2, tmp_path / "held")
    assert nothing == []  # only the main process writes
    assert [began for began, _ in seen] == [4, 8, 12]
    assert all(later >= min(began + 2, 12) for began, later in seen)
    run_processes(train_toy, 2, tmp_path / "plain", *SETTINGS, "checkpoint.background=false")
    for step in (4, 8, 12):
        for part in ("model", "optimizer", "ema"):
            one, other = (
                weights(tmp_path / name / "toy", step, part) for name in ("held", "plain")
            )
            assert same_bits(one, other), (step, part)
