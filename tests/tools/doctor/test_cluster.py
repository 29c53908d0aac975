"""overt/tools/doctor/cluster.py: what all processes see, or do not."""

from collections.abc import Callable
from pathlib import Path

import torch

from overt.distributed import World
from overt.tools.doctor import cluster
from overt.tools.doctor.report import Check, Level

ALONE = World(0, 1, 0, torch.device("cpu"))


def on_own_disk(folder: Path) -> Check:
    """Each process looks at a folder of its own, as on hosts without a shared disk."""
    from overt.distributed import init_distributed

    world = init_distributed("cpu")
    own = folder / str(world.rank)
    own.mkdir()
    return cluster.shared_folder(own, world, patience=0.2)


def test_a_folder_that_is_not_shared_is_found(
    run_processes: Callable[..., list[Check]], tmp_path: Path
) -> None:
    for check in run_processes(on_own_disk, 2, tmp_path):
        assert check.level is Level.FAIL
        assert "not seen by rank 1" in check.finding
        assert "output_dir" in check.remedy


def test_a_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    check = cluster.shared_folder(file / "runs", ALONE)  # the nearest folder is tmp_path
    assert check.level is Level.OK
    check = cluster.shared_folder(Path("/proc/self"), ALONE)
    assert check.level is Level.FAIL
    assert "cannot be written" in check.finding
