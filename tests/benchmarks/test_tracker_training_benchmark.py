import json
from pathlib import Path

import torch
from benchmark_scripts import run
from small_recipes import SMALL_COTRACKER3

from overt.data.tracking.settings import TeacherSettings
from overt.recipes.cotracker3.teachers import load_teacher


def test_parts_of_a_training_and_minutes_to_a_score(tmp_path: Path) -> None:
    rows = [
        {"time": 100.0, "step": 1, "train/loss": 3.0},
        {"time": 160.0, "step": 50, "evaluation/average_jaccard": 0.55},
        {"time": 220.0, "step": 99, "evaluation/average_jaccard": 0.65},
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    started = {"time": 100.0, "kind": "started", "step": 1, "imports": 10.0, "first step": 20.0}
    (tmp_path / "run" / "events.jsonl").write_text(json.dumps(started))
    words = ["cotracker3_tiny", *SMALL_COTRACKER3.words, f"data.root={tmp_path / 'data'}"]
    words += ["training.num_workers=0", "--device", "cpu", "--steps", "1"]
    printed = run("tracker_training.py", *words, "--run", str(tmp_path / "run")).splitlines()
    parts = [line.split()[0] for line in printed[-7:-3]]
    assert parts == ["generator", "step", "resident", "evaluation"]
    assert printed[-3:] == [
        "AJ 50  1.5 minutes, step 50",
        "AJ 60  2.5 minutes, step 99",
        "AJ 70  not reached; best 65.0",
    ]


def test_the_control_says_that_nothing_moves(tmp_path: Path) -> None:
    file = tmp_path / "static.torchscript"
    run("static_teacher.py", str(file))
    settings = TeacherSettings(str(file))
    teacher = load_teacher(settings, torch.device("cpu"))
    queries = torch.tensor([[0.0, 2.0, 3.0]])
    tracks, _ = teacher.track(torch.zeros((2, 3, 8, 8), dtype=torch.uint8), queries)
    assert tracks.tolist() == [[[2.0, 3.0]], [[2.0, 3.0]]]
