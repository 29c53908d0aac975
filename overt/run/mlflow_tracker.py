"""MLflow as a tracker, and an example of one: `logging.trackers` names it.

logging.trackers='[{_target_: overt.run.mlflow_tracker.MLflow, uri: "sqlite:///mlflow.db"}]'
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from overt.errors import STOPPED_EXIT_CODES
from overt.run.trackers import Pixels, Start, Values, replace_file, usual_names

ID_FILE = "mlflow_run_id"


class MLflow:
    """One run per run folder: its id is kept there, and every later session continues it.

    MLflow cannot remove values: a step repeated after a resume has two, and the later one counts.
    """

    name = "MLflow"

    def __init__(self, start: Start, uri: str | None = None, experiment: str = "overt") -> None:
        try:
            import mlflow  # seconds: only where it is used
        except ImportError as error:
            raise ImportError(f"{error}; pip install 'overt[mlflow]'") from error
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        experiment_found = self._client.get_experiment_by_name(experiment)
        destination = (
            experiment_found.experiment_id
            if experiment_found
            else self._client.create_experiment(experiment)
        )
        id_file = start.log_dir / ID_FILE
        if id_file.exists() and start.resume_step is not None:
            self._run_id = id_file.read_text().strip()
            self._client.set_terminated(self._run_id, status="RUNNING")
        else:
            self._run_id = self._client.create_run(
                destination, run_name=start.experiment_name
            ).info.run_id
            replace_file(id_file, self._run_id.encode())
        text = json.dumps(start.config, indent=2, default=str)
        self._client.log_text(self._run_id, text, "config.json")

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        for name, value in usual_names(values).items():
            if math.isfinite(value):  # not every store of MLflow takes the others
                self._client.log_metric(self._run_id, _name(name), value, step=step)

    def image(self, name: str, pixels: Pixels, step: int, caption: str | None) -> None:
        path = f"pictures/{_name(name)}_{step:08d}.png"
        self._client.log_image(self._run_id, Image.fromarray(pixels), path)

    def video(self, name: str, gif: bytes, step: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{_name(name).replace('/', '_')}_{step:08d}.gif"
            path.write_bytes(gif)
            self._client.log_artifact(self._run_id, str(path), "pictures")

    def text(self, name: str, text: str, step: int) -> None:
        self._client.log_text(self._run_id, text, f"texts/{_name(name)}_{step:08d}.txt")

    def histogram(self, name: str, values: Values, step: int) -> None:
        spread = {"min": values.min(), "mean": values.mean(), "max": values.max()}
        self.metrics({f"{name}/{key}": float(value) for key, value in spread.items()}, step)

    def close(self, exit_code: int) -> None:
        status = "KILLED" if exit_code in STOPPED_EXIT_CODES else "FAILED"
        self._client.set_terminated(self._run_id, status=status if exit_code else "FINISHED")


def _name(name: str) -> str:
    """MLflow knows letters, digits, and _ - . / and space."""
    return "".join(
        character if character.isalnum() or character in "_-./ " else "_" for character in name
    )
