"""Progress of a run: the few numbers that a trainer advances and a checkpoint restores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from overt.checkpoint.plain_values import is_count
from overt.config import Config
from overt.config.schema import CheckpointSection
from overt.engine.build import Parts
from overt.engine.order import START, Position
from overt.engine.returned import returned
from overt.errors import CheckpointError
from overt.recipe import Recipe
from overt.run.resume import is_longer, refuse_other_run

RECIPE = "recipe/"  # prefix of the recipe's own tensors in a checkpoint


@dataclass
class State:
    """Progress of a run. `step` is the one clock: global batches consumed."""

    step: int = 0
    position: Position = START  # in the order of the data
    skipped: int = 0  # steps that made no update
    skipped_in_a_row: int = 0
    scores: dict[str, float] = field(default_factory=dict)  # of the evaluation at this step
    evaluated_step: int = 0
    wandb_run_id: str | None = None
    saved_step: int | None = None  # of a complete checkpoint
    finished: str | None = None  # why training ended before its last step
    resumed_from: str | None = None  # the path that checkpoint.resume named last

    @property
    def is_saved(self) -> bool:
        """Whether a checkpoint of this very step exists."""
        return self.saved_step == self.step

    @property
    def updates(self) -> int:
        """Updates made: what schedules count, so that a skipped step does not move them."""
        return self.step - self.skipped

    def record_scores(self, scores: dict[str, float]) -> None:
        """Take the scores of this step; a checkpoint of it, made before, lacks them."""
        self.scores, self.evaluated_step, self.saved_step = scores, self.step, None

    def counts_as_made(self, applied: bool) -> bool:
        """Count a step whose outcome is now known; return whether its update was made."""
        self.skipped += not applied
        self.skipped_in_a_row = 0 if applied else self.skipped_in_a_row + 1
        return applied

    def describe(self, path: Path) -> str:
        """Return a sentence that says where a run resumes."""
        epoch, offset = self.position
        return f"{path} at step {self.step}: epoch {epoch}, sample {offset}, nothing replayed"

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the scores, which belong to the checkpoint's own metrics."""
        return {
            "step": self.step,
            "position": self.position._asdict(),
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "evaluated_step": self.evaluated_step,
            "wandb_run_id": self.wandb_run_id,
            "finished": self.finished,
            "resumed_from": self.resumed_from,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`; what cannot have been a state is refused."""
        _refuse_forged(state)
        self.step = state["step"]
        self.position = Position(**state["position"])
        self.skipped = state["skipped"]
        self.skipped_in_a_row = state["skipped_in_a_row"]
        # Older checkpoints do not say: theirs were saved after the evaluation.
        self.evaluated_step = state.get("evaluated_step", state["step"])
        self.wandb_run_id = state["wandb_run_id"]
        self.finished = state.get("finished")
        # A path that this very start names comes after the one that its checkpoint was made with.
        self.resumed_from = self.resumed_from or state.get("resumed_from")


def _refuse_forged(state: dict[str, Any]) -> None:
    """Refuse invalid counts, such as a negative offset, with which a run never ends."""
    position = state.get("position")
    counts = {name: state.get(name) for name in ("step", "skipped", "skipped_in_a_row")}
    if isinstance(position, dict):
        counts |= {f"position.{name}": position.get(name) for name in Position._fields}
    counts["evaluated_step"] = state.get("evaluated_step", state.get("step"))
    for name, value in counts.items():
        if not is_count(value):
            raise CheckpointError(f"state.json: {name}={value!r} is not a count")
    texts = {name: state.get(name) for name in ("wandb_run_id", "finished", "resumed_from")}
    for name, text in texts.items():
        if not (text is None or isinstance(text, str)):
            raise CheckpointError(f"state.json: {name}={text!r} is not text")
    for name in ("skipped", "evaluated_step"):
        if counts[name] > state["step"]:
            raise CheckpointError(
                f"state.json: {name}={counts[name]} is beyond step {state['step']}"
            )


def refuse_step_beyond(step: int, total_steps: int, section: CheckpointSection) -> None:
    """Refuse a step that this run cannot have reached, unless its length was changed."""
    if step > total_steps and not section.accept_changes:
        raise CheckpointError(
            f"state.json: step={step} is beyond the last step, {total_steps}. If the run was made "
            "shorter, confirm it: 'checkpoint.accept_changes=[training.num_steps]'"
        )


@contextmanager
def checking_resumed(
    saved: dict[str, Any], config: Config, parts: Parts, state: State
) -> Iterator[None]:
    """Refuse a checkpoint whose state, loaded in here, overt did not write for this run."""
    path = saved["path"]
    try:
        refuse_other_run(config, saved, parts.loader.length, parts.plan.global_batch_size)
        yield
        if is_longer(saved["config_yaml"], config.text):
            state.finished = None  # it ended early, and has been given more steps since
        if config.run_dir.resolve() not in path.resolve().parents:
            state.wandb_run_id = None  # of the other run, which this one only starts from
        refuse_step_beyond(state.step, parts.total_steps, config.checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"{path} cannot be resumed from: {error}") from error
    except (
        KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RuntimeError
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"{path} cannot be resumed from: its state was not written by this version of overt "
            f"and this recipe ({type(error).__name__}: {error}). Use an older checkpoint."
        ) from error


def split_recipe_state(recipe: Recipe) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors, under names for the checkpoint, and plain values of `Recipe.state_dict`."""
    state = returned(recipe, "state_dict", recipe.state_dict())
    tensors = {f"{RECIPE}{key}": item for key, item in state.items() if isinstance(item, Tensor)}
    plain = {key: item for key, item in state.items() if not isinstance(item, Tensor)}
    return tensors, plain


def join_recipe_state(tensors: dict[str, Tensor], state: dict[str, Any]) -> dict[str, Any]:
    """Undo `split_recipe_state`; older checkpoints have none."""
    joined: dict[str, Any] = dict(state.get("recipe", {}))
    for key, item in tensors.items():
        if key.startswith(RECIPE):
            joined[key.removeprefix(RECIPE)] = item
    return joined
