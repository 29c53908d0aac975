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


def test_an_unknown_verb_is_told_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian", "recipe=toy"]) == 2
    shown = capsys.readouterr()
    assert "overt has no verb 'trian' (did you mean train?)" in shown.err
    assert "overt train" in shown.err
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
    ("words", "expected"),
    [
        (["train"], "ConfigError: no recipe was chosen"),
        (["train", "recipe=toi"], "ConfigError: recipe=toi"),
        (["config", "recipe=cotracker3_offline", "data.root=x", "a=1"], "unknown key a"),
        (["ckpt", "inspect", "nowhere.pth"], "CheckpointError: "),
    ],
)
def test_errors_go_to_stderr_with_code_1_and_no_traceback(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    shown = capsys.readouterr()
    assert expected in shown.err
    assert "Traceback" not in shown.err + shown.out


def test_the_installed_command_and_the_module_are_the_same(tmp_path: Path) -> None:
    for command in ([str(Path(sys.executable).parent / "overt")], [sys.executable, "-m", "overt"]):
        done = subprocess.run([*command, "nonsense"], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 2
        assert "overt has no verb 'nonsense'" in done.stderr
