"""A learning rate for each level of the hierarchy.

    python examples/jepa/hierarchical_rates.py training.num_steps=40

The recipe puts the layers of each level into separate groups; a HierarchicalScheduler gives
each level its schedule. Level 0 is also everything that all levels share.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from overt.config import build_recipe, load
from overt.schedule import HierarchicalScheduler, create_lr_scheduler

COSINE = "_target_:overt.schedule.CosineScheduler,final_value:1e-6"
LEVELS = [
    # The options of the one schedule go,
    "~schedule.final_value",
    "~schedule.warmup_epochs",
    "~schedule.warmup_fraction",
    "~schedule.start_warmup_value",
    # and three come: each starts from optimizer.lr times its factor.
    "schedule._target_=overt.schedule.HierarchicalScheduler",
    f"+schedule.levels=[{{{COSINE},warmup_fraction:0.05}},{{{COSINE},base_factor:0.5}},"
    f"{{{COSINE},base_factor:0.25}}]",
]


def main(words: Sequence[str]) -> dict[int, float]:
    """Train with three rates; the rate of each level in the first step."""
    by_hand()
    # Without a separate layer a level has nothing to set a rate for: model.projection.
    own = ["recipe=hjepa_tiny", "exp_name=jepa_rates", "model.projection=predictions"]
    config = load([*own, *LEVELS, *words])
    from overt import Trainer, init_distributed
    from overt.engine.optimizer import set_learning_rate

    trainer = Trainer(config, build_recipe(config), init_distributed(config.training.device))
    set_learning_rate(trainer.optimizer, trainer.schedule, 0)
    rates = {group["level"]: group["lr"] for group in trainer.optimizer.param_groups}
    for level, rate in rates.items():
        print(f"level {level}: {rate:.2e} in the first step")
    trainer.train()
    return rates


def by_hand() -> None:
    """The same schedules outside of training: functions of the step."""
    steps = {"epochs": 10, "steps_per_epoch": 100}
    levels = HierarchicalScheduler(
        [
            create_lr_scheduler("adamw", 1e-3 * factor, 1e-6, warmup_epochs=1, **steps)
            for factor in (1.0, 0.5, 0.25)
        ]
    )
    for step in (0, 100, 999):
        print(f"step {step}: {', '.join(f'{rate:.2e}' for rate in levels(step))}")


if __name__ == "__main__":
    main(sys.argv[1:])
