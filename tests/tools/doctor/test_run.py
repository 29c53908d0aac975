"""overt/tools/doctor/run.py: disk, data and loaders of one configured run."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_runs import toy_config, train_toy

from overt.config import build_recipe
from overt.tools.doctor import run
from overt.tools.doctor.report import Level


@pytest.mark.parametrize(
    "settings",
    [(), ("training.ema_momentum=0.9",), ("optimizer._target_=torch.optim.SGD",)],
    ids=["adamw", "average", "sgd"],
)
def test_the_size_of_a_checkpoint_is_predicted(settings: tuple[str, ...], tmp_path: Path) -> None:
    words = [*settings, "model.width=4096", "training.num_steps=1"]
    if settings[-1:] == ("optimizer._target_=torch.optim.SGD",):
        words += ["~optimizer.arguments.betas", "~optimizer.arguments.eps"]
    train_toy(tmp_path, *words)
    folder = tmp_path / "toy" / "checkpoints" / "latest"
    parts = [folder / f"{name}.safetensors" for name in ("model", "ema", "optimizer")]
    real = sum(path.stat().st_size for path in parts if path.exists())
    config = toy_config(tmp_path, *words)
    assert run.checkpoint_bytes(config, build_recipe(config)) == pytest.approx(real, rel=0.02)


def test_a_small_disk_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    recipe = build_recipe(config)
    size = run.checkpoint_bytes(config, recipe)
    levels = []
    for checkpoints in (1, 3, 100):
        usage = SimpleNamespace(total=0, used=0, free=checkpoints * size)
        monkeypatch.setattr("shutil.disk_usage", lambda path, usage=usage: usage)
        levels.append(run.disk_space(config, size).level)
    assert levels == [Level.FAIL, Level.WARN, Level.OK]


def test_loaders_are_compared_with_the_steps_of_an_earlier_session(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "training.num_workers=1", "training.batch_size=10")
    config.run_dir.mkdir()
    rows = [{"step": step, "train/seconds_per_step": 0.5} for step in range(5)]
    lines = [*map(json.dumps, rows), '{"step": 5, "tra']  # torn by a crash
    (config.run_dir / "metrics.jsonl").write_text("\n".join(lines))
    seconds = run.measured_step_seconds(config.run_dir)
    assert seconds == 0.5  # 20 samples a second
    assert run.loader_speed(config, 0.01, 1, seconds).level is Level.OK
    check = run.loader_speed(config, 0.1, 1, seconds)
    assert check.level is Level.WARN
    assert "training.num_workers=3" in check.remedy


def test_a_bug_in_the_data_set_is_a_finding(tmp_path: Path) -> None:
    class Broken:
        def __len__(self) -> int:
            return 3

        def sample(self, index: int, rng: Any) -> Any:
            raise KeyError("tracks")

    check, seconds = run.read_samples(Broken(), toy_config(tmp_path), 2)
    assert check.level is Level.FAIL
    assert "KeyError: 'tracks'" in check.finding
    assert seconds is None
