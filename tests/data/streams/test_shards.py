"""Names of shards, and how they are opened."""

import sys
from pathlib import Path

import pytest

from overt.data.streams.shards import expand_braces, expand_shards, open_shard, open_with
from overt.errors import DataError


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{008..011}.tar", ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]),
        ("{0..1}-{x,y}.tar", ["0-x.tar", "0-y.tar", "1-x.tar", "1-y.tar"]),
        ("s3://b/{09..10}.tar", ["s3://b/09.tar", "s3://b/10.tar"]),
        ("{a,}.tar", ["a.tar", ".tar"]),
    ],
)
def test_braces_expand_as_in_a_shell(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{3..1}.tar", r"'\{3\.\.1\}\.tar' counts from 3 to 1"),
        ("{000..999", "braces that do not match"),
        ("a}.tar", "braces that do not match"),
        ("{{1..2}}.tar", "braces that do not match"),
        ("{abc}.tar", r"has \{abc\}; expected a range"),
        ("{0..99999999999999999999}.tar", "expected up to 10000000 shards"),
        ("{0..9999}{0..9999}.tar", "more than 10000000 shards"),
    ],
)
def test_wrong_braces_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        expand_braces(pattern)


def test_globs_are_sorted_and_skip_our_indexes(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "a.tar.idx.json", "[c].tar"):
        (tmp_path / name).write_bytes(b"")
    assert expand_shards(f"{tmp_path}/?.tar") == (f"{tmp_path}/a.tar", f"{tmp_path}/b.tar")
    assert expand_shards(f"{tmp_path}/a*") == (f"{tmp_path}/a.tar",)
    assert expand_shards([f"{tmp_path}/[c].tar", "x.tar"]) == (f"{tmp_path}/[c].tar", "x.tar")
    with pytest.raises(DataError, match=r"no shards match '.*/z\*'"):
        expand_shards(f"{tmp_path}/z*")
    with pytest.raises(DataError, match=r"name .*/a\.tar twice"):
        expand_shards([f"{tmp_path}/*.tar", f"{tmp_path}/a.tar"])


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.tar cannot be opened \(No such file"):
        open_with(open_shard, str(tmp_path / "none.tar"))
    # No shell commands: this is a path like any other.
    with pytest.raises(DataError, match=r"pipe:cat x cannot be opened \(No such file"):
        open_with(open_shard, "pipe:cat x")


def test_urls_are_opened_through_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    (tmp_path / "a.tar").write_bytes(b"content")
    with open_shard(f"file://{tmp_path}/a.tar") as file:
        assert file.read() == b"content"
    with pytest.raises(DataError, match=r"nothing://a\.tar cannot be opened: Protocol not known"):
        open_with(open_shard, "nothing://a.tar")
    with pytest.raises(DataError, match=r"b\.tar cannot be opened"):
        open_with(open_shard, f"file://{tmp_path}/b.tar")
    monkeypatch.setitem(sys.modules, "fsspec", None)  # as if it were not installed
    with pytest.raises(DataError, match=r"pip install 'overt\[streams\]'"):
        open_with(open_shard, "s3://bucket/a.tar")
