"""overt/commands/complete/options.py: where the results go; refusals are in test_complete.py."""

from pathlib import Path

import pytest

from overt.commands.complete.options import default_folder


@pytest.mark.parametrize(
    ("scan", "name"),
    [("anna.2024.nii.gz", "anna.2024"), ("skull.nrrd", "skull"), ("a.b.stl", "a.b")],
)
def test_every_scan_has_a_folder_of_its_own(scan: str, name: str) -> None:
    assert default_folder(Path(scan)) == Path(f"{name}_implant")


def test_nothing_is_written_into_a_folder_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "CT.1").mkdir()
    monkeypatch.chdir(tmp_path / "CT.1")
    assert default_folder(Path()) == tmp_path / "CT.1_implant"
