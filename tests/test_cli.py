"""overt/cli.py: verbs, their help without torch, and errors without a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

from overt import __version__
from overt.cli import main
from overt.verbs import VERBS


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_usage_names_every_verb(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    assert all(f"overt {verb} " in text for verb in VERBS)


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_help_is_a_verb_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    assert "overt train" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["help", "runs"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "usage: overt runs" in shown
    assert "\nexamples:\n  overt runs\n      below runs/\n" in shown


def test_help_of_a_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", "data", "pack"])
    assert "usage: overt data pack" in capsys.readouterr().out


def test_a_missing_argument_is_named_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["track"])
    assert capsys.readouterr().err.endswith("the following arguments are required: VIDEO\n")


def test_an_unknown_verb_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian", "recipe=toy"]) == 2
    shown = capsys.readouterr()
    assert "overt has no verb 'trian' (did you mean train?)" in shown.err
    assert "`overt help` lists all verbs" in shown.err
    assert shown.out == ""


def test_help_of_every_verb_loads_no_torch() -> None:
    program = f"""
import sys
from overt.cli import main
for verb in {list(VERBS)}:
    try:
        main([verb, "--help"])
    except SystemExit as ended:
        assert ended.code == 0, verb
    else:
        raise AssertionError(verb)
    assert "torch" not in sys.modules, verb
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"usage: overt {verb}" in done.stdout for verb in VERBS)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["train"], 2, "ConfigError: no recipe was chosen"),
        (["train", "recipe=toi"], 2, "ConfigError: recipe=toi"),
        (["config", "recipe=cotracker3_offline", "data.root=x", "a=1"], 2, "unknown key a"),
        (["config", "recipe=cotracker3_tiny", "seed=x"], 2, "ConfigError: seed"),
        (["plan", "recipe=cotracker3_tiny", "optimizer.lr=-1"], 2, "ConfigError: optimizer.lr=-1"),
        (["watch", "somewhere", "--every", "0"], 2, "ConfigError: --every=0"),
        (["ckpt", "inspect", "nowhere.pth"], 1, "CheckpointError: "),
        (["runs", "nowhere"], 1, "nowhere is not a directory"),
        (["report", "RUN/circle"], 1, "Symlink loop"),
        (["report", "--output", "RUN/events.jsonl/x.html", "RUN"], 1, "events.jsonl: File exists"),
    ],
)
def test_errors_go_to_stderr_with_their_code_and_no_traceback(
    words: list[str],
    code: int,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """2: what was typed does not exist; 1: anything else that failed."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text('{"time": 1.0, "kind": "start"}\n')
    (tmp_path / "run" / "circle").symlink_to("circle")
    assert main([word.replace("RUN", str(tmp_path / "run")) for word in words]) == code
    shown = capsys.readouterr()
    assert expected in shown.err
    assert "Traceback" not in shown.err + shown.out


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_option_of_any_verb_has_code_2(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--no-such-option"])
    assert ended.value.code == 2
    assert "usage: overt" in capsys.readouterr().err


def test_ctrl_c_of_any_verb_is_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("overt.commands.recipes.main", interrupt)
    assert main(["recipes"]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_a_file_that_cannot_be_written_is_explained_and_its_traceback_at_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(words: list[str]) -> int:
        raise PermissionError(13, "Permission denied", "there/file")

    monkeypatch.setattr("overt.commands.recipes.main", refuse)
    assert main(["recipes"]) == 1
    assert capsys.readouterr().err.startswith("there/file: Permission denied. Check the path")
    monkeypatch.setenv("OVERT_TRACEBACK", "1")
    with pytest.raises(PermissionError):
        main(["recipes"])


@pytest.mark.parametrize("verb", ["recipes", "train"])
@pytest.mark.parametrize("kind", [OSError, Exception])
def test_a_full_disk_is_one_sentence_in_any_verb(
    verb: str,
    kind: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fill(words: list[str]) -> int:
        raise kind(28, "No space left on device")

    monkeypatch.setattr(f"{VERBS[verb][0]}.main", fill)
    assert main([verb]) == 1
    assert capsys.readouterr().err.startswith("No space left on device, on a disk")
    monkeypatch.setenv("OVERT_TRACEBACK", "1")
    with pytest.raises(kind):
        main([verb])


def test_the_installed_command_and_the_module_are_the_same(tmp_path: Path) -> None:
    for command in ([str(Path(sys.executable).parent / "overt")], [sys.executable, "-m", "overt"]):
        done = subprocess.run([*command, "nonsense"], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 2
        assert "overt has no verb 'nonsense'" in done.stderr
