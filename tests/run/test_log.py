"""MetricsLogger: what is in the files afterwards, and that nothing it meets stops training."""

import builtins
import io
import json
import math
import os
import resource
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import wandb
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from wandb_file import read_offline_run

from overt.health.system import environment
from overt.run import log
from overt.run.log import MetricsLogger, as_gif, as_pixels
from overt.run.trackers import Start


def plain(folder: Path, **options: Any) -> MetricsLogger:
    """A logger without TensorBoard, whose import takes seconds."""
    return MetricsLogger("test", folder, use_tensorboard=False, **options)


def rows(folder: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The rows of a file, which must be strict JSON, without their times."""

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is no JSON")

    found = []
    for line in (folder / file).read_text().splitlines():
        row = json.loads(line, parse_constant=refuse)
        assert row.pop("time") > 0
        found.append(row)
    return found


def events(folder: Path) -> list[dict[str, Any]]:
    """The events without the environment, which starts and resumes bring along."""
    known = environment()
    return [
        {key: value for key, value in event.items() if key not in known}
        for event in rows(folder, "events.jsonl")
    ]


# --- the run folder -------------------------------------------------------------------------------


def test_numbers_of_every_kind_become_strict_json(tmp_path: Path) -> None:
    with plain(tmp_path) as logger:
        logger.log_metrics({"loss": torch.tensor(0.5), "count": 3, "flag": True}, 1, "train")
        logger.log_metrics({"a": math.nan, "b": -math.inf, "c": np.float32(0.25)}, 2, "train/")
        logger.log_metrics({"d": torch.tensor(math.inf, dtype=torch.bfloat16)}, 3)
    assert rows(tmp_path) == [
        {"step": 1, "train/loss": 0.5, "train/count": 3, "train/flag": 1.0},
        {"step": 2, "train/a": "nan", "train/b": "-inf", "train/c": 0.25},
        {"step": 3, "d": "inf"},
    ]


def test_a_row_is_there_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    logger = plain(tmp_path)
    logger.log_metrics({"loss": 1.0}, 0)
    assert rows(tmp_path) == [{"step": 0, "loss": 1.0}]
    logger.finish()
    logger.log_metrics({"loss": 2.0}, 1)
    assert len(rows(tmp_path)) == 1


def test_without_a_step_the_steps_follow_each_other(tmp_path: Path) -> None:
    with plain(tmp_path, resume_step=4) as logger:
        for _ in range(2):
            logger.log_metrics({"loss": 1.0})
        logger.log_metrics({"loss": 1.0}, 10)
        logger.log_metrics({"loss": 1.0})
    assert [row["step"] for row in rows(tmp_path)] == [5, 6, 10, 11]


def test_steps_go_forward_and_a_name_has_one_value_per_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with plain(tmp_path) as logger:
        logger.log_metrics({"loss": 1.0}, 5)
        logger.log_metrics({"score": 0.1}, 5, "evaluation")
        for _ in range(2):
            logger.log_metrics({"loss": 2.0, "extra": 3.0}, 5)
            logger.log_metrics({"loss": 9.0}, 4)
    assert rows(tmp_path) == [
        {"step": 5, "loss": 1.0},
        {"step": 5, "evaluation/score": 0.1},
        {"step": 5, "extra": 3.0},
    ]
    assert caplog.messages == [
        "loss logged twice for step 5; the first value stays",
        "step 4 left out: step 5 is logged already",
    ]


def test_what_is_no_number_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with plain(tmp_path) as logger:
        for step in range(2):
            logger.log_metrics({"loss": 1.0, "wrong": torch.zeros(3)}, step)
    assert rows(tmp_path) == [{"step": 0, "loss": 1.0}, {"step": 1, "loss": 1.0}]
    assert len(caplog.messages) == 1
    assert "the metric wrong" in caplog.messages[0]


def test_means_of_what_was_accumulated(tmp_path: Path) -> None:
    with plain(tmp_path) as logger:
        for value in (1.0, 2.0, 6.0):
            logger.accumulate_metrics({"loss": torch.tensor(value, requires_grad=True), "n": value})
        logger.accumulate_metrics({"rare": 4})
        logger.log_accumulated_metrics(7, "train")
        logger.accumulate_metrics({"loss": 5.0})
        logger.log_accumulated_metrics(8, "train")
    assert rows(tmp_path) == [
        {"step": 7, "train/loss": 3.0, "train/n": 3.0, "train/rare": 4.0},
        {"step": 8, "train/loss": 5.0},
    ]


def test_events_keep_what_happened(tmp_path: Path) -> None:
    with plain(tmp_path) as logger:
        logger.log_event("skip", step=3, loss=math.nan, samples=[[0, 1.0], [0, math.inf]])
    assert events(tmp_path) == [
        {"kind": "start"},
        {"kind": "skip", "step": 3, "loss": "nan", "samples": [[0, 1.0], [0, "inf"]]},
        {"kind": "finish", "exit_code": 0},
    ]


def test_half_an_event_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"time": 1, "ki')
    plain(tmp_path, resume_step=0)
    torn, whole = (tmp_path / "events.jsonl").read_text().splitlines()
    assert torn == '{"time": 1, "ki'
    assert json.loads(whole)["kind"] == "resume"


def test_a_failed_run_says_so(tmp_path: Path) -> None:
    def fail() -> None:
        with plain(tmp_path):
            raise RuntimeError("first line\nsecond line")

    with pytest.raises(RuntimeError):
        fail()
    last = {"kind": "finish", "exit_code": 1, "error": "RuntimeError: first line"}
    assert events(tmp_path)[-1] == last


def test_a_run_that_succeeds_names_no_error_of_others(tmp_path: Path) -> None:
    try:
        raise RuntimeError("of before")
    except RuntimeError:
        plain(tmp_path).finish()
    assert events(tmp_path)[-1] == {"kind": "finish", "exit_code": 0}


def test_a_session_says_where_it_runs(tmp_path: Path) -> None:
    plain(tmp_path)
    plain(tmp_path, resume_step=3)
    start, resume = rows(tmp_path, "events.jsonl")
    assert start == {"kind": "start", **environment()}
    assert resume == {"kind": "resume", "step": 3, **environment()}
    assert start["pid"] == os.getpid()
    assert start["torch"] == torch.__version__


def test_other_processes_are_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "is_main_process", lambda: False)
    folder = tmp_path / "run"
    with MetricsLogger("test", folder, use_wandb=True, use_tensorboard=True) as logger:
        logger.log_metrics({"loss": 1.0}, 0)
        logger.accumulate_metrics({"loss": 1.0})
        logger.log_accumulated_metrics(1)
        logger.log_image("image", np.zeros((3, 4, 4)), 1)
        logger.log_video("video", np.zeros((2, 3, 4, 4), np.uint8), 1)
        logger.log_histogram("histogram", [1.0], 1)
        logger.log_model_weights(torch.nn.Linear(1, 1), 1)
        logger.log_system_metrics(1)
        logger.log_event("event")
    assert not folder.exists()


# --- resume ---------------------------------------------------------------------------------------


def test_resume_takes_back_what_comes_again(tmp_path: Path) -> None:
    with plain(tmp_path) as logger:
        for step in range(6):
            logger.log_metrics({"loss": float(step)}, step)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')  # the process was killed here
    with plain(tmp_path, resume_step=3) as logger:
        logger.log_metrics({"loss": -1.0}, 3)  # step 3 has its loss already
        logger.log_metrics({"loss": 40.0}, 4)
    assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [
        (0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)
    ]  # fmt: skip
    assert {"kind": "resume", "step": 3} in events(tmp_path)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), min_size=1, max_size=4),
    st.binary(max_size=8),
)
def test_any_chain_of_resumes_reads_like_one_run(
    tmp_path_factory: pytest.TempPathFactory, sessions: list[tuple[int, int]], torn: bytes
) -> None:
    folder = tmp_path_factory.mktemp("run")
    step, expected = 0, {}
    for session, (resume, length) in enumerate(sessions):
        saved = min(resume, step)
        logger = plain(folder, resume_step=None if session == 0 else saved)
        step = saved if session else 0
        expected = {k: v for k, v in expected.items() if k <= step}
        for _ in range(length):
            step += 1
            logger.log_metrics({"loss": session}, step, "train")
            logger.log_metrics({"score": session}, step, "evaluation")
            expected[step] = session
        # No finish: the process is gone, and may have left half a line.
        with open(folder / "metrics.jsonl", "ab") as file:
            file.write(torn.replace(b"\n", b""))
    plain(folder, resume_step=step)
    found = rows(folder)
    assert [row["step"] for row in found] == [s for s in sorted(expected) for _ in range(2)]
    losses = {row["step"]: row["train/loss"] for row in found if "train/loss" in row}
    scores = {row["step"]: row["evaluation/score"] for row in found if "evaluation/score" in row}
    assert losses == scores == expected


def test_a_failure_while_cutting_leaves_the_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with plain(tmp_path) as logger:
        for step in range(4):
            logger.log_metrics({"loss": 0.0}, step)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    plain(tmp_path, resume_step=1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert len(caplog.messages) == 1


def test_a_fresh_start_in_an_old_folder_sets_the_old_rows_aside(tmp_path: Path) -> None:
    for value in (1.0, 2.0, 3.0):
        with plain(tmp_path) as logger:
            logger.log_metrics({"loss": value}, 0)
    assert rows(tmp_path) == [{"step": 0, "loss": 3.0}]
    assert rows(tmp_path, "metrics.1.jsonl") == [{"step": 0, "loss": 1.0}]
    assert rows(tmp_path, "metrics.2.jsonl") == [{"step": 0, "loss": 2.0}]


# --- disks ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with plain(tmp_path) as logger:
        for step in range(3):
            logger.log_metrics({"loss": 1.0}, step)
    assert len(caplog.messages) == 1
    assert "No space left" in caplog.messages[0]
    assert "training goes on" in caplog.messages[0]


def test_a_row_that_fits_only_half_is_taken_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = plain(tmp_path)
    logger.log_metrics({"loss": 0.0}, 0)
    size = (tmp_path / "metrics.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        logger.log_metrics({"loss": 1.0}, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caplog.messages) == 1
    logger.log_metrics({"loss": 2.0}, 2)  # there is room again
    assert [row["step"] for row in rows(tmp_path)] == [0, 2]


def test_a_folder_that_cannot_be_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    with plain(tmp_path / "file" / "run") as logger:
        logger.log_metrics({"loss": 1.0}, 0)
        logger.log_image("image", np.zeros((3, 4, 4)), 0)
        logger.log_event("event")
    assert len(caplog.messages) == 2  # the folder, and events.jsonl
    assert all("training goes on" in warning for warning in caplog.messages)


# --- pictures -------------------------------------------------------------------------------------

SQUARE = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3) * 8  # (H, W, 3)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (SQUARE, SQUARE),
        (SQUARE.transpose(2, 0, 1), SQUARE),
        (torch.from_numpy(SQUARE).permute(2, 0, 1), SQUARE),
        (torch.from_numpy(SQUARE).permute(2, 0, 1) / 255, SQUARE),
        ((torch.from_numpy(SQUARE) / 255).requires_grad_(), SQUARE),
        (SQUARE.astype(np.float64) / 255, SQUARE),
        (SQUARE.astype(np.int64), SQUARE),
        (SQUARE[:, :, 0], SQUARE[:, :, :1].repeat(3, 2)),
        (SQUARE[:, :, :1], SQUARE[:, :, :1].repeat(3, 2)),
        (np.dstack([SQUARE, SQUARE[:, :, :1]]), SQUARE),
        (np.array([[-1.0, 2.0], [math.nan, 0.0]]), [[[0] * 3, [255] * 3], [[0] * 3, [0] * 3]]),
        (np.array([[True, False]]), [[[255] * 3, [0] * 3]]),
        (torch.ones(1, 1, 1, dtype=torch.bfloat16), [[[255] * 3]]),
    ],
)
def test_pictures_of_every_layout(image: Any, expected: Any) -> None:
    pixels = as_pixels(image)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, expected)


def test_pictures_and_videos_are_files_that_events_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = torch.randint(0, 255, (4, 3, 6, 8), generator=torch.Generator().manual_seed(0))
    with plain(tmp_path) as logger:
        logger.log_image("evaluation/tracks 1", SQUARE, 3, caption="two")
        logger.log_video("../video", frames.to(torch.uint8), 3, fps=5)
        logger.log_image("wrong", np.zeros((7, 7, 7)), 3)
        logger.log_video("empty", np.zeros((0, 3, 4, 4), np.uint8), 3)
    image, video = events(tmp_path)[1:3]
    assert image == {"kind": "image", "name": "evaluation/tracks 1", "step": 3, "caption": "two",
                     "path": "pictures/evaluation_tracks_1_00000003.png"}  # fmt: skip
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / image["path"])), SQUARE)
    assert video["path"] == "pictures/.._video_00000003.gif"
    gif = Image.open(tmp_path / video["path"])
    assert (gif.n_frames, gif.size, gif.info["duration"]) == (4, (8, 6), 200)
    assert len(caplog.messages) == 2
    assert "(7, 7, 7) is no picture" in caplog.messages[0]


def test_a_gif_shows_the_frames_in_order() -> None:
    frames = np.stack([np.full((3, 4, 4), value, np.uint8) for value in (0, 128, 255)])
    gif = Image.open(io.BytesIO(as_gif(frames, fps=10)))
    for index, value in enumerate((0, 128, 255)):
        gif.seek(index)
        assert np.asarray(gif.convert("RGB")).mean() == pytest.approx(value, abs=1)


# --- histograms, system ---------------------------------------------------------------------------


def test_histograms_leave_their_spread_in_the_run_folder(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    with plain(tmp_path) as logger:
        logger.log_histogram("values", torch.tensor([1.0, 3.0, math.nan]), 0)
        logger.log_histogram("nothing", [math.nan], 0)
        logger.log_model_gradients(model, 0)  # none yet
        model(torch.tensor([1.0, 5.0])).sum().backward()
        logger.log_model_gradients(model, 1)
        logger.log_model_weights(model, 1)
    spread = {"min": 1.0, "mean": 2.0, "max": 3.0, "std": 1.0}
    assert rows(tmp_path) == [
        {"step": 0} | {f"values/{key}": value for key, value in spread.items()},
        {"step": 1} | {"gradients/weight/min": 1.0, "gradients/weight/mean": 3.0,
                       "gradients/weight/max": 5.0, "gradients/weight/std": 2.0},
        {"step": 1} | {"weights/weight/min": 2.0, "weights/weight/mean": 2.0,
                       "weights/weight/max": 2.0, "weights/weight/std": 0.0},
    ]  # fmt: skip


def test_system_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with plain(tmp_path) as logger:
        logger.log_system_metrics(0)

        def no_nvml(index: int) -> int:
            raise ModuleNotFoundError("pynvml")

        cuda = {"is_initialized": lambda: True, "device_count": lambda: 1}
        cuda |= {"memory_allocated": lambda index: 2e9, "memory_reserved": lambda index: 3e9}
        for name, function in cuda.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch.cuda, "utilization", no_nvml)
        logger.log_system_metrics(1)
        monkeypatch.setattr(torch.cuda, "utilization", lambda index: 97)
        monkeypatch.setattr(torch.cuda, "memory_usage", lambda index: 40)
        monkeypatch.setattr(torch.cuda, "temperature", lambda index: 60)
        monkeypatch.setattr(torch.cuda, "power_draw", lambda index: 500_000)
        logger.log_system_metrics(2)
    first, second, third = rows(tmp_path)
    assert {"system/memory_gb", "system/cpu_load", "system/disk_free_gb"} <= set(first)
    assert not any("gpu" in name for name in first)
    assert second["system/gpu0_memory_allocated_gb"] == 2.0
    assert second["system/gpu0_memory_reserved_gb"] == 3.0
    assert "system/gpu0_utilization" not in second
    assert third["system/gpu0_utilization"] == 97
    assert third["system/gpu0_memory_utilization"] == 40
    assert third["system/gpu0_power_w"] == 500


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
    assert "diary failed: OSError('no ink'); it is not used any more" in second


# --- TensorBoard ----------------------------------------------------------------------------------


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
    path = written_run(tmp_path)
    picture, video, histogram = read_offline_run(path).rows
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
