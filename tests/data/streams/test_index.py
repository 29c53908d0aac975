"""Indexes of shards: right, written once, and never used for another file."""

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overt.data.streams import index as index_module
from overt.data.streams.index import (
    ShardIndex,
    Stamp,
    build_index,
    index_path,
    load_count,
    load_index,
    local_stamp,
    save_index,
)
from overt.data.streams.shards import open_shard
from overt.errors import DataError

from .shard_files import members_of, open_forward, write_tar


def shard(tmp_path: Path, name: str = "a.tar") -> str:
    members = members_of(3) | members_of(4) | {"000005.cls": b"5"}
    return str(write_tar(tmp_path / name, members))


def same(one: ShardIndex | None, other: ShardIndex | None) -> bool:
    assert one is not None
    assert other is not None
    assert (one.stamp, one.keys, one.suffixes) == (other.stamp, other.keys, other.suffixes)
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("ends", "kinds", "offsets", "sizes")
    )


def test_an_index_says_where_every_member_is(tmp_path: Path) -> None:
    path = shard(tmp_path)
    index, content = build_index(path, open_shard), Path(path).read_bytes()
    assert list(index.keys) == ["000003", "000004", "000005"]
    assert [list(index.members(number)) for number in range(3)] == [
        ["cls", "json"],
        ["cls", "json"],
        ["cls"],
    ]
    for number, expected in enumerate([members_of(3), members_of(4), {"000005.cls": b"5"}]):
        for member in index.members(number).values():
            assert content[member.offset :][: member.size] == expected[member.name]


def test_an_index_survives_being_written(tmp_path: Path) -> None:
    path = shard(tmp_path)
    index, file = build_index(path, open_shard), tmp_path / "new" / "a.idx.json"
    assert save_index(index, file)
    assert same(load_index(file, local_stamp(path)), index)
    assert load_count(file, local_stamp(path)) == 3
    json.loads(file.read_text())  # a JSON file, though its first line is enough
    assert os.listdir(file.parent) == ["a.idx.json"]


@pytest.mark.parametrize("change", ["size", "time"])
def test_an_index_of_another_file_is_not_used(change: str, tmp_path: Path) -> None:
    path, file = shard(tmp_path), tmp_path / "a.idx.json"
    save_index(build_index(path, open_shard), file)
    if change == "size":
        stat = os.stat(path)
        with open(path, "ab") as stream:
            stream.write(bytes(512))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    else:
        os.utime(path, ns=(0, 12345))
    assert load_count(file, local_stamp(path)) is None
    assert load_index(file, local_stamp(path)) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"overt_index": 2},
        {"samples": 4},
        {"samples": "three"},
        {"keys": ["a"]},
        {"keys": 5},
        {"kinds": [0, 1, 0, 1, 9]},
        {"kinds": [0, 1, 0, 1, -1]},
        {"ends": [2, 2, 5]},
        {"ends": [2, 4, 6]},
        {"ends": [[2], [4], [5]]},
        {"offsets": [0, 1, 2, 3, 10**9]},
        {"offsets": [0, 1, 2, 3, 10**30]},
        {"offsets": [0, 1, 2, 3, -4]},
        {"sizes": [0, 1, 2, 3]},
        {"sizes": ["x"] * 5},
        {"suffixes": None},
    ],
)
def test_a_damaged_index_is_not_used(damage: dict[str, Any], tmp_path: Path) -> None:
    path, file = shard(tmp_path), tmp_path / "a.idx.json"
    save_index(build_index(path, open_shard), file)
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | damage))
    assert load_index(file, local_stamp(path)) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "\x00", "{}\n{}"])
def test_anything_else_is_not_an_index(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.idx.json"
    file.write_text(text)
    assert load_count(file, None) is None
    assert load_index(file, None) is None
    assert load_index(tmp_path / "none", None) is None


def test_what_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_index(shard(tmp_path), open_shard)
    (tmp_path / "file").write_text("")
    assert not save_index(index, tmp_path / "file" / "a.idx.json")

    def full(*arguments: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(index_module.Path, "replace", full)
    assert not save_index(index, tmp_path / "a.idx.json")
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "file"]  # nothing is left behind


def test_indexes_have_a_path_of_their_own(tmp_path: Path) -> None:
    one, other = shard(tmp_path), shard(tmp_path, "b.tar")
    assert index_path(one, None) == Path(f"{one}.idx.json")
    assert index_path("s3://bucket/a.tar", None) is None
    assert index_path("a key of some opener", None) is None
    paths = {index_path(name, tmp_path) for name in (one, other, "s3://x/a.tar", "s3://y/a.tar")}
    assert len(paths) == 4
    assert all(path is not None and path.parent == tmp_path for path in paths)


def test_what_has_no_index_is_refused(tmp_path: Path) -> None:
    path = shard(tmp_path)
    with pytest.raises(
        DataError, match=r"a\.tar cannot be read by index: .* cannot seek; .*Stream"
    ):
        build_index(path, open_forward)
    zipped = write_tar(tmp_path / "a.tar.gz", members_of(1), mode="w:gz")
    with pytest.raises(DataError, match=r"a\.tar\.gz is compressed .* gunzip it, or .*TarStream"):
        build_index(str(zipped), open_shard)
    with pytest.raises(DataError, match=r"none\.tar cannot be opened"):
        build_index(str(tmp_path / "none.tar"), open_shard)


def test_the_stamp_of_what_is_no_file_has_no_time(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    index = build_index("a name", lambda shard: io.BytesIO(stream.getvalue()))
    assert index.stamp == Stamp(len(stream.getvalue()), None)
