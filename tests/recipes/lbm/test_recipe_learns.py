"""LBM learns: after a minute of training it follows unseen points better than standing still."""

from pathlib import Path

import pytest

from overt.config import build_recipe, load
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_minute_of_training_beats_points_that_never_move(tmp_path: Path) -> None:
    config = load(
        [
            "recipe=lbm_tiny",
            f"data.root={tmp_path / 'data'}",
            f"output_dir={tmp_path}",
            "data.synthetic.count=56",
            "data.held_out=8",
            "model.embed_dim=32",
            "training.batch_size=2",
            "training.num_steps=150",
            "training.evaluate_every_steps=null",
            "training.num_workers=0",
            "training.device=cpu",
            "logging.use_tensorboard=false",
        ]
    )
    scores = Trainer(config, build_recipe(config), init_distributed("cpu")).train()
    within, still = (scores[f"{prefix}average_pts_within_thresh"] for prefix in ("", "static_"))
    assert within > 1.3 * still
    assert scores["average_jaccard"] > 1.3 * scores["static_average_jaccard"]
