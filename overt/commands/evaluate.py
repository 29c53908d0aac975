"""`overt evaluate checkpoint=PATH [recipe=NAME] [output=FOLDER] ...`: score a checkpoint.

Scores are computed in float32 unless training.precision is given.

On several processes (`torchrun -m overt evaluate ...` or srun) each sample counts once, and the
scores are the same. Without recipe= the checkpoint's own configuration is used. Writes scores.json,
rows.json with per-sample scores if the recipe provides them, config.yaml and visualizations to the
output folder (default: RUN/evaluation, RUN being the run folder of the checkpoint;
RUN/evaluation_2 and so on if that has the scores of other weights, data or settings).
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import OmegaConf

from overt.checkpoint.trained import configure, load_model
from overt.commands.arguments import evaluation_options
from overt.config import Config, build_recipe
from overt.errors import ConfigError, need_folder
from overt.files.yaml_text import parse_yaml, read_text
from overt.progress import shown
from overt.run.folder import RunPaths
from overt.tasks import BaselineScorer, RowScorer, ScoreTabulator, need_task

if TYPE_CHECKING:
    from torch import Tensor, nn

    from overt.distributed import World
    from overt.recipe import Recipe


PRECISION = "training.precision"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[evaluation_options()],
    )
    parser.add_argument("words", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the model's blocks first; worthwhile for large evaluations on a GPU",
    )
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="also score baselines without training: for trackers, Lucas-Kanade and DIS flow",
    )
    options = parser.parse_intermixed_args(arguments)
    checkpoint, output, overrides = _own_words(options.words)
    # The papers' protocols are in float32; another precision is for those who ask for it.
    precision_given = any(word.partition("=")[0] == PRECISION for word in overrides)
    overrides += [] if precision_given else [f"{PRECISION}=fp32"]
    config = configure(checkpoint, overrides, options.package)
    named = {word.partition("=")[0] for word in overrides}
    run = config.run_dir if named & {"exp_name", "output_dir"} else run_of(checkpoint, config)
    folder = need_folder("output", output or free_folder(run, checkpoint, config))

    from overt.distributed import init_distributed, shutdown
    from overt.metrics.features import late_export_errors

    world = init_distributed(config.training.device, config.training.timeout_minutes)
    recipe = build_recipe(config)
    model, report = load_model(recipe, checkpoint, options.part, options.rename)
    if world.is_main:
        print(report)
    model.to(world.device)
    if options.compile:
        from overt.engine.strategy.blocks import compile_model

        compile_model(recipe, model, replace(config.training, compile="blocks"))
    with late_export_errors():  # scores may have taken hours: they are written in any case
        with shown() if world.is_main else nullcontext():
            baselines = {}
            if options.baselines:  # first: where OpenCV is missing, no score is lost
                scorer = need_task(recipe, BaselineScorer, config.recipe.name)
                baselines = scorer.baseline_rows(world)
            result = with_baselines(score(config, recipe, model, world), baselines)
        if world.is_main:
            write(folder, checkpoint, config, result)
            print(f"written to {folder}")
    shutdown()
    return 0


def _own_words(words: Sequence[str]) -> tuple[Path, Path | None, list[str]]:
    """`checkpoint` and `output` belong to this command; the rest are overrides."""
    arguments: dict[str, str] = {}
    overrides = []
    for word in words:
        key, _, value = word.partition("=")
        if key in ("checkpoint", "output"):
            arguments[key] = value
        else:
            overrides.append(word)
    if not arguments.get("checkpoint"):
        raise ConfigError("give the weights to score: checkpoint=PATH, a file or folder")
    output = Path(arguments["output"]) if arguments.get("output") else None
    return Path(arguments["checkpoint"]), output, overrides


def run_of(checkpoint: Path, config: Config) -> Path:
    """Return the run folder of a checkpoint; for any other weights, that of the configuration.

    Seen from another working directory the configuration may name another run, whose scores would
    be replaced.
    """
    folder = Path(os.path.abspath(checkpoint)).parent  # `best` is a link: not resolved
    paths = RunPaths(folder.parent)
    if folder != paths.checkpoints or not paths.config.is_file():
        return config.run_dir
    is_configured = folder.parent == Path(os.path.abspath(config.run_dir))
    return config.run_dir if is_configured else folder.parent


def free_folder(run: Path, checkpoint: Path, config: Config) -> Path:
    """Return the run's first folder without scores of other weights, data or settings."""
    weights = _scored_weights(checkpoint)

    def is_free(folder: Path) -> bool:
        saved = folder / "config.yaml"
        if not saved.exists():
            return True
        is_same = _scored(read_text(saved)) == _scored(config.text)
        return is_same and (weights == run.resolve() or _weights_in(folder) in (None, weights))

    names = chain(["evaluation"], (f"evaluation_{number}" for number in count(2)))
    return next(filter(is_free, (run / name for name in names)))


def _scored_weights(checkpoint: Path) -> Path:
    """Return whose the scores of a checkpoint are: its run, or the file or folder itself."""
    path = checkpoint.resolve()
    return path.parent.parent if path.parent.name == "checkpoints" else path


def _weights_in(folder: Path) -> Path | None:
    """Return whose scores a folder holds; None where that cannot be told."""
    try:
        return _scored_weights(Path(json.loads((folder / "scores.json").read_text())["checkpoint"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _scored(text: str) -> dict[str, Any]:
    """Return the part of a configuration that decides what is scored."""
    values = OmegaConf.to_container(parse_yaml(text, "config.yaml"))
    if not isinstance(values, dict):
        return {}
    return {key: values.get(key) for key in ("evaluation", "data")}


class Result(NamedTuple):
    """What an evaluation found."""

    scores: dict[str, float]
    rows: list[dict[str, Any]]  # a name and numbers for each sample; empty where there are none
    table: str
    further: str  # the scores of further sets where the table has only those of the main one
    samples: Mapping[str, Tensor | str]  # pictures and texts, on the main process


def score(config: Config, recipe: Recipe, model: nn.Module, world: World) -> Result:
    """Return the recipe's scores on every process, and its pictures on the main one."""
    import torch

    from overt.engine.precision import AUTOCAST, set_precision
    from overt.engine.scoring import evaluation_sets, samples_of, score_sets
    from overt.evaluation import summarize
    from overt.run.messages import aligned_scores

    set_precision(config.training.precision, config.training.deterministic)
    dtype = AUTOCAST.get(config.training.precision)
    rows: list[dict[str, Any]] = []
    own: dict[str, float] = {}  # the means of the rows
    samples: Mapping[str, Tensor | str] = {}
    with (
        torch.inference_mode(),
        torch.autocast(world.device.type, dtype, enabled=dtype is not None),
    ):
        if isinstance(recipe, RowScorer):
            rows = recipe.evaluate_rows(model, world)
            own = summarize(rows)
            scores = own | score_sets(recipe, model, world, evaluation_sets(recipe))
        else:
            scores = score_sets(recipe, model, world)
        if world.is_main:
            samples = samples_of(recipe, model)
    table, further = aligned_scores("scores", scores, config.checkpoint.metric_name), ""
    if rows and isinstance(recipe, ScoreTabulator):
        table = recipe.score_table(rows, scores)  # of its main set
        others = {name: value for name, value in scores.items() if name not in own}
        if others:
            further = aligned_scores("further sets", others, config.checkpoint.metric_name)
    return Result(scores, rows, table, further, samples)


def with_baselines(result: Result, baselines: dict[str, list[dict[str, Any]]]) -> Result:
    """Return the result with the means of baselines below its table and among its scores."""
    from overt.evaluation import summarize

    if not baselines:
        return result
    scores, lines = dict(result.scores), [result.table, ""]
    for name, rows in baselines.items():
        means = {key: value for key, value in summarize(rows).items() if key in result.scores}
        scores |= {f"{name}_{key}": value for key, value in means.items() if "static" not in key}
        lines.append(f"{name}: " + baseline_line(means))
    return result._replace(scores=scores, table="\n".join(lines))


def baseline_line(means: dict[str, float]) -> str:
    """Return the three scores of a tracker, or all scores of another task."""
    from overt.metrics.tracking import COLUMNS

    named = {name: means[key] for name, key in COLUMNS.items() if key in means} or means
    return ", ".join(f"{name} {100 * value:.1f}" for name, value in named.items())


def write(folder: Path, checkpoint: Path, config: Config, result: Result) -> None:
    """Print the table; keep the scores as JSON, with configuration and pictures beside."""
    from overt.run.log import as_gif
    from overt.viz.tracks import save_image

    print(result.table)
    if result.further:
        print(f"\n{result.further}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config.text)
    content = {
        "checkpoint": str(checkpoint.resolve()),
        "evaluation": _scored(config.text)["evaluation"],
        "scores": result.scores,
    }
    write_json(folder / "scores.json", content)
    if result.rows:
        write_json(folder / "rows.json", result.rows)
    for name, sample in result.samples.items():
        if isinstance(sample, str):
            (folder / f"{name}.txt").write_text(sample, encoding="utf-8")
        elif sample.ndim == 4:
            (folder / f"{name}.gif").write_bytes(as_gif(sample, fps=10))
        else:
            save_image(folder / f"{name}.png", sample)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON: NaN becomes null."""

    def without_nan(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: without_nan(child) for key, child in part.items()}
        if isinstance(part, list):
            return [without_nan(child) for child in part]
        return None if isinstance(part, float) and math.isnan(part) else part

    path.write_text(json.dumps(without_nan(value), indent=1, allow_nan=False) + "\n")
