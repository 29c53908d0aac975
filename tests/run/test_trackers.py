"""overt/run/trackers.py: TensorBoard, Weights & Biases and a user's own get everything once."""

import builtins
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from log_files import SQUARE, plain, rows
from PIL import Image
from wandb_file import read_offline_run

from overt.run.log import MetricsLogger
from overt.run.trackers import Start, binned, usual_name, usual_names

# --- other trackers -------------------------------------------------------------------------------


class Diary:
    """A tracker that remembers what it was told."""

    name = "diary"
    written: list[Any]

    def __init__(self, start: Start, fails: bool = False) -> None:
        self.written = [start]
        self.fails = fails
        type(self).last = self

    def metrics(self, values: Any, step: int) -> None:
        if self.fails:
            raise OSError("no ink")
        self.written.append((dict(values), step))

    def image(self, name: str, pixels: Any, step: int, caption: str | None) -> None:
        self.written.append((name, pixels.shape, step, caption))

    def video(self, name: str, gif: bytes, step: int) -> None:
        self.written.append((name, gif[:3], step))

    def histogram(self, name: str, values: Any, step: int) -> None:
        self.written.append((name, values.tolist(), step))

    def close(self, exit_code: int) -> None:
        self.written.append(exit_code)


def test_another_tracker_is_told_everything(tmp_path: Path) -> None:
    with plain(tmp_path, config={"lr": 0.1}, resume_step=2, trackers=[Diary]) as logger:
        logger.log_metrics({"loss": 1.0}, 3, "train")
        logger.log_picture("still", SQUARE, 3)
        logger.log_picture("moving", torch.zeros(2, 3, 4, 4, dtype=torch.uint8), 3)
        logger.log_histogram("values", [1.0, 2.0], 3)
        logger.log_text("sample", "for trackers that have a method `text`", 3)
    assert Diary.last.written == [
        Start("test", tmp_path, {"lr": 0.1}, 2),
        ({"train/loss": 1.0}, 3),
        ("still", SQUARE.shape, 3, None),
        ("moving", b"GIF", 3),
        ("values", [1.0, 2.0], 3),
        0,
    ]


def test_another_tracker_that_fails_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def cannot_start(start: Start) -> Any:
        raise ConnectionError("no server")

    makers = [cannot_start, partial(Diary, fails=True)]
    with plain(tmp_path, trackers=makers) as logger:
        for step in range(3):
            logger.log_metrics({"loss": 1.0}, step)
    assert len(rows(tmp_path)) == 3
    first, second = caplog.messages
    assert "cannot_start failed: ConnectionError('no server')" in first
    assert "diary failed: OSError('no ink'); it is disabled" in second


class Nameless:
    """A tracker without the name that the protocol asks for."""

    def __init__(self, start: Start) -> None:
        self.rows = 0

    def metrics(self, values: Any, step: int) -> None:
        self.rows += 1
        if self.rows > 1:
            raise OSError("no ink")


def test_a_tracker_without_a_name_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with plain(tmp_path, trackers=[Nameless]) as logger:  # type: ignore[list-item]
        for step in range(3):
            logger.log_metrics({"loss": 1.0}, step)
    assert len(rows(tmp_path)) == 3
    (message,) = caplog.messages
    assert "Nameless failed: OSError('no ink'); it is disabled" in message


UNUSUAL = {
    "constant, large": [1e17],
    "beyond the bins of TensorBoard": [1e25, 1e30],
    "of both signs": [-1e308, 1e308],
    "neighbors": [1.0, float(np.nextafter(1.0, 2.0))],
    "subnormal": [1e-320, 2e-320],
    "zero": [0.0, 0.0],
}


@pytest.mark.parametrize("values", UNUSUAL.values(), ids=UNUSUAL)
def test_any_finite_values_have_bins(values: list[float]) -> None:
    counts, edges = binned(np.array(values))
    assert (len(counts), len(edges), counts.sum()) == (64, 65, len(values))
    assert np.isfinite(edges).all()
    assert (np.diff(edges) > 0).all()


def test_the_bins_of_usual_values_are_those_of_numpy() -> None:
    values = np.random.default_rng(0).normal(size=100)
    for array in (values, np.ones(5)):
        for bins, expected in zip(binned(array), np.histogram(array, bins=64), strict=True):
            np.testing.assert_array_equal(bins, expected)


def no_pixels(logger: MetricsLogger) -> None:
    logger.log_image("empty", np.zeros((3, 0, 5)), 1)
    logger.log_video("empty", torch.zeros(0, 3, 4, 4), 1)


def half_a_surrogate(logger: MetricsLogger) -> None:
    """As bytes that are no UTF-8 become when a text is read with surrogateescape."""
    logger.log_text("text \udc80", "a\udc80", 1)
    logger.log_metrics({"metric \udc80": 1.0}, 1)
    logger.log_image("image \udc80", SQUARE, 1, "caption \udc80")
    logger.log_histogram("values \udc80", [1.0], 1)


def extreme_numbers(logger: MetricsLogger) -> None:
    for name, values in UNUSUAL.items():
        logger.log_histogram(name, values, 1)
    logger.log_metrics({"more than a float holds": 10**400, "much": 10**300}, 1)


def other_types(logger: MetricsLogger) -> None:
    logger.log_metrics({1: 2.0}, np.int64(1))  # type: ignore[dict-item, arg-type]
    logger.log_image("picture", SQUARE, torch.tensor(1))  # type: ignore[arg-type]
    logger.log_histogram("values", [1.0], np.int32(1))  # type: ignore[arg-type]


@pytest.mark.parametrize("log", [no_pixels, half_a_surrogate, extreme_numbers, other_types])
def test_unusual_values_disable_no_tracker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, log: Callable[[MetricsLogger], None]
) -> None:
    """A diverged gradient or an empty picture ended TensorBoard and W&B for the rest of a run."""
    with MetricsLogger("test", tmp_path, use_wandb=True, wandb_mode="offline") as logger:
        log(logger)
        logger.log_metrics({"loss": 0.5}, 2)
    assert not [message for message in caplog.messages if "disabled" in message]
    assert "loss" in read_offline_run(written_run(tmp_path)).rows[-1]
    assert tensorboard_of(tmp_path).Scalars("loss")[0].step == 2


# --- TensorBoard ----------------------------------------------------------------------------------


def tensorboard_of(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    return events.Reload()


def test_tensorboard_shows_a_text_as_it_is(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsLogger("test", tmp_path, use_wandb=False) as logger:
        logger.log_sample("sample", "# no heading\n\n*", 3)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (record,) = events.Tensors("sample/text_summary")
    shown = record.tensor_proto.string_val[0].decode()
    assert (record.step, shown) == (3, "    # no heading\n    \n    *")


def test_tensorboard_has_each_step_once_across_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsLogger("test", tmp_path, {"lr": 0.1}) as logger:
        for step in range(6):
            logger.log_metrics({"loss": float(step)}, step, "train")
    with MetricsLogger("test", tmp_path, {"lr": 0.1}, resume_step=3) as logger:
        for step in range(4, 7):
            logger.log_metrics({"loss": float(10 * step)}, step, "train")
        logger.log_image("picture", SQUARE, 6)
        logger.log_video("video", np.zeros((3, 3, 4, 6), np.uint8), 6)
        logger.log_histogram("values", np.arange(8.0), 6)
    keep_all = {"scalars": 0, "images": 0, "histograms": 0, "tensors": 0}
    found = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance=keep_all)
    found.Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [
        (0, 0), (1, 1), (2, 2), (3, 3), (4, 40), (5, 50), (6, 60)
    ]  # fmt: skip
    picture = Image.open(io.BytesIO(found.Images("picture")[0].encoded_image_string))
    np.testing.assert_array_equal(np.asarray(picture), SQUARE)
    video = Image.open(io.BytesIO(found.Images("video")[0].encoded_image_string))
    assert (video.format, video.size) == ("GIF", (6, 4))
    assert found.Histograms("values")[0].histogram_value.num == 8
    text = found.Tensors("config/text_summary")[0].tensor_proto.string_val[0]
    assert b'"lr": 0.1' in text


# --- Weights & Biases -----------------------------------------------------------------------------


def offline(folder: Path, **options: Any) -> MetricsLogger:
    return plain(folder, config={"lr": 0.1}, use_wandb=True, wandb_mode="offline", **options)


def written_run(folder: Path) -> Path:
    """The file of the one run in `folder`, once W&B's own process has written all of it."""
    import wandb  # most of a second, which each worker would spend to collect this file

    wandb.teardown()
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return path


def test_two_offline_sessions_are_one_run_on_our_own_step_axis(tmp_path: Path) -> None:
    sessions = []
    for resume, steps in ((None, range(5)), (2, range(3, 8))):
        with offline(tmp_path, resume_step=resume) as logger:
            run_id = logger.wandb_run_id
            for step in steps:
                logger.log_metrics({"loss": float(100 * len(sessions) + step)}, step, "train")
        path = written_run(tmp_path)
        sessions.append(read_offline_run(path))
        # The folder's name has the time in seconds: the second session must not meet the first.
        path.parent.rename(tmp_path / f"session-{len(sessions)}")
    assert {session.run_id for session in sessions} == {run_id}
    assert (tmp_path / "wandb_run_id").read_text() == run_id
    for session in sessions:
        assert session.config["lr"] == 0.1
        assert session.step_metrics["*"] == "step"
        assert session.exit_code == 0
    joined = {row["step"]: row["train/loss"] for session in sessions for row in session.rows}
    assert joined == {0: 0, 1: 1, 2: 2, 3: 103, 4: 104, 5: 105, 6: 106, 7: 107}
    # Nothing was dropped: the steps logged a second time are there a second time.
    assert sum(len(session.rows) for session in sessions) == 10


def test_pictures_videos_and_histograms_reach_an_offline_run(tmp_path: Path) -> None:
    with offline(tmp_path) as logger:
        logger.log_image("picture", SQUARE, 3, "two")
        logger.log_video("video", np.zeros((3, 3, 4, 6), np.uint8), 3)
        logger.log_histogram("values", np.arange(8.0), 3)
        logger.log_text("sample", "a < b", 3)
    path = written_run(tmp_path)
    picture, video, histogram, text = read_offline_run(path).rows
    assert "<pre>a &lt; b</pre>" in (path.parent / "files" / text["sample.path"]).read_text()
    assert picture["picture.caption"] == "two"
    stored = Image.open(path.parent / "files" / picture["picture.path"])
    np.testing.assert_array_equal(np.asarray(stored), SQUARE)
    assert (path.parent / "files" / video["video.path"]).suffix == ".gif"
    assert sum(histogram["values.values"]) == 8
    assert [row["step"] for row in (picture, video, histogram)] == [3, 3, 3]


def test_a_missing_package_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real_import = builtins.__import__

    def no_wandb(name: str, *rest: Any) -> Any:
        if name == "wandb":
            raise ModuleNotFoundError("No module named 'wandb'")
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_wandb)
    with plain(tmp_path, use_wandb=True) as logger:
        logger.log_metrics({"loss": 1.0}, 0)
    assert len(caplog.messages) == 1
    assert "pip install 'overt[wandb]'" in caplog.messages[0]
    assert logger.wandb_run_id is None
    assert rows(tmp_path) == [{"step": 0, "loss": 1.0}]


class BrokenTracker:
    """Stands in for the wandb package: it starts, and then fails at everything."""

    def __init__(self, fails_at_start: bool) -> None:
        self.fails_at_start = fails_at_start
        self.ids: list[str] = []
        self.calls = 0

    def Settings(self, **_: Any) -> None:  # noqa: N802
        return None

    def init(self, **options: Any) -> Any:
        self.ids.append(options["id"])
        if self.fails_at_start:
            raise ConnectionError("no network")
        return SimpleNamespace(define_metric=lambda *_, **__: None, log=self.fail, finish=self.fail)

    def fail(self, *_: Any, **__: Any) -> None:
        self.calls += 1
        raise ConnectionError("gone")


def test_a_tracker_that_fails_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = BrokenTracker(fails_at_start=False)
    monkeypatch.setitem(sys.modules, "wandb", broken)  # type: ignore[arg-type]
    with plain(tmp_path, use_wandb=True) as logger:
        for step in range(3):
            logger.log_metrics({"loss": 1.0}, step)
    assert broken.calls == 1
    assert len(caplog.messages) == 1
    assert "Weights & Biases" in caplog.messages[0]
    assert len(rows(tmp_path)) == 3


def test_the_run_id_is_kept_before_anything_can_go_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = BrokenTracker(fails_at_start=True)
    monkeypatch.setitem(sys.modules, "wandb", broken)  # type: ignore[arg-type]
    for resume in (None, 0):
        plain(tmp_path, use_wandb=True, resume_step=resume)
    assert len(set(broken.ids)) == 1
    assert "wandb_mode=offline" in caplog.messages[0]
    plain(tmp_path / "moved", use_wandb=True, wandb_run_id="abc123")
    assert broken.ids[-1] == "abc123"


def test_scores_have_the_names_that_viewers_group_by() -> None:
    row = {"train/loss": 1.0, "evaluation/val_loss": 2.0, "evaluation/knn_top1": 3.0, "mine": 4.0}
    expected = {"train/loss": 1.0, "val/loss": 2.0, "val/knn_top1": 3.0, "mine": 4.0}
    assert usual_names(row) == expected
    # No two scores become one.
    both = {"evaluation/val_loss": 1.0, "evaluation/loss": 2.0}
    assert usual_names(both) == {"val/val_loss": 1.0, "val/loss": 2.0}
    assert usual_name("evaluation/tracks") == "val/tracks"


def test_tensorboard_gets_these_names(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsLogger("test", tmp_path) as logger:
        logger.log_metrics({"loss": 0.5}, 1, prefix="train")
        logger.log_metrics({"val_loss": 0.25, "accuracy": 1.0}, 1, prefix="evaluation")
    accumulator = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(accumulator.Tags()["scalars"]) == ["train/loss", "val/accuracy", "val/loss"]
