"""overt/run/mlflow_tracker.py: what MLflow itself says of a run afterwards."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overt.config import load
from overt.errors import ConfigError
from overt.run.log import MetricsLogger
from overt.run.session import make_tracker

TARGET = "overt.run.mlflow_tracker.MLflow"


def session(folder: Path, resume_step: int | None, **arguments: Any) -> MetricsLogger:
    maker = make_tracker({"_target_": TARGET, **arguments})
    return MetricsLogger(
        "probe", folder, {"lr": 0.1}, False, False, resume_step=resume_step, trackers=[maker]
    )


def test_two_sessions_are_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs pip install 'overt[mlflow]'")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.chdir(tmp_path)  # where MLflow keeps artifacts of such a store
    with session(tmp_path / "run", None, uri=uri, experiment="tracking") as logger:
        for step in range(3):
            logger.log_metrics({"loss": float(step), "bad": float("nan")}, step, "train")
        logger.log_image("tracks", np.zeros((3, 4, 4)), 2)
        logger.log_video("film", np.zeros((2, 3, 4, 4), np.uint8), 2)
        logger.log_histogram("values", [1.0, 3.0], 2)
        logger.log_text("sample", "once", 2)
    with session(tmp_path / "run", 1, uri=uri, experiment="tracking") as logger:
        logger.log_metrics({"loss": 20.0}, 2, "train")
        logger.finish(exit_code=1)
    with session(tmp_path / "stopped", None, uri=uri, experiment="stopped") as logger:
        logger.finish(exit_code=85)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tracking").experiment_id])
    (stopped,) = client.search_runs([client.get_experiment_by_name("stopped").experiment_id])
    assert stopped.info.status == "KILLED"  # asked to stop: not an error
    assert run.info.run_name == "probe"
    assert run.info.status == "FAILED"
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in history] == [(0, 0), (1, 1), (2, 2), (2, 20)]
    assert run.data.metrics["values/mean"] == 2.0
    names = {one.path for one in client.list_artifacts(run.info.run_id, "pictures")}
    assert names == {"pictures/tracks_00000002.png", "pictures/film_00000002.gif"}
    assert [one.path for one in client.list_artifacts(run.info.run_id, "texts")] == [
        "texts/sample_00000002.txt"
    ]


def test_a_missing_package_is_one_warning_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with session(tmp_path, None) as logger:
        logger.log_metrics({"loss": 1.0}, 0)
    (message,) = caplog.messages
    assert "logging to MLflow failed" in message
    assert "pip install 'overt[mlflow]'" in message
    assert "training continues" in message


def test_a_class_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean MLflow"):
        make_tracker({"_target_": TARGET + "s"})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{_target_: os.system}", "logging.trackers=os.system is not allowed"),
        ("{target: x}", "write {_target_: package.module.Class}"),
        ("text", "write {_target_: package.module.Class}"),
    ],
)
def test_what_a_configuration_may_name(entry: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(["recipe=cotracker3_tiny", f"logging.trackers=[{entry}]"])
    assert message in str(refusal.value)
