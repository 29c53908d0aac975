"""overt/run/messages.py: how a run starts, and what to do where it ends early."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_runs import TOY, toy_config

from overt.config import load
from overt.config.batch import plan_batches
from overt.run import messages
from overt.run.events import LostPeer, SkippedStep, StopRequested
from overt.run.messages import Introduction


def introduction(*overrides: str, world_size: int = 1, **changed: Any) -> Introduction:
    config = toy_config(Path("runs"), *overrides)
    values: dict[str, Any] = {
        "config": config,
        "plan": plan_batches(config.training, world_size),
        "device_name": "CPU",
        "parameters": 1000,
        "trained_parameters": 1000,
        "samples": 10,
        "steps_per_epoch": 5,
        "total_steps": 12,
        "optimizers": {"AdamW": 1000},
        "learning_rate": config.optimizer.lr,
        "schedule": "cosine",
        "loaded": None,
        "slow": None,
        "resumed": None,
        "done": None,
    }
    return Introduction(**(values | changed))


def test_the_table_has_the_sums_that_users_ask_about() -> None:
    settings = ["training.batch_size=2", "training.accumulation_steps=3"]
    rows = dict(introduction(*settings, world_size=4).rows())
    assert rows["run"] == "runs/toy"
    assert rows["recipe"] == "toy"
    assert rows["parameters"] == "1,000"
    assert rows["processes"].startswith("4 on CPU, ")
    assert rows["data"] == "10 samples, 5 steps per epoch"
    assert rows["global batch"] == "2 per process x 4 process(es) x 3 accumulated = 24"
    assert rows["steps"] == "12 (2.4 epochs)"
    assert rows["learning rate"] == "0.01"
    assert rows["schedule"] == "cosine"
    assert "resumed" not in rows


def test_rows_that_are_only_there_when_there_is_something_to_say() -> None:
    rows = dict(introduction(trained_parameters=400, resumed="step_3 at step 3").rows())
    assert rows["parameters"] == "1,000, 400 trained"
    assert rows["resumed"] == "step_3 at step 3"
    rows = dict(introduction(optimizers={"Muon": 900, "AdamW": 100}).rows())
    assert rows["optimizers"] == "Muon for 900, AdamW for 100 parameters"
    scaled = ["optimizer.lr_scaling=linear", "optimizer.lr_base_batch=8"]
    rows = dict(introduction(*scaled, learning_rate=0.0025).rows())
    assert rows["learning rate"] == "0.0025 (linear scaling of 0.01 from batch 8)"
    assert rows["by each rule"] == "none 0.01, linear 0.0025, sqrt 0.005"


def test_remarks_are_what_was_loaded_and_advice() -> None:
    quiet = introduction()
    assert quiet.remarks() == []
    assert replace(quiet, loaded="all 8 tensors of a.pth").remarks() == ["all 8 tensors of a.pth"]
    assert replace(quiet, slow="no bf16").remarks() == ["slow: no bf16"]
    assert replace(quiet, done="enough").remarks() == ["nothing is left to train: enough"]
    large = introduction("training.batch_size=512", "optimizer.lr_base_batch=8")
    assert all(remark.startswith("advice: ") for remark in large.remarks())


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("[13,14]", ["records nothing: this session trains steps 5 to 12"]),
        ("[2,4]", ["records nothing"]),
        ("[2,5]", []),
        ("[12,20]", []),
    ],
)
def test_steps_to_profile_that_never_come_are_told(steps: str, words: list[str]) -> None:
    settings = [f"training.profile_steps={steps}", "optimizer.lr_base_batch=6"]
    remarks = [text for text in introduction(*settings, step=4).remarks() if "profile" in text]
    assert len(remarks) == len(words)
    assert all(word in text for word, text in zip(words, remarks, strict=True))


@pytest.mark.parametrize("in_a_row", [1, 7])
def test_a_run_stopped_by_nan_says_what_is_saved_and_what_to_try(in_a_row: int) -> None:
    event = SkippedStep(3, math.nan, [(0, 1)], "last (Linear, forward)", True, None)
    text = messages.stopped_by_nonfinite(event, in_a_row)
    assert text.startswith(str(event))
    assert f"{in_a_row} step(s) in a row" in text
    for remedy in ("learning rate", "training.grad_clip_norm", "training.precision=fp32"):
        assert remedy in text


def test_a_run_stopped_by_a_signal_says_how_to_resume() -> None:
    text = messages.stopped_by_signal(StopRequested(5, 12, "SIGUSR1"), Path("runs/x/checkpoints"))
    assert text == (
        "SIGUSR1 asked this run to stop: step 5 of 12 is saved in runs/x/checkpoints; the same "
        "command resumes from there"
    )


def test_a_lost_peer_says_where_to_look() -> None:
    text = messages.lost_peer(LostPeer(5, "Broken pipe"), rank=3, timeout_minutes=10.0)
    assert text.startswith("rank 3 at step 5: ")
    assert "(Broken pipe)" in text
    assert "training.timeout_minutes=10. " in text
    assert "the same command resumes from the last checkpoint" in text


def test_few_scores_are_one_line() -> None:
    line = messages.score_table(6, {"error": 0.123456, "accuracy": math.nan})
    assert line == "step 6: error 0.1235, accuracy nan"


def test_many_scores_are_a_small_table_with_baselines_beside_them() -> None:
    scores = {"average_jaccard": 0.25125, "jaccard_1": 0.01, "jaccard_16": 0.3, "jaccard_2": 0.1}
    scores |= {"occlusion_accuracy": 0.8, "static_average_jaccard": 0.2101}
    scores |= {"davis/error": 3.0, "davis/static_error": 12.0}
    assert messages.score_table(60, scores, "average_jaccard").splitlines() == [
        "step 60                score  static",
        "  average_jaccard *   0.2512  0.2101",
        "  occlusion_accuracy     0.8",
        "  davis/error              3      12",
        "  jaccard at 1, 2, 16  0.01 0.1 0.3",
    ]


def test_the_end_names_the_best_checkpoint_and_what_to_type_next(tmp_path: Path) -> None:
    config = toy_config(tmp_path, "exp_name=mine", "checkpoint.metric_name=error")
    title, rows = messages.conclusion(config, 6, 8, None, None)
    assert title == "done"
    assert dict(rows)["reached"] == "step 6 of 8"
    assert "score it" not in dict(rows)  # nothing was saved
    best = config.run_dir / "checkpoints" / "step_00000004"
    best.mkdir(parents=True)
    (best.parent / "best").symlink_to(best.name)
    told = dict(messages.conclusion(config, 6, 8, best, 0.25)[1])
    assert told["best checkpoint"] == f"{best.parent / 'best'} (step_00000004, error 0.25)"
    checkpoint = best.parent / "best"
    assert told["score it"] == (
        f"overt evaluate --package {os.path.relpath(TOY)} checkpoint={checkpoint}"
    )
    config = load(["recipe=hjepa_tiny", f"output_dir={tmp_path}", "exp_name=mine"])
    told = dict(messages.conclusion(config, 6, 8, best, 0.25)[1])
    assert told["score it"] == f"overt evaluate checkpoint={checkpoint}"
    assert told["look at it"] == f"overt report {config.run_dir}"
