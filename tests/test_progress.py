"""overt/progress.py: a bar on a terminal, lines elsewhere, nothing where nobody listens."""

import io

import pytest

from overt.progress import Bar, each, line, report, shown, told_to


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_work_is_told_to_the_innermost_listener() -> None:
    outer: list[tuple[str, int, int]] = []
    inner: list[tuple[str, int, int]] = []
    report("writing", 1, 2)  # nobody listens
    with told_to(lambda *progress: outer.append(progress)):
        assert list(each("ab", "reading")) == ["a", "b"]
        with told_to(lambda *progress: inner.append(progress)):
            report("writing", 1, 2)
    assert outer == [("reading", 0, 2), ("reading", 1, 2), ("reading", 2, 2)]
    assert inner == [("writing", 1, 2)]


def test_of_nested_loops_the_outermost_is_told_also_after_one_that_broke_off() -> None:
    told: list[str] = []
    with told_to(lambda what, *_: told.append(what)):
        for _ in each("ab", "videos"):
            list(each("cd", "frames"))
        assert set(told) == {"videos"}
        broken = each("ab", "videos")
        next(broken)
        broken.close()  # as a loop that an error ends
        told.clear()
        list(each("cd", "frames"))
    assert set(told) == {"frames"}


def test_a_bar_is_drawn_over_and_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream, now = Terminal(), [0.0]
    bar = Bar(stream, clock=lambda: now[0])
    for done in range(5):
        now[0] = float(done)
        bar("scoring", done, 4)
    drawn = stream.getvalue().split("\r\x1b[K")
    assert drawn[2] == "scoring [=====               ] 1 of 4  "[:39]
    assert drawn[-1] == ""
    assert all(len(text) < 40 for text in drawn)


def test_elsewhere_there_is_a_line_now_and_then() -> None:
    stream, now = io.StringIO(), [0.0]
    bar = Bar(stream, clock=lambda: now[0])
    for done in range(101):
        now[0] = float(done)
        bar("scoring", done, 100)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == "scoring [======              ] 30 of 100  1:10 left"


def test_a_second_loop_of_the_same_name_has_its_own_time() -> None:
    stream, now = io.StringIO(), [0.0]
    bar = Bar(stream, clock=lambda: now[0])
    for start in (0, 1000):
        for done in range(101):
            now[0] = float(start + done)
            bar("sampling", done, 100)
    lines = stream.getvalue().splitlines()
    assert lines[3:] == lines[:3]


def test_quick_work_says_nothing_in_a_pipe_and_a_closed_stream_stops_nothing() -> None:
    stream = io.StringIO()
    with shown(stream):
        report("scoring", 1, 2)
    assert stream.getvalue() == ""
    gone = Terminal()
    bar = Bar(gone)
    gone.close = lambda: None  # type: ignore[method-assign]

    def refuse(text: str) -> int:
        raise OSError

    gone.write = refuse  # type: ignore[method-assign]
    bar("scoring", 1, 2)
    bar("scoring", 2, 2)


def test_the_line() -> None:
    assert line("scoring", 0, 4, 0.0) == "scoring [                    ] 0 of 4"
    assert line("scoring", 1, 2, 4000.0).endswith("1 of 2  1:06:40 left")
    assert line("scoring", 0, 0, 0.0).endswith("0 of 0")
