"""`overt evaluate checkpoint=PATH [recipe=NAME] [output=FOLDER] ...`: score a checkpoint.

In one process or, by `torchrun -m overt evaluate ...` or srun, in many: each sample counts once,
and the numbers are the same. Without recipe= the checkpoint's own configuration is used. Writes
scores.json and what the recipe draws into the output folder (default: RUN/evaluation).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from overt.config import Config, build_recipe, load
from overt.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from overt.distributed import World
    from overt.engine.weights import LoadReport
    from overt.recipe import Recipe


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--package", action="append", default=[], help="folder of your own recipe")
    parser.add_argument(
        "--part",
        choices=("auto", "model", "ema"),
        default="auto",
        help="auto: ema where there is one",
    )
    options = parser.parse_intermixed_args(arguments)
    checkpoint, output, overrides = _own_words(options.words)
    config = _configure(checkpoint, overrides, options.package)

    from overt.distributed import init_distributed, shutdown

    world = init_distributed(config.training.device, config.training.timeout_minutes)
    recipe = build_recipe(config)
    model, report = load_model(recipe, checkpoint, options.part)
    if world.is_main:
        print(report)
    model.to(world.device)
    scores, pictures = score(config, recipe, model, world)
    if world.is_main:
        write(output or config.run_dir / "evaluation", checkpoint, scores, pictures)
    shutdown()
    return 0


def _own_words(words: Sequence[str]) -> tuple[Path, Path | None, list[str]]:
    """`checkpoint` and `output` belong to this command; the rest are overrides."""
    own: dict[str, str] = {}
    overrides = []
    for word in words:
        key, _, value = word.partition("=")
        if key in ("checkpoint", "output"):
            own[key] = value
        else:
            overrides.append(word)
    if not own.get("checkpoint"):
        raise ConfigError("say which weights to score: checkpoint=PATH, a file or folder")
    output = Path(own["output"]) if own.get("output") else None
    return Path(own["checkpoint"]), output, overrides


def _configure(checkpoint: Path, overrides: list[str], packages: list[str]) -> Config:
    if not checkpoint.exists():
        raise CheckpointError(f"checkpoint={checkpoint}: there is no such file or folder")
    if any(word.startswith("recipe=") for word in overrides):
        return load(overrides, packages=packages)
    stored = checkpoint / "config.yaml"
    if not stored.is_file():
        raise ConfigError(f"{checkpoint} holds no configuration; add recipe=NAME")
    return load(overrides, config_file=str(stored), packages=packages)


def load_model(recipe: Recipe, checkpoint: Path, part: str) -> tuple[nn.Module, LoadReport]:
    """The recipe's model with the checkpoint's weights, in evaluation mode."""
    from overt.engine.weights import load_checkpoint

    if part == "auto":
        part = "ema" if (checkpoint / "ema.safetensors").is_file() else "model"
    model = recipe.build_model()
    report = load_checkpoint(checkpoint, model, part=part)
    return model.eval(), report


def score(
    config: Config, recipe: Recipe, model: nn.Module, world: World
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The recipe's scores on every process, and its pictures on the main one."""
    import torch

    from overt.engine.precision import AUTOCAST, set_precision

    set_precision(config.training.precision, config.training.deterministic)
    dtype = AUTOCAST.get(config.training.precision)
    with (
        torch.inference_mode(),
        torch.autocast(world.device.type, dtype, enabled=dtype is not None),
    ):
        scores = recipe.evaluate(model, world)
        if world.is_main and hasattr(recipe, "visualize"):
            return scores, recipe.visualize(model)
        return scores, {}


def write(
    folder: Path, checkpoint: Path, scores: dict[str, float], pictures: dict[str, Tensor]
) -> None:
    """Print the scores as a table; keep them as JSON, with the pictures beside."""
    from overt.viz.tracks import save_image

    folder.mkdir(parents=True, exist_ok=True)
    width = max(map(len, scores), default=0)
    for name, value in scores.items():
        print(f"  {name:<{width}}  {value:.4f}")
    text = json.dumps({"checkpoint": str(checkpoint.resolve()), "scores": scores}, indent=1)
    (folder / "scores.json").write_text(text + "\n")
    for name, picture in pictures.items():
        save_image(folder / f"{name}.png", picture)
    print(f"written to {folder}")
