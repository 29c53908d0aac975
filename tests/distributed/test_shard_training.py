"""Sharded training gives the numbers of DDP: toy and real recipes, 2 and 4 processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_runs import make_trainer, read_rows, train_toy

RUNS = Callable[..., list[Any]]
FSDP = "training.strategy=fsdp"
STRATEGIES = ("ddp", "fsdp")
# 10 samples in groups of 8: micro-batches accumulate, and the last of an epoch are padding. A width
# of 6 leaves 4 processes with shares of different size; the output's bias has one row for each.
SMALL = ["training.batch_size=1", "training.global_batch_size=8", "model.width=6"]
SMALL_GROUPS = ["training.batch_size=2", "training.global_batch_size=16"]
AVERAGE = "training.ema_momentum=0.9"
IMAGES = ["data.synthetic.classes=4", "data.synthetic.per_class=12", "model.depth=2"]
QUERIES = ["data.points=8", "model.input_size=[32,32]", "training.batch_size=2"]
CLIPS = [
    "data.synthetic.count=5",
    "data.synthetic.frames=8",
    "data.synthetic.height=40",
    "data.synthetic.width=40",
    "data.synthetic.points=64",
    "data.crop_size=[32,32]",
    "data.held_out=1",
]


def curve(run: Path, name: str) -> list[float]:
    return [float(row[name]) for row in read_rows(run) if name in row]  # "nan" of a skipped step


def assert_same_numbers(run: Path, other: Path) -> None:
    assert len(curve(run, "train/loss")) == 12
    for name in ("train/loss", "train/grad_norm", "evaluation/error"):
        assert curve(run, name) == pytest.approx(curve(other, name), rel=1e-6, nan_ok=True), name


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_like_ddp_with_accumulation_and_average(
    size: int, run_processes: RUNS, tmp_path: Path
) -> None:
    run_processes(train_toy, size, tmp_path / "ddp", *SMALL, AVERAGE)
    early = f"training.reduce_every_micro_batch={size == 2}"
    run_processes(train_toy, size, tmp_path / "fsdp", *SMALL, AVERAGE, FSDP, early)
    assert_same_numbers(tmp_path / "fsdp/toy", tmp_path / "ddp/toy")


@pytest.mark.parametrize(
    "settings",
    [
        ["training.precision=bf16", "training.activation_checkpointing=true", "model.dropout=0.3"],
        pytest.param(
            ["training.compile=blocks", "training.compile_backend=eager"], marks=pytest.mark.long
        ),
    ],
    ids=["bf16-recomputed", "compiled"],
)
def test_like_ddp_with(settings: list[str], run_processes: RUNS, tmp_path: Path) -> None:
    """Two gradients add up to the same bits in either order, so that even 16 bits agree."""
    run_processes(train_toy, 2, tmp_path / "ddp", *settings)
    run_processes(train_toy, 2, tmp_path / "fsdp", *settings, FSDP)
    assert_same_numbers(tmp_path / "fsdp/toy", tmp_path / "ddp/toy")


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_all_skip_a_step_with_nan_on_one(
    precision: str, run_processes: RUNS, tmp_path: Path
) -> None:
    """And the module that made it is found, although no process has all of it."""
    settings = ["data.nan_sample=3", f"training.precision={precision}"]
    settings += ["training.nonfinite=skip", "training.name_nonfinite_module=true", AVERAGE]
    run_processes(train_toy, 2, tmp_path / "ddp", *settings)
    run_processes(train_toy, 2, tmp_path / "fsdp", *settings, FSDP)
    skipped = [(tmp_path / name / "toy/skipped/rank_1.jsonl").read_text() for name in STRATEGIES]
    assert skipped[0] == skipped[1]
    assert '"first_nonfinite_module": "the input of' in skipped[1]
    assert_same_numbers(tmp_path / "fsdp/toy", tmp_path / "ddp/toy")


def step_losses(folder: Path, steps: int, *overrides: str) -> dict[str, float]:
    """Sums of losses over a few steps, and what this process holds of the parameters."""
    from overt.config import build_recipe, load
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    common = [f"output_dir={folder}", "training.device=cpu", "training.num_workers=0"]
    config = load([*overrides, *common, f"training.num_steps={steps}", "training.num_epochs=null"])
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    for _ in range(steps):
        trainer.train_step()
    sums, count, *_ = trainer.progress.interval.totals()
    held = held_by(trainer)
    trainer.close()
    del trainer
    return {**sums, "steps": count, "held": held}


def held_by(trainer: Any) -> float:
    """Return how many numbers of parameters and optimizer state this process holds."""
    tensors = list(trainer.model.parameters())
    tensors += [value for state in trainer.optimizer.state.values() for value in state.values()]
    return float(sum(getattr(tensor, "_local_tensor", tensor).numel() for tensor in tensors))


def held_after_a_step(folder: Path, *overrides: str) -> float:
    trainer = make_trainer(folder, *overrides)
    trainer.train_step()
    held = held_by(trainer)
    trainer.close()
    return held


def test_each_rank_holds_its_part_of_weights_and_optimizer_state(
    run_processes: RUNS, tmp_path: Path
) -> None:
    wide = "model.width=64"
    whole = held_after_a_step(tmp_path / "whole", wide)
    parts = run_processes(held_after_a_step, 2, tmp_path / "parts", FSDP, wide)
    # Everything once, but for counters of the optimizer and the rest of a division.
    assert sum(parts) == pytest.approx(whole, rel=0.1)
    assert max(parts) < 0.6 * whole


# That they give the numbers of DDP, tests/recipes/test_contract.py shows for all recipes.
@pytest.mark.parametrize(
    ("recipe", "size", "settings"),
    [
        # The target encoder is an average inside the model. Features of all micro-batches are
        # mixed, and so computed outside of the forward pass first.
        pytest.param(
            "hjepa_tiny",
            4,
            ["loss.type=hjepa_sigreg", *SMALL_GROUPS, *IMAGES],
            marks=pytest.mark.long,
        ),
        # Blocks run once in every iteration.
        pytest.param(
            "cotracker3_tiny",
            2,
            ["training.activation_checkpointing=true", *CLIPS, "data.traj_per_sample=8"],
            marks=pytest.mark.long,
        ),
        # Parts of the transformer are used outside of its forward.
        pytest.param("lbm_tiny", 2, [*CLIPS, *QUERIES], marks=pytest.mark.long),
    ],
    ids=["hjepa", "cotracker3", "lbm"],
)
def test_real_recipes_like_ddp(
    recipe: str, size: int, settings: list[str], run_processes: RUNS, tmp_path: Path
) -> None:
    wanted = [f"recipe={recipe}", f"data.root={tmp_path / 'data'}", *settings]
    one, two = (
        run_processes(step_losses, size, tmp_path / name, 2, *wanted, f"training.strategy={name}")
        for name in STRATEGIES
    )
    assert one[0]["steps"] == two[0]["steps"] == 2
    assert two[0].keys() == one[0].keys()
    whole, held = one[0].pop("held"), [numbers.pop("held") for numbers in two]
    # Everything once, but for counters of the optimizer and the rest of a division.
    assert sum(held) == pytest.approx(whole, rel=0.02)
    assert max(held) < 1.1 * whole / size
    assert two[0] == pytest.approx(one[0], rel=1e-6, abs=1e-7)


def test_a_parameter_without_gradient_is_refused(run_processes: RUNS, tmp_path: Path) -> None:
    codes = run_processes(train_toy, 2, tmp_path, FSDP, "model.idle_layer=true", dies=True)
    assert codes == [1, 1]
