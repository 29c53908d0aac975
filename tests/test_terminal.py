"""overt/terminal.py: color only where it is read, columns that line up."""

import io

import pytest

from overt.terminal import columns, has_color, paint


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "variables", "expected"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),  # as no-color.org has it
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (Terminal(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_color(
    stream: io.StringIO,
    variables: dict[str, str],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert has_color(stream) == expected
    assert paint("best", "green", stream) == ("\x1b[32mbest\x1b[0m" if expected else "best")
    assert paint("", "green", stream) == ""


def test_columns_line_up() -> None:
    rows = [["name", "value"], ["a_longer_name", "1"], ["b"]]
    assert columns(rows, right=[1]) == ["name           value", "a_longer_name      1", "b"]
    assert columns([]) == []
