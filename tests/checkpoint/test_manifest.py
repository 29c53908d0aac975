"""Manifests: what they vouch for, and what is refused."""

import json

import pytest

from overt.checkpoint import storage
from overt.checkpoint.manifest import hash_of, make_manifest, read_manifest, verify
from overt.errors import CheckpointError
from tests.checkpoint.small_folders import write


def test_an_extra_file_is_reported_and_harmless(tmp_path):
    folder = write(tmp_path, "step_00000001", 1)
    (folder / "notes.txt").write_text("mine")
    result = verify(folder)
    assert result.extra == ["notes.txt"]
    assert result.good
    assert "notes.txt" in str(result)
    assert storage.newest_good(tmp_path) == folder


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "..", "sub/file"])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path, name):
    (tmp_path / "outside").write_bytes(b"secret")
    folder = write(tmp_path, "step_00000001", 1)
    manifest = read_manifest(folder)
    manifest["files"][name] = {"size": 6, "crc32": "0"}
    manifest["sha256"] = hash_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert any("outside the folder" in problem for problem in verify(folder).broken)


def test_a_later_format_is_refused_with_the_fix(tmp_path):
    folder = write(tmp_path, "step_00000001", 1)
    manifest = {**read_manifest(folder), "format": 99}
    manifest["sha256"] = hash_of(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"format 99.*reads format 1"):
        read_manifest(folder)


def test_the_versions_are_those_the_process_began_with(monkeypatch):
    """An upgrade replaces the files of a package, not what a run has imported."""
    before = make_manifest({}, {})["versions"]
    monkeypatch.setattr("overt.checkpoint.manifest.metadata.version", lambda package: "upgraded")
    again = make_manifest({}, {})["versions"]
    assert again == before
    assert again is not before
