"""overt/run/reader.py: every byte once, and no file whose reading raises."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.run import reader
from overt.run.reader import (
    LARGEST_STEP,
    Follower,
    count_of,
    number_of,
    parse_row,
    read_rows,
    step_of,
    time_of,
)


def test_rows_come_in_order_and_none_without_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert list(read_rows(path)) == []
    path.write_text('{"a": 1}\n\n{"a": 2}\n{"a": 3}')
    assert list(read_rows(path)) == [{"a": 1}, {"a": 2}, {"a": 3}]
    first = next(read_rows(path))
    assert first == {"a": 1}


BAD = {
    "torn": b'{"step": 1, "a',
    "not JSON": b"hello",
    "not an object": b"[1, 2]",
    "not UTF-8": b'{"a": "\xff"}',
    "too deep": b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
    "deep lists": b'{"a": ' + b"[" * 990 + b"]" * 990 + b"}",
    "too many digits": b'{"a": 1' + b"0" * 5000 + b"}",
    "zeros": b"\x00" * 100,
    "another encoding": '{"a": 1}'.encode("utf-16"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_skipped(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + BAD[kind].replace(b"\n", b" ") + b'\n{"a": 2}\n')
    rows = list(read_rows(path))
    assert rows[0] == {"a": 1}
    assert rows[-1] == {"a": 2}
    for row in rows[1:-1]:  # what Python can hold of it may stay
        assert isinstance(row, dict)


def test_odd_numbers_can_be_read_and_are_told_from_numbers() -> None:
    row = parse_row(b'{"many": 1' + b"0" * 400 + b', "nan": NaN, "big": 1e400, "yes": true}')
    assert row is not None
    assert number_of(row["many"]) is None
    assert number_of(row["big"]) == float("inf")
    assert str(number_of(row["nan"])) == "nan"
    assert number_of(row["yes"]) is None
    assert number_of("nan") != number_of("nan")
    assert (number_of("inf"), number_of("-inf"), number_of("1")) == (
        float("inf"), -float("inf"), None,
    )  # fmt: skip
    assert (number_of(3), number_of(None)) == (3.0, None)
    values = (0, LARGEST_STEP, LARGEST_STEP + 1, -1, True, 1.0, "1", 10**400)
    assert [count_of(value) for value in values] == [0, LARGEST_STEP, *[None] * 6]
    assert step_of({}) is step_of({"step": -1}) is None
    times = (0, 1.7e9, 1e300, -1.0, float("nan"), float("inf"), "nan", "soon", 10**400)
    assert [time_of({"time": value}) for value in times] == [0.0, 1.7e9, *[None] * 7]


def test_half_a_pair_of_surrogates_becomes_printable() -> None:
    row = parse_row(rb'{"error": "\ud800 and \ud83d\ude00"}')
    assert row == {"error": "? and \N{GRINNING FACE}"}


def test_a_line_beyond_all_measure_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LONGEST_LINE", 100)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + b"x" * 1000)
    with Follower(path) as follower:
        assert list(follower.rows()) == [{"a": 1}]
        assert follower.offset == path.stat().st_size  # not read again either
        with path.open("ab") as file:
            file.write(b"y" * 99 + b'\n{"a": 2}\n')
        assert list(follower.rows()) == [{"a": 2}]


def test_a_follower_reads_every_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    parsed: list[bytes] = []
    monkeypatch.setattr(reader, "parse_row", lambda line: parsed.append(line) or parse_row(line))
    with Follower(path) as follower:
        assert list(follower.rows()) == []
        assert not follower.was_replaced()
        path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
        assert list(follower.rows()) == [{"a": 1}, {"a": 2}]
        with path.open("ab") as file:
            file.write(b': 3}\n{"a": 4}')
        assert not follower.was_replaced()
        assert list(follower.rows()) == [{"a": 3}, {"a": 4}]  # the last is complete
        with path.open("ab") as file:
            file.write(b'\n{"a": 5}\n')
        assert list(follower.rows()) == [{"a": 5}]
        assert list(follower.rows()) == []
    assert parsed.count(b'{"a": 1}\n') == 1


def test_what_was_not_taken_is_given_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    with Follower(path) as follower:
        assert next(follower.rows()) == {"a": 1}
        assert next(follower.rows()) == {"a": 2}


@pytest.mark.parametrize("how", ["replaced", "truncated", "removed", "replaced twice"])
def test_another_file_begins_at_its_start(how: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')

    def replace(text: str) -> None:
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", path)

    with Follower(path) as follower:
        assert len(list(follower.rows())) == 2
        if how == "truncated":
            path.write_text('{"a": 3}\n')
        elif how == "removed":
            path.unlink()
            assert follower.was_replaced()
            assert list(follower.rows()) == []
            path.write_text('{"a": 3}\n')
            assert not follower.was_replaced()  # that was said
        else:
            replace("{}\n" * 100)
            replace('{"a": 3}\n' + "{}\n" * (100 if how == "replaced twice" else 0))
        if how != "removed":
            assert follower.was_replaced()
        assert next(iter(follower.rows())) == {"a": 3}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode()))
def test_nothing_that_a_file_holds_raises(content: bytes) -> None:
    for line in content.split(b"\n"):
        row = parse_row(line)
        assert row is None or json.dumps(row)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_file_read_in_pieces_is_the_file_read_whole(data: Any) -> None:
    import tempfile

    lines = data.draw(st.lists(st.sampled_from(['{"a": 1}', "torn {", "", '{"b": [1, 2]}'])))
    content = "\n".join(lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.touch()
        rows = []
        with Follower(path) as follower:
            for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
                with path.open("ab") as file:
                    file.write(content[start:end])
                rows += follower.rows()
        assert rows == list(read_rows(path))


def test_the_reader_needs_no_torch() -> None:
    code = "import sys, overt.run.reader; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
