"""overt/run/folder.py: the one list of a run's files, and everything in it is where it says."""

import inspect
import re
from pathlib import Path

import pytest
from toy_runs import train_toy

from overt.run import folder
from overt.run.folder import OWN_FOLDERS, RunPaths

PATHS = RunPaths(Path("runs/x"))
# Names that a user has no use for stand in no description.
INTERNAL = {"wandb_run_id", "mlflow_run_id"}


def all_paths() -> dict[str, Path]:
    found = {"skipped_by": PATHS.skipped_by(3), "warnings_of": PATHS.warnings_of(3)}
    found["earlier_metrics"] = PATHS.earlier_metrics(2)
    for name, value in inspect.getmembers_static(RunPaths):
        if isinstance(value, property):
            found[name] = getattr(PATHS, name)
    return found


def test_every_path_is_below_the_run_and_none_is_twice() -> None:
    paths = all_paths()
    assert len(paths) >= 14
    assert all(path.is_relative_to(PATHS.root) and path != PATHS.root for path in paths.values())
    assert len(set(paths.values())) == len(paths)


def test_ranks_have_files_of_their_own() -> None:
    for make in (PATHS.skipped_by, PATHS.warnings_of):
        assert len({make(rank) for rank in range(12)}) == 12
        assert make(0).parent == make(11).parent


@pytest.mark.parametrize("name", sorted(all_paths()))
def test_the_description_names_everything_that_a_user_finds(name: str) -> None:
    first = all_paths()[name].relative_to(PATHS.root).parts[0]
    described = set(re.findall(r"[\w.]+", folder.__doc__ or ""))
    assert first in described or name in INTERNAL or name == "earlier_metrics"


def test_a_run_leaves_nothing_that_is_not_listed(tmp_path: Path) -> None:
    train_toy(
        tmp_path,
        "data.nan_sample=3",
        "training.nonfinite=skip",
        "training.num_steps=6",
        "logging.use_tensorboard=true",
        "training.profile_steps=[2,3]",
    )
    listed = {path.relative_to(PATHS.root).parts[0] for path in all_paths().values()}
    left = {path.name for path in (tmp_path / "toy").iterdir()}
    assert {"config.yaml", "metrics.jsonl", "events.jsonl", "skipped", "checkpoints"} <= left
    assert left <= listed
    assert {path.name for path in (tmp_path / "toy").iterdir() if path.is_dir()} <= OWN_FOLDERS
