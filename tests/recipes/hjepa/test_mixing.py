"""Terms that mix samples: those of the global batch, whatever the split."""

from collections.abc import Callable
from pathlib import Path

import pytest
from small_recipes import HJEPA_SPLIT, SMALL_HJEPA
from toy_runs import read_rows

from overt.recipes.hjepa.config import LOSS_TYPES


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jepa")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("combined", marks=pytest.mark.long),
        "hjepa_sigreg",
        pytest.param("cjepa", marks=pytest.mark.long),
    ],
)
def test_terms_that_mix_samples_mix_those_of_the_global_batch(
    kind: str, run_processes: Callable[..., list[None]], root: Path
) -> None:
    """One micro-batch, four, and two processes with two: covariances of parts do not add up."""
    settings = [
        *HJEPA_SPLIT, f"loss.type={kind}", "training.num_steps=4", "loss.sigreg_num_slices=8",
        "data.augmentation.horizontal_flip=true", "data.held_out=0.28",  # the fourth step is short
    ]  # fmt: skip
    SMALL_HJEPA.train(root, *settings, f"exp_name=whole_{kind}", "training.batch_size=8")
    SMALL_HJEPA.train(root, *settings, f"exp_name=four_{kind}", "training.batch_size=2")
    run_processes(
        SMALL_HJEPA.train, 2, root, *settings, f"exp_name=two_{kind}", "training.batch_size=2"
    )
    rows = [read_rows(root / "runs" / f"{name}_{kind}")[:4] for name in ("whole", "four", "two")]
    names = [key for key in rows[0][0] if key.startswith("train/") and kind_of(kind) in key]
    assert names
    for name in ("train/loss", "train/grad_norm", *names):
        whole, *parts = ([row[name] for row in run] for run in rows)
        for part in parts:
            assert part == pytest.approx(whole, rel=2e-4, abs=1e-7), name


def kind_of(loss_type: str) -> str:
    return LOSS_TYPES[loss_type][1] or ""
