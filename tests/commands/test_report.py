"""overt report: one file where it is asked for, without torch, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy_runs import train_toy

from overt.cli import main

WITHOUT_TORCH = """
import sys
from overt.cli import main
codes = [main(words.split()) for words in {commands!r}]
assert not {{"torch", "hydra"}} & set(sys.modules), "a heavy package was imported"
sys.exit(max(codes))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train_toy(folder, "training.num_steps=4", "logging.norms_depth=1")
    return folder / "toy"


def test_the_page_lies_in_the_run_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert str(run / "report.html") in capsys.readouterr().out
    page = (run / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    for word in ("train/loss", "gradient_norm/first", "evaluation/error", "system/memory_gb"):
        assert word in page, word
    assert not list(run.glob(".report*"))


def test_the_page_goes_where_it_is_asked_for(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "deep" / "page.html"
    assert main(["report", str(run), "--output", str(output), "--pictures", "1"]) == 0
    assert "overt report" in output.read_text()


def test_what_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, expected in (
        ([str(tmp_path)], 1, "is not a run folder"),
        ([str(run), str(run)], 2, "named twice"),
        ([str(run), "--output", str(tmp_path)], 1, f"{tmp_path}: Is a directory"),
        ([str(run), "--pictures", "0"], 2, "--pictures=0; it must be at least 1"),
        ([str(run), "--pin", "los"], 2, "--pin los matches no metric of these runs (did you mean"),
        (["--serve", str(tmp_path / "none")], 1, "is not a directory"),
        (["--serve", str(run), "--port", "70000"], 2, "--port=70000; it must be at least 0 and"),
    ):
        assert main(["report", *words]) == code
        assert expected in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--serve", "--output", "x"], ["--serve", "--token", "a"]])
def test_usage_mistakes_end_with_code_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", *words])
    assert ended.value.code == 2


def test_report_runs_and_watch_need_no_torch(run: Path, tmp_path: Path) -> None:
    commands = [
        f"report {run} --output {tmp_path / 'page.html'}", f"runs {run.parent}",
        f"watch {run} --once",
    ]  # fmt: skip
    script = WITHOUT_TORCH.format(commands=commands)
    subprocess.run([sys.executable, "-c", script], check=True, env=dict(os.environ))
