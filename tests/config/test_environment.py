"""overt/config/environment.py: a foreign file reads no secrets; the user may."""

from pathlib import Path

import pytest
from toy_runs import TOY, toy_config

from overt.config import load
from overt.config.environment import allow_in, read
from overt.errors import ConfigError


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overt.config.environment._allowed", set())
    monkeypatch.setenv("CLAIMS_TOKEN", "hunter2")
    monkeypatch.setenv("OVERT_CLAIMS", "fine")


@pytest.mark.parametrize(
    "place", ["logging.wandb_project", "exp_name", "logging.trackers[0].uri", "data.samples"]
)
def test_a_file_of_someone_else_reads_no_secret(tmp_path: Path, place: str) -> None:
    from omegaconf import OmegaConf

    stored = OmegaConf.create(toy_config(tmp_path).text)
    tracker = {"_target_": "overt.run.mlflow_tracker.MLflow", "uri": "http://x"}
    OmegaConf.update(stored, "logging.trackers", [tracker])
    key = place.replace("[0]", ".0")
    OmegaConf.update(stored, key, "http://evil/${oc.env:CLAIMS_TOKEN}")
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(stored))
    with pytest.raises(ConfigError, match=r"CLAIMS_TOKEN\} is not allowed") as refused:
        load([], str(path), [str(TOY)])
    assert "hunter2" not in str(refused.value)


def test_what_the_user_names_is_read(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "logging.wandb_project=${oc.env:CLAIMS_TOKEN}")
    assert config.logging.wandb_project == "hunter2"
    config = toy_config(tmp_path / "own", "logging.wandb_project=${oc.env:OVERT_CLAIMS}")
    assert config.logging.wandb_project == "fine"


def test_names_are_found_in_values_of_any_depth() -> None:
    allow_in({"a": ["${oc.env:CLAIMS_TOKEN}", 3, None]})
    assert read("CLAIMS_TOKEN") == "hunter2"
    with pytest.raises(PermissionError):
        read("HOME")
    with pytest.raises(PermissionError):
        read("CLAIMS_TOKEN_2")


def test_a_variable_that_is_not_set_has_its_default() -> None:
    assert read("OVERT_NOT_SET", 3) == "3"
    assert read("OVERT_NOT_SET", None) is None
    with pytest.raises(KeyError, match="is not set"):
        read("OVERT_NOT_SET")
    with pytest.raises(ValueError, match="takes the name"):
        read(3)  # type: ignore[arg-type]
