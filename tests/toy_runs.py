"""Runs of the toy recipe, and what the tests read from a run's folder."""

import json
import os
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TOY = HERE / "toy_recipe"


def toy_config(folder: Path, *overrides: str) -> Any:
    """The checked configuration of a toy run below `folder`."""
    from overt.config import load

    return load(["recipe=toy", f"output_dir={folder}", *overrides], packages=[str(TOY)])


def train_toy(folder: Path, *overrides: str, die_at: int | None = None) -> None:
    """Train the toy recipe in this process (or, among several, as one of them)."""
    if die_at is not None:
        os.environ["TOY_DIE_AT_STEP"] = str(die_at)
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    config = toy_config(folder, *overrides)
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    trainer.train()
    del trainer  # before the process group goes


def make_trainer(folder: Path, *overrides: str, recipe: Any = None) -> Any:
    """A trainer of the toy recipe, or of another class with its settings; nothing is trained."""
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    config = toy_config(folder, *overrides)
    method = build_recipe(config) if recipe is None else recipe(config.settings)
    return Trainer(config, method, init_distributed("cpu"))


def cut_back(run: Path, other: Path, step: int) -> None:
    """Copy a run's folder as if it had been killed right after its checkpoint at `step`."""
    import shutil

    shutil.copytree(run, other, symlinks=True)
    for path in (other / "checkpoints").glob("step_*"):
        if int(path.name.removeprefix("step_")) > step:
            shutil.rmtree(path)
    events = [json.loads(line) for line in (other / "events.jsonl").read_text().splitlines()]
    kept = [event for event in events if event["kind"] != "saved" or event["step"] <= step]
    (other / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in kept))


def write_chain(folder: Path, **changes: object) -> Path:
    """A chain of two toy trainings; the second starts from the first's weights."""
    from omegaconf import OmegaConf

    content = {
        "output_dir": str(folder / "runs"),
        "overrides": {"training.num_steps": 6},
        "stages": [
            {"name": "first", "recipe": "toy", "packages": [str(TOY)]},
            {
                "name": "second",
                "recipe": "toy",
                "packages": [str(TOY)],
                "overrides": ["seed=7"],
                "checkpoints": {"checkpoint.init_from": "first"},
            },
        ],
    } | changes
    path = folder / "stages.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    return path


def read_rows(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def read_events(run: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind, from a run's events.jsonl."""
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def losses_by_step(run: Path) -> dict[int, float]:
    return {row["step"]: row["train/loss"] for row in read_rows(run) if "train/loss" in row}


def weights(run: Path, step: int, part: str = "model") -> dict[str, Any]:
    """The tensors of one checkpoint of a run."""
    from safetensors.torch import load_file

    return load_file(run / "checkpoints" / f"step_{step:08d}" / f"{part}.safetensors")


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Equal to the last bit, where NaN equals NaN."""
    import torch

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1).view(torch.uint8)

    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(bits(one[key]), bits(other[key]))
        for key in one
    )
