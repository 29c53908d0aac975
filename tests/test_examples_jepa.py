"""The H-JEPA examples run, and do what they say."""

import importlib
import sys
from pathlib import Path

import pytest
from toy_runs import HERE, read_rows

from overt.config import build_recipe, load
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer

EXAMPLES = HERE.parent / "examples"
PACKAGE = str(EXAMPLES / "jepa")
SMALL = [
    "data.synthetic.classes=4", "data.synthetic.per_class=9", "evaluation.k=3",
    "training.batch_size=8", "training.num_steps=4", "training.num_workers=0",
    "training.device=cpu", "logging.every_steps=1", "logging.use_tensorboard=false",
]  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> list[str]:
    return [*SMALL, f"data.root={tmp_path / 'images'}", f"output_dir={tmp_path / 'runs'}"]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert "jepa" not in sys.modules or sys.modules["jepa"].__file__.startswith(str(EXAMPLES))


def example(name: str):
    return importlib.import_module(f"jepa.{name}")


def test_basic_training(small: list[str], tmp_path: Path) -> None:
    scores = example("basic_training").main(small)
    assert 0 <= scores["knn_top1"] <= 1
    assert (tmp_path / "runs/jepa_basic/checkpoints/latest").exists()


def test_resume(small: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert example("resume").main(small)
    assert "at step 2" in capsys.readouterr().out  # where it went on


def test_hierarchical_rates(small: list[str], tmp_path: Path) -> None:
    rates = example("hierarchical_rates").main([*small, "training.num_steps=20"])
    assert rates == pytest.approx({0: 0.0, 1: 1e-3, 2: 5e-4}, rel=1e-3)  # level 0 warms up
    assert read_rows(tmp_path / "runs/jepa_rates")[-1]["step"] == 20


def test_checkpoint_management(tmp_path: Path) -> None:
    assert example("checkpoints").main(tmp_path / "saved") == {"val_loss": 0.4}
    kept = {path.name for path in (tmp_path / "saved").glob("epoch_*")}
    assert kept == {"epoch_0001", "epoch_0003", "epoch_0004"}  # two best, and the last


def train(recipe: str, words: list[str]) -> Path:
    config = load([f"recipe={recipe}", *words], packages=[PACKAGE])
    Trainer(config, build_recipe(config), init_distributed("cpu")).train()
    return config.run_dir


def test_custom_monitoring(small: list[str]) -> None:
    whole = train("jepa_watched", [*small, "exp_name=whole", "training.global_batch_size=8"])
    parts = train(
        "jepa_watched",
        [*small, "exp_name=parts", "training.global_batch_size=8", "training.batch_size=2"],
    )
    names = [f"train/cosine_h{level}" for level in range(3)]
    steps = [[row for row in read_rows(run) if "train/loss" in row] for run in (whole, parts)]
    assert len(steps[0]) == 4
    for one, other in zip(*steps, strict=True):
        for name in names:
            assert -1 <= one[name] <= 1
            assert other[name] == pytest.approx(one[name], abs=1e-4)


def test_custom_loss(small: list[str]) -> None:
    rows = read_rows(train("jepa_cosine", small))
    assert all(0 <= row["train/loss_h0"] <= 2 for row in rows if "train/loss" in row)


def test_the_control_s_targets_are_those_of_the_next_image(small: list[str]) -> None:
    import torch

    recipe = build_recipe(load(["recipe=jepa_misled", "data.root=x"], packages=[PACKAGE]))
    model = recipe.build_model()
    images = torch.rand(3, 3, 32, 32)
    rolled = model.encode_targets(images).view(3, 64, -1)
    true = super(type(model), model).encode_targets(images).view(3, 64, -1)
    torch.testing.assert_close(rolled, true.roll(1, dims=0))
