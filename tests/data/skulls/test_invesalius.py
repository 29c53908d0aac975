"""overt/data/skulls/invesalius.py: projects as InVesalius writes them, and broken ones."""

import io
import plistlib
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overt.data.skulls.invesalius import read_invesalius
from overt.errors import DataError

VALUES = np.arange(24, dtype="<i2").reshape(2, 3, 4) - 5  # (z, y, x)


def write_project(path: Path, body: bytes = VALUES.tobytes(), **changes: Any) -> Path:
    matrix = {"dtype": "int16", "filename": "matrix.dat", "shape": [2, 3, 4]}
    facts = {"matrix": matrix, "spacing": [0.5, 0.75, 2.0]} | changes
    with tarfile.open(path, "w:gz") as archive:
        for name, content in (("main.plist", plistlib.dumps(facts)), ("matrix.dat", body)):
            member = tarfile.TarInfo(f"tmpabc/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_a_project_gives_its_volume_in_patient_space(tmp_path: Path) -> None:
    volume = read_invesalius(write_project(tmp_path / "x.inv3"))
    assert volume.values.shape == (4, 3, 2)
    assert volume.values[3, 1, 1] == VALUES[1, 1, 3]
    assert volume.spacing == (0.5, 0.75, 2.0)
    # Rows grow to the front, slices to the head.
    np.testing.assert_array_equal(np.diag(volume.affine), [0.5, -0.75, 2.0, 1.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"body": b"12"}, "2 bytes of values, expected 48"),
        ({"spacing": [1.0, 0.0, 1.0]}, "expected three finite axes"),
        ({"matrix": {"dtype": "object", "filename": "m", "shape": [1, 1, 1]}}, "type object"),
        ({"matrix": {"dtype": "int16", "shape": [float("inf")]}}, "lacks or misstates"),
        ({"matrix": {"dtype": "int16"}}, "lacks or misstates 'shape'"),
        ({"matrix": {"dtype": "int16", "filename": "m", "shape": [2, 3, 4]}}, "no m in"),
    ],
)
def test_broken_projects_are_refused(changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_invesalius(write_project(tmp_path / "x.inv3", **changes))


@pytest.mark.parametrize("content", [b"", b"no archive", b"text " * 200])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.inv3").write_bytes(content)
    with pytest.raises(DataError, match="expected a tar archive") as caught:
        read_invesalius(tmp_path / "x.inv3")
    assert "\n" not in str(caught.value)
