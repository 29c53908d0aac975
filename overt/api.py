"""Training from Python, in a notebook or script: `configure`, `train`, `evaluate` of `overt`.

What the commands of the same names do, with values in place of words. Imports torch when it runs.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from overt.checkpoint.trained import configure as configure_trained
from overt.checkpoint.trained import load_model
from overt.config import Config, build_recipe
from overt.config.python import Options, configure, folder_names, is_importable, read, script
from overt.errors import CheckpointError, ConfigError, Interrupted, LoaderError
from overt.health.preemption import StopSignal
from overt.keywords import checked_keywords
from overt.recipe import Recipe
from overt.run.folder import RunPaths

if TYPE_CHECKING:
    from torch import nn

    from overt.distributed import World
    from overt.files.key_maps import KeyRule

__all__ = ["Result", "configure", "evaluate", "train"]

GUARD = "put the call of {} under `if __name__ == '__main__':`"


@dataclass(frozen=True)
class Result:
    """Hold the outcome of a training run.

    Examples:
        >>> result = overt.train(config)
        >>> result.step, result.checkpoint.parent.name
        (2, 'checkpoints')
        >>> model = result.load_model()  # an nn.Module in evaluation mode
    """

    config: Config
    step: int  # optimizer steps done
    scores: dict[str, float]  # of the last evaluation
    finished: str | None  # why it ended before its last step

    @property
    def run_dir(self) -> Path:
        return self.config.run_dir

    @property
    def checkpoint(self) -> Path:
        """Return the path of the newest checkpoint."""
        return RunPaths(self.run_dir).checkpoints / "latest"

    def load_model(self, part: str = "auto") -> nn.Module:
        """Return the trained model in evaluation mode; `auto`: its averaged weights, if any."""
        return load_model(build_recipe(self.config), self.checkpoint, part)[0]


def train(recipe: type[Recipe] | str | Config, **options: Unpack[Options]) -> Result:
    """Train a run to its end, or resume it where its folder has a checkpoint.

    Takes a configuration, or what `overt.configure` takes. The first interrupt (Ctrl-C) saves
    after the current step, and raises KeyboardInterrupt; the same call resumes.

    Examples:
        >>> config = overt.configure(
        ...     "own_recipe", packages=["examples/own_recipe"], training={"num_steps": 2}
        ... )
        >>> result = overt.train(config)
        >>> sorted(result.scores)
        ['accuracy']
    """
    refuse_import_by_child("overt.train")
    config = _configuration(recipe, options)
    with _one_session(config) as (stop, world):
        return _train(config, stop, world)


def _train(config: Config, stop: StopSignal, world: World) -> Result:
    """Train; the trainer is freed before the process group is destroyed."""
    from overt.distributed import explained_loss
    from overt.engine.trainer import Trainer
    from overt.health.heartbeat import keep_flight_records
    from overt.run.session import explained, locked

    with explained(config.run_dir):
        keep_flight_records(config.run_dir / "hang")
    stop.limit_start()
    recipe = build_recipe(config)
    _check_workers(config, recipe)
    trainer: Trainer | None = None
    first_step = 0
    try:
        with explained_loss(world, stop.asked_at_start), locked(config.run_dir) as lock:
            trainer = Trainer(config, recipe, world, stop, lock=lock)
            first_step = trainer.state.step
            with stop.interrupts():
                scores = trainer.train()
    except Interrupted as asked:
        raise KeyboardInterrupt(str(asked)) from None
    except LoaderError as error:
        began = trainer is not None and trainer.state.step > first_step
        if script() is not None and not began:
            raise ConfigError(
                "a loader process ended before its first batch. Loader processes import this "
                f"script: {GUARD.format('overt.train')}, or set training.num_workers=0 ({error})"
            ) from None
        raise
    return Result(config, trainer.state.step, scores, trainer.state.finished)


@checked_keywords()
def evaluate(
    trained: Result | str | Path,
    *,
    recipe: type[Recipe] | str | None = None,
    settings: Any = None,
    part: str = "auto",
    packages: Sequence[str | Path] = (),
    rename: Sequence[KeyRule] = (),
) -> dict[str, float]:
    """Return the scores of a trained model on held-out data.

    `trained` is what `overt.train` returned, a run folder (its newest checkpoint counts) or any
    checkpoint. A checkpoint brings its own configuration; `recipe` is needed for a class of a
    notebook, and for weights of others. `settings` change that configuration:
    `settings={"evaluation": {...}}`. `part` is model, ema, or auto: ema where there is one.
    `rename` maps the keys of weights of others, as for `overt.load_checkpoint`.

    Examples:
        >>> scores = overt.evaluate(result, settings={"evaluation": {"samples": 30}})
        >>> 0 <= scores["accuracy"] <= 1
        True
        >>> scores = overt.evaluate("runs/own_recipe", packages=["examples/own_recipe"])
    """
    config, checkpoint = _trained(trained, recipe, packages)
    if settings is not None:
        config = configure(config, settings=settings)
    with _one_session(config) as (_, world):
        import torch

        from overt.checkpoint import random_state
        from overt.engine.precision import AUTOCAST, set_precision
        from overt.engine.scoring import score_sets

        built = build_recipe(config)
        model, _ = load_model(built, checkpoint, part, rename)
        model.to(world.device)
        set_precision(config.training.precision, config.training.deterministic)
        dtype = AUTOCAST.get(config.training.precision)
        with (
            random_state.undisturbed(),
            torch.inference_mode(),
            torch.autocast(world.device.type, dtype, enabled=dtype is not None),
        ):
            return score_sets(built, model, world)


def _configuration(recipe: type[Recipe] | str | Config, options: Options) -> Config:
    if isinstance(recipe, Config) and not options:
        return recipe
    return configure(recipe, **options)


def _trained(
    trained: Result | str | Path,
    recipe: type[Recipe] | str | None,
    packages: Sequence[str | Path],
) -> tuple[Config, Path]:
    """Return the configuration and the weights to evaluate."""
    if isinstance(trained, Result):
        return trained.config, trained.checkpoint
    checkpoint = Path(trained)
    newest = RunPaths(checkpoint).checkpoints / "latest"
    if newest.is_dir():
        checkpoint = newest
    if not checkpoint.exists():
        raise CheckpointError(f"checkpoint {checkpoint}: no such file or folder")
    if isinstance(recipe, str):
        return configure(recipe, packages=packages), checkpoint
    stored = checkpoint / "config.yaml"
    if stored.is_file():
        return read(stored, recipe, packages), checkpoint
    if recipe is None:
        folders = folder_names(packages)
        return configure_trained(checkpoint, [], folders, "recipe=NAME or a class"), checkpoint
    return configure(recipe, packages=packages), checkpoint


@contextmanager
def _one_session(config: Config) -> Iterator[tuple[StopSignal, World]]:
    """Join the process group, and leave it and the log as they were."""
    with StopSignal() as stop:
        import torch.distributed

        from overt.distributed import init_distributed, shutdown

        joined = torch.distributed.is_initialized()
        log = logging.getLogger("overt")
        handlers = list(log.handlers)
        world = init_distributed(config.training.device, config.training.timeout_minutes)
        try:
            yield stop, world
        finally:
            log.handlers[:] = handlers  # a run that fails while it is built leaves its own
        if not joined:  # after an error the other ranks may still wait in it
            shutdown()


def refuse_import_by_child(function: str) -> None:
    """Refuse to train in a process that is importing the script of its parent."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(f"a process of this script imports it: {GUARD.format(function)}")


class _Finder(pickle.Pickler):
    """Finds a class or function that another process could not import."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        super().__init__(_Sink(write))
        self.unreachable: str | None = None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) and not is_importable(value):
            self.unreachable = self.unreachable or value.__qualname__
        return NotImplemented


@dataclass(frozen=True)
class _Sink:
    """A file that keeps nothing."""

    write: Callable[[bytes], object]


def _check_workers(config: Config, recipe: Recipe) -> None:
    """Refuse loader processes for a recipe that does not reach them, before any is started."""
    workers = config.training.num_workers
    if workers == 0:
        return
    if hasattr(sys.modules["__main__"], "__file__") and script() is None:
        raise ConfigError(
            f"training.num_workers={workers}, but loader processes cannot start from a program "
            "that Python reads from standard input; put it into a file, or set "
            "training.num_workers=0"
        )
    finder = _Finder(lambda content: len(content))
    try:
        finder.dump(recipe.collate)
        problem = (
            finder.unreachable and f"{finder.unreachable} is defined in a notebook or a function"
        )
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        problem = f"the recipe cannot be pickled: {error}"
    if problem:
        raise ConfigError(
            f"training.num_workers={workers}, but loader processes cannot import "
            f"{config.recipe.name}: {problem}. Move it into a module (a .py file) and import it "
            "from there, or set training.num_workers=0"
        )
