"""overt/tools/report/best.py: the best checkpoint, whatever lies in its folder."""

import json
from pathlib import Path

import pytest
from sample_runs import write_checkpoint

from overt.tools.report.best import read_best
from overt.tools.report.run import Best


def test_the_link_is_followed_and_without_it_the_last_flagged_one_counts(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    assert read_best(checkpoints) is None
    write_checkpoint(tmp_path, 3, 0.5)
    write_checkpoint(tmp_path, 12, 0.25)
    assert read_best(checkpoints) == Best("score", 0.25, 12)
    (checkpoints / "best").symlink_to("step_00000003")
    assert read_best(checkpoints) == Best("score", 0.5, 3)


@pytest.mark.parametrize("target", ["../../elsewhere", "/etc", "step_00000009", "..", "step_x"])
def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, target: str) -> None:
    write_checkpoint(tmp_path / "elsewhere", 3, 0.5)
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/checkpoints/best").symlink_to(target)
    outside = tmp_path / "elsewhere/checkpoints/step_00000003"
    (tmp_path / "run/checkpoints/step_00000009").symlink_to(outside)
    assert read_best(tmp_path / "run/checkpoints") is None


@pytest.mark.parametrize(
    "content",
    ["", "[]", "[" * 2000, "\0", json.dumps({"metric": 10**400, "step": 1}),
     '{"metric": NaN, "step": 1}', '{"metric": 1.0, "step": -1}', '{"metric": [], "step": 1}'],
)  # fmt: skip
def test_a_manifest_of_anything_is_no_best(tmp_path: Path, content: str) -> None:
    folder = write_checkpoint(tmp_path, 3, 0.5)
    (folder.parent / "best").symlink_to(folder.name)
    (folder / "manifest.json").write_text(content)
    assert read_best(folder.parent) is None
