"""The progress line and the meter behind it, with a clock that the test moves."""

import io
import logging
import math
import re

import pytest

from overt.health.pace import Rates
from overt.run import console as console_module
from overt.run.console import Console, as_duration, fit


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and can show what is left on its screen."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> list[str]:
        """The lines of the screen; colors are dropped, and nothing else is understood."""
        lines = [""]
        text = re.sub(r"\x1b\[\d*m", "", self.getvalue())
        for piece in re.findall(r"\x1b\[\d*[A-Z]|\r|\n|[^\x1b\r\n]+", text):
            if piece == "\n":
                lines.append("")
            elif piece.startswith("\x1b") and piece.endswith("A"):
                del lines[len(lines) - int(piece[2:-1]) :]
                lines[-1] = ""  # what clears the rest of the screen follows always
            elif piece in ("\x1b[J", "\r"):
                lines[-1] = ""
            else:
                lines[-1] += piece
        return lines


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    console = Console(1000, stream=stream)
    console.say("begin")
    console.update(
        250,
        1,
        {"loss": 0.123456, "lr": 5e-4},
        seconds_per_step=2.0,
        data_wait_share=0.034,
        samples_per_second=15.87,
        memory_bytes=3 * 2**30,
    )
    console.close()
    assert stream.getvalue() == (
        "begin\n"
        "step 250/1000  25%  epoch 1  loss 0.1235  lr 0.0005  15.87 samples/s  ETA 0:25:00  "
        "data wait 3%  memory 3.00 GiB\n"
    )


def test_what_is_not_known_yet_is_left_out() -> None:
    stream = io.StringIO()
    Console(10, stream=stream).update(1, 0, {"loss": math.nan}, **Rates(*[math.nan] * 3)._asdict())
    assert stream.getvalue() == "step 1/10  10%  epoch 0  loss nan\n"


def test_the_estimate_follows_the_recent_speed_and_says_where_that_varies() -> None:
    stream = io.StringIO()
    console = Console(1000, stream=stream)
    for index, seconds in enumerate((1.0, 1.2, 90.0, 90.0, 90.0, 90.0, 90.0)):
        console.update(index, 0, {}, seconds_per_step=seconds)
    times = re.findall(r"ETA (.*)", stream.getvalue())
    assert times[:2] == ["0:16:40", "0:18:19"]
    assert times[2] == "8:31:12 (speed varies: 0:16:38 to 1d 0:57:00)"
    assert times[-1] == "1d 0:51:00"  # slow for good: no word of nine minutes


def test_on_a_terminal_the_same_lines_are_drawn_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    console = Console(10, stream=stream)
    console.update(1, 0, {"loss": 2.0})
    console.update(
        5, 0, {"loss": 1.0}, seconds_per_step=2.0, samples_per_second=8.0, memory_bytes=2**31
    )
    bar = "step 5/10  50% [==========          ]  ETA 0:00:10  8 samples/s  epoch 0"
    assert stream.shown() == [bar, "loss 1  memory 2.00 GiB"]
    console.say("a message")
    assert stream.shown() == ["a message", bar, "loss 1  memory 2.00 GiB"]
    console.keep_score("top1 0.5 (best 0.75)")
    assert stream.shown()[-1] == "loss 1  memory 2.00 GiB  top1 0.5 (best 0.75)"
    console.close()
    assert stream.shown()[-2].endswith("(best 0.75)")
    console.close()  # a second time changes nothing
    assert not stream.getvalue().endswith("\n\n")


def test_between_log_lines_the_step_moves_and_an_evaluation_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    stream, now = Terminal(), [0.0]
    console = Console(10, stream=stream, clock=lambda: now[0])
    console.update(5, 0, {"loss": 1.0}, seconds_per_step=2.0)
    console.tick(6)  # too soon after the last drawing
    assert stream.shown()[0].startswith("step 5/10")
    now[0] = 1.0
    console.tick(7)
    assert stream.shown()[0].startswith("step 7/10  70%")
    assert "ETA 0:00:06" in stream.shown()[0]
    console.working("scoring", 0, 8)
    now[0] = 3.0
    console.working("scoring", 2, 8)
    assert stream.shown()[2] == "scoring [=====               ] 2 of 8  0:06 left"
    console.working("scoring", 8, 8)
    assert len(stream.shown()) == 2


def test_elsewhere_long_work_is_a_line_now_and_then() -> None:
    stream, now = io.StringIO(), [0.0]
    console = Console(10, stream=stream, clock=lambda: now[0])
    for done in range(9):
        now[0] = 8.0 * done
        console.working("scoring", done, 8)
    console.tick(3)
    lines = stream.getvalue().splitlines()
    assert [line.partition("]")[2] for line in lines] == [" 4 of 8  0:32 left"]


@pytest.mark.parametrize("variable", ["", "1"])
def test_no_color_is_honored(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", variable)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    Console(10, stream=stream).update(1, 0, {"loss": 2.0})
    assert ("\x1b[36m" in stream.getvalue()) == (variable == "")


@pytest.mark.parametrize("columns", range(1, 160, 7))
def test_the_line_never_wraps_and_shows_whole_parts(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ["step 12/345   3%", "epoch 1", "loss 0.25", "12 samples/s", "memory 3.00 GiB"]
    line = fit(parts, 0.03, columns)
    assert len(line) <= columns
    assert line.startswith(parts[0][:columns])
    rest = re.sub(r" \[.*\]", "", line).split("  ")
    if columns >= len(parts[0]):
        assert "  ".join(rest) == "  ".join(parts)[: len("  ".join(rest))]
        assert rest[-1] in ("  ".join(parts)).split("  ")
    # The console leaves the last column free: writing there makes some terminals wrap.
    monkeypatch.setenv("COLUMNS", str(columns + 1))
    stream = Terminal()
    Console(345, stream=stream).update(12, 1, {"loss": 0.25})
    assert max(map(len, stream.shown())) <= columns


def test_a_terminal_of_one_column_does_not_stop_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pane is that was made very narrow: no line was left, and the first was colored."""
    monkeypatch.setenv("COLUMNS", "1")
    stream = Terminal()
    console = Console(345, stream=stream)
    console.update(12, 1, {"loss": 0.25})
    console.keep_score("accuracy 0.5")
    console.working("scoring", 1, 3)
    console.close()
    assert stream.shown()[0] == "s"


def test_the_table_is_aligned() -> None:
    stream = io.StringIO()
    Console(1, stream=stream).table("run", [("batch", "2 x 4 = 8"), ("learning rate", "0.1")])
    assert stream.getvalue() == "run\n  batch          2 x 4 = 8\n  learning rate  0.1\n"


@pytest.mark.parametrize("main", [True, False])
def test_only_the_main_process_speaks(main: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "is_main_process", lambda: main)
    for enabled in (True, False):
        stream = io.StringIO()
        console = Console(10, stream=stream, enabled=enabled)
        console.update(1, 0, {})
        console.say("hello")
        console.table("title", [])
        console.close()
        assert bool(stream.getvalue()) == (main and enabled)


def test_a_warning_does_not_tear_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    console = Console(10, stream=stream)
    console.update(1, 0, {"loss": 2.0})
    handler = console.handler()
    handler.handle(logging.makeLogRecord({"msg": "disk %s", "args": ("full",), "levelno": 30,
                                          "levelname": "WARNING"}))  # fmt: skip
    assert stream.shown()[0] == "warning: disk full"
    assert stream.shown()[1].startswith("step 1/10")


def test_a_closed_stream_or_a_poor_one_does_not_stop_training() -> None:
    stream = io.StringIO()
    console = Console(10, stream=stream)
    stream.close()
    console.update(1, 0, {"loss": 1.0})
    console.say("nobody reads this")

    raw = io.BytesIO()
    poor = io.TextIOWrapper(raw, encoding="ascii")
    Console(10, stream=poor).say("δ_avg 0.5")
    assert raw.getvalue() == b"?_avg 0.5\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (59.2, "0:01:00"), (3723, "1:02:03"), (200_000, "2d 7:33:20")],
)
def test_durations(seconds: float, text: str) -> None:
    assert as_duration(seconds) == text
