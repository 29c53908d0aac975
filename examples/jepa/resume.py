"""Interrupt a run, go on with it, and see that nothing was lost.

    python examples/jepa/resume.py training.num_steps=40

Nothing has to be done for a resume but to start the same run again: `checkpoint.resume=auto` finds
the newest good checkpoint. The weights are those of a run without interruption, to the last bit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from overt.config import build_recipe, load


def main(words: Sequence[str]) -> bool:
    """Whether the interrupted and the straight run ended with the same weights."""
    straight = run("jepa_straight", words)
    run("jepa_interrupted", words, stops_after=0.5)
    resumed = run("jepa_interrupted", words)  # the same call again
    same = same_weights(straight, resumed)
    print(f"interrupted and straight run end with {'the same' if same else 'different'} weights")
    return same


def run(name: str, words: Sequence[str], stops_after: float = 1.0) -> Path:
    """Train, or go on; the last checkpoint. `stops_after` plays the power cut."""
    from overt import Trainer, init_distributed

    config = load(
        ["recipe=hjepa_tiny", "training.evaluate_at_start=false", *words, f"exp_name={name}"]
    )
    trainer = Trainer(config, build_recipe(config), init_distributed(config.training.device))
    trainer.total_steps = round(trainer.total_steps * stops_after)
    trainer.train()
    latest = trainer.manager.get_latest_checkpoint()
    assert latest is not None, "a run saves after its last step"
    return latest


def same_weights(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same numbers."""
    from safetensors.torch import load_file

    first, second = (load_file(path / "model.safetensors") for path in (one, other))
    return first.keys() == second.keys() and all(first[key].equal(second[key]) for key in first)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
