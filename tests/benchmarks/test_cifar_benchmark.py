"""The CIFAR-10 table runs at a tiny size, with both controls."""

from pathlib import Path

import numpy as np
import pytest
from benchmark_scripts import BENCHMARKS, run

from overt.config import Config
from overt.data.images.packed import pack_arrays
from overt.data.images.published import CIFAR10_CLASSES
from overt.errors import PREEMPTED_EXIT_CODE, Preempted


@pytest.mark.long
def test_methods_and_controls_have_their_rows(tmp_path: Path) -> None:
    for part, count in (("train", 60), ("test", 20)):
        labels = np.arange(count) % 10
        images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), np.uint8)
        names = [f"{part}/{index}" for index in range(count)]
        pack_arrays(images, labels, names, CIFAR10_CLASSES, tmp_path / part)
    methods, label = ["mae"], "three steps"
    words = [
        "--device",
        "cpu",
        "--small",
        "--steps",
        "3",
        "--evaluations",
        "3",
        "--data",
        str(tmp_path),
    ]
    files = ["--rows", str(tmp_path / "rows.jsonl"), "--pictures", str(tmp_path / "pictures")]
    overrides = ["--set", "training.num_workers=0", "model.depth=1", "evaluation.batch_size=20"]
    tuning = ["--fine-tune", "2", "--fine-tune-labels", "0.5"]
    named = ["--methods", *methods, "--label", label]
    printed = run("cifar.py", *words, *files, *tuning, *named, *overrides)
    assert "| fine-tuned, 50 % labels |" in printed
    for row in ("pixels", "random weights", f"mae, {label}"):
        assert f"| {row} |" in printed
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3
    assert "over 3 checkpoints; within runs" in printed
    pictures = {path.stem for path in (tmp_path / "pictures").iterdir()}
    assert pictures == {"mae", "mae_photographs"}


def test_a_signal_ends_the_benchmark_not_only_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def signaled(config: Config, *_: object) -> None:
        started.append(config.exp_name)
        raise Preempted("SIGTERM")

    monkeypatch.setattr("overt.engine.trainer.Trainer", signaled)
    words = ["--device", "cpu", "--small", "--steps", "1", "--no-untrained"]
    run("cifar.py", *words, "--methods", "mae", "simclr", exit_code=PREEMPTED_EXIT_CODE)
    assert started == ["mae_cifar"]


def test_the_page_shows_the_rows_that_were_measured(tmp_path: Path) -> None:
    rows, page = BENCHMARKS / "cifar_rows.jsonl", (BENCHMARKS.parent / "docs/ssl.md").read_text()
    printed = run("cifar.py", "--show", str(rows))
    shown = {tuple(cells(line)[1:]) for line in page.replace("**", "").splitlines()}
    lines = [cells(line) for line in printed.splitlines() if line.startswith("|")][2:]
    assert len(lines) == 14
    for _, *scores, minutes, rate in lines:
        # The table of other settings has neither fine-tuning nor minutes nor rates.
        assert {(*scores, minutes, rate), tuple(filter(None, scores))} & shown, scores
    for key, name in (("rankme", "RankMe"), ("alpha_req", "alpha-ReQ"), ("val_loss", "held-out")):
        (line,) = [line for line in printed.splitlines() if line.startswith(key)]
        words = line.removeprefix(f"{key} and k-NN: ").replace(" checkpoints; within runs ", " | ")
        assert any(
            entry.startswith(f"| {name}")
            and words.removesuffix(" pairs in the same order") in entry
            for entry in page.splitlines()
        ), line
    run("cifar_curves.py", str(tmp_path / "curves.svg"))
    drawn = BENCHMARKS.parent / "docs/pictures/cifar_curves.svg"
    assert (tmp_path / "curves.svg").read_text() == drawn.read_text()


def cells(line: str) -> list[str]:
    """The cells of one line of a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_rates_of_an_evaluation_are_projected() -> None:
    printed = run("features.py", "--device", "cpu", "--images", "40", "--small")
    for stage in ("read and encode", "k-NN, 10 queries", "20 linear probes"):
        assert f"| {stage}" in printed
