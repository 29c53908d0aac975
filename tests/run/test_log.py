"""MetricsLogger: what is in the files afterwards, and that nothing it meets stops training."""

import io
import json
import math
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from log_files import SQUARE, plain, rows
from PIL import Image

from overt.errors import Preempted
from overt.health.system import environment
from overt.run import log
from overt.run.log import MetricsLogger, as_gif, as_pixels


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


def test_a_metric_does_not_replace_the_step_or_time_of_its_row(tmp_path: Path) -> None:
    with plain(tmp_path) as logger:
        logger.log_metrics({"step": 999, "time": 0.25, "loss": 1}, step=11)
        logger.log_metrics({"step": 7}, 11, "train")
    assert rows(tmp_path) == [
        {"step": 11, "metrics/step": 999, "metrics/time": 0.25, "loss": 1},
        {"step": 11, "train/step": 7},
    ]


def test_a_row_is_there_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    logger = plain(tmp_path)
    logger.log_metrics({"loss": 1.0}, 0)
    assert rows(tmp_path) == [{"step": 0, "loss": 1.0}]
    logger.finish()
    logger.log_metrics({"loss": 2.0}, 1)
    assert len(rows(tmp_path)) == 1


def test_a_step_from_numpy_or_torch_is_a_number_that_a_resume_keeps(tmp_path: Path) -> None:
    """It was a text in the row, which the report and a resume skip."""
    with plain(tmp_path) as logger:
        logger.log_metrics({"loss": 0.5}, np.int64(1))  # type: ignore[arg-type]
        logger.log_metrics({"loss": 0.25}, torch.tensor(2))  # type: ignore[arg-type]
        logger.log_image("picture", SQUARE, np.int64(2))  # type: ignore[arg-type]
    with plain(tmp_path, resume_step=2):
        pass
    assert rows(tmp_path) == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]
    (picture,) = [event for event in events(tmp_path) if event["kind"] == "image"]
    assert picture["step"] == 2


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
        "loss logged twice for step 5; the first value is kept",
        "step 4 was not logged: step 5 is logged already",
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


def test_what_has_no_mean_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with plain(tmp_path) as logger:
        for _ in range(2):
            logger.accumulate_metrics({"note": "text", "nothing": None, "loss": 1.0})
        logger.log_accumulated_metrics(1)
    assert rows(tmp_path) == [{"step": 1, "loss": 1.0}]
    assert len(caplog.messages) == 2


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


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(Preempted("SIGTERM asked"), 85, "SIGTERM asked"), (KeyboardInterrupt(), 130, "Keyboard")],
)
def test_a_requested_stop_is_not_an_error(
    tmp_path: Path, error: BaseException, code: int, words: str
) -> None:
    def stop() -> None:
        with plain(tmp_path):
            raise error

    with pytest.raises(type(error)):
        stop()
    finish = events(tmp_path)[-1]
    assert (finish["exit_code"], "error" in finish) == (code, False)
    assert finish["stopped"].startswith(words)


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
    assert "training continues" in caplog.messages[0]


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
    assert all("training continues" in warning for warning in caplog.messages)


# --- pictures -------------------------------------------------------------------------------------


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
    assert "(7, 7, 7) is not a picture" in caplog.messages[0]


def test_pictures_whose_names_differ_only_in_a_slash_have_two_files(tmp_path: Path) -> None:
    with plain(tmp_path) as logger:
        for step in (3, 4):
            logger.log_image("night/x", SQUARE, step)
            logger.log_image("night_x", 255 - SQUARE, step)
    pictures = [event for event in events(tmp_path) if event["kind"] == "image"]
    assert len({picture["path"] for picture in pictures}) == 4
    assert pictures[2]["path"] == "pictures/night_x_00000004.png"
    for picture, pixels in zip(pictures, 2 * [SQUARE, 255 - SQUARE], strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / picture["path"])), pixels)


def test_texts_are_files_that_events_name(tmp_path: Path) -> None:
    with plain(tmp_path) as logger:
        logger.log_sample("../a sample", "once\nupon \ud800", 3)
    text = events(tmp_path)[1]
    assert (text["kind"], text["path"]) == ("text", "pictures/.._a_sample_00000003.txt")
    assert (tmp_path / text["path"]).read_text() == "once\nupon ?"


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
