"""Train a small H-JEPA from Python: what `overt train` does, in four statements.

    python examples/jepa/basic_training.py training.num_steps=100

Words are settings as on the command line. The data are textured shapes, made on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from overt.config import build_recipe, load


def main(words: Sequence[str]) -> dict[str, float]:
    """Train and return the last scores."""
    config = load(["recipe=hjepa_tiny", "exp_name=jepa_basic", *words])
    # The configuration is checked by now; torch is imported only here.
    from overt import Trainer, init_distributed

    trainer = Trainer(config, build_recipe(config), init_distributed(config.training.device))
    scores = trainer.train()
    print(f"k-NN accuracy {scores['knn_top1']:.3f}; everything else: {config.run_dir}")
    return scores


if __name__ == "__main__":
    main(sys.argv[1:])
