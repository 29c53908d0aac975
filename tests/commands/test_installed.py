"""Verbs of installed packages: listed, run, refused in words, and never in place of overt's own."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from overt.cli import main
from overt.commands import installed


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Pretend that a package with this verb is installed."""

    def declare(name: str, value: str) -> None:
        entry = EntryPoint(name, value, installed.COMMANDS)
        monkeypatch.setattr(installed, "entry_points", lambda group: [entry])
        installed.installed_commands.cache_clear()

    yield declare
    monkeypatch.undo()
    installed.installed_commands.cache_clear()


def test_a_verb_of_a_package(install, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = ModuleType("lab_verbs")
    module.main = lambda words: print("words", words) or 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lab_verbs", module)
    install("label", "lab_verbs:main")
    assert main(["label", "a", "b"]) == 3
    assert capsys.readouterr().out == "words ['a', 'b']\n"
    assert main([]) == 0
    assert "overt label      of an installed package" in capsys.readouterr().out
    install("label", "lab_verbs:absent")
    assert main(["label"]) == 1
    assert "the verb label of an installed package cannot be imported" in capsys.readouterr().err


def test_a_package_does_not_replace_a_verb(install, capsys: pytest.CaptureFixture[str]) -> None:
    install("train", "os:system")
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    assert "usage: overt train" in capsys.readouterr().out
