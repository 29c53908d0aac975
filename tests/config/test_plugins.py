"""What a user's package may add: schedules, optimizers, trackers and YAML files."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from toy_runs import make_trainer, read_rows, toy_config

from overt.config import load, plugins
from overt.errors import ConfigError


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Pretend that a package with these entry points is installed."""

    def declare(value: str) -> None:
        entry = EntryPoint("lab", value, plugins.PACKAGES)
        monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
        plugins.installed_packages.cache_clear()

    yield declare
    monkeypatch.undo()
    plugins.installed_packages.cache_clear()


def test_schedule_and_tracker_of_a_package(tmp_path: Path) -> None:
    words = (
        "~schedule.final_value",
        "~schedule.warmup_epochs",
        "~schedule.start_warmup_value",
        "schedule._target_=toy_recipe.schedule.Steps",
        "+schedule.milestones=[0.5]",
        "training.num_steps=8",
        "logging.every_steps=1",
        "logging.trackers=[{_target_: toy_recipe.schedule.Notes, title: mine}]",
    )
    trainer = make_trainer(tmp_path, *words)
    trainer.train()
    base = trainer.config.optimizer.lr
    rates = [row["train/lr"] for row in read_rows(trainer.config.run_dir) if "train/lr" in row]
    half = trainer.loader.steps_per_epoch / 2
    expected = [base if step < half else base / 10 for step in range(8)]
    assert rates == pytest.approx(expected)
    assert (trainer.config.run_dir / "notes.txt").read_text().startswith("mine\n")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("os.system", "not allowed: a configuration may name classes of overt"),
        ("toy_recipe.schedule.Incomplete", "lacks epochs, steps_per_epoch"),
        ("toy_recipe.schedule.Notes", "or a dataclass of your package with the fields"),
        ("toy_recipe.absent.Steps", "importing toy_recipe.absent failed"),
    ],
)
def test_what_is_no_schedule_is_refused(target: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        toy_config(tmp_path, f"schedule._target_={target}")
    assert words in str(refusal.value)


def test_an_installed_package_needs_no_option(install, tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "installed_lab"
    (package / "conf" / "schedule").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "rates.py").write_text(
        "from toy_recipe.schedule import Steps\n\n\nclass Mine(Steps):\n    pass\n"
    )
    (package / "conf" / "schedule" / "lab.yaml").write_text(
        "_target_: installed_lab.rates.Mine\nmilestones: [1.0]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    install("installed_lab")
    config = load(["recipe=cotracker3_tiny", "schedule=lab", f"data.root={tmp_path}"])
    assert config.schedule["_target_"] == "installed_lab.rates.Mine"


@pytest.mark.parametrize("value", ["absent_lab", "os.path", "a:b"])
def test_a_wrong_entry_point_is_refused(value: str, install) -> None:
    install(value)
    with pytest.raises(ConfigError, match=r"overt\.packages"):
        plugins.installed_packages()
