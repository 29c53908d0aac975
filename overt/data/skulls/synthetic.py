"""Write synthetic skulls in the layout of SkullBreak, to train and test without a download.

Volumes, clouds and lists are like those of real skulls. Never imports torch.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import numpy as np

from overt.data.making import claim_folder, map_in_processes
from overt.data.skulls.defects import cut_defect
from overt.data.skulls.lists import DEFECTS, SUFFIX, names_in_list
from overt.data.skulls.nrrd import write_nrrd
from overt.data.skulls.prepare import LISTS, save_cloud, write_lists
from overt.data.skulls.shapes import HEAD_MM, make_skull
from overt.data.skulls.shells import make_shell, take_ball
from overt.data.skulls.surfaces import sample_surface, scatter_on_surface, surface_triangles
from overt.data.skulls.volumes import Volume
from overt.geometry.voxels import Mask
from overt.progress import report

# Format version of each kind: incremented when the same settings produce different volumes.
KINDS = {"shells": 1, "skulls": 3}

logger = logging.getLogger(__name__)


def write_skulls(
    root: Path | str,
    count: int,
    side: int = 64,
    points: int = 8000,
    seed: int = 0,
    workers: int = 0,
    kind: str = "skulls",
) -> int:
    """Write missing skulls 0 to `count` - 1 with five defects each; return how many.

    A skull depends only on the settings and its number, and stays in its list if the set grows.
    Skulls from `count` on are kept as well. `kind` is skulls, or shells for demos:
    coarse and quick. `side` is the number of voxels along a side of the volumes, `points` the size
    of a cloud.
    """
    root = Path(root)
    settings = {"format": KINDS[kind], "side": side, "points": points, "seed": seed}
    claim_folder(root, settings, "skulls")
    # The complete skull is written last: if it exists, the rest does too.
    missing = [
        index
        for index in range(count)
        if not (root / "complete_skull" / f"{index:03d}{SUFFIX}.npy").is_file()
    ]
    work = partial(write_skull, root, side=side, points=points, seed=seed, kind=kind)
    for done, _ in enumerate(map_in_processes(work, missing, workers), start=1):
        report("writing skulls", count - len(missing) + done, count)
    names = [f"{index:03d}" for index in range(count)]
    write_lists(root, names, seed, added=_added(root, names, missing))
    held = sum(1 for _ in (root / "complete_skull").glob(f"*{SUFFIX}.npy"))
    if held > count:
        logger.warning(
            "%s holds %d skulls, more than the %d requested; all in its train.csv and test.csv are "
            "used. For fewer, choose another folder",
            root,
            held,
            count,
        )
    return len(missing)


def _added(root: Path, names: list[str], written: list[int]) -> list[str]:
    """Return the skulls that the lists do not have yet: those that were just written.

    Skulls of an interrupted call follow the listed ones. A row that a user removed stays removed.
    """
    if not written:
        return []
    listed = [
        name for file in LISTS if (root / file).exists() for name in names_in_list(root / file)
    ]
    last = max((int(name) for name in listed if name.isdecimal()), default=-1)
    return [name for number, name in enumerate(names) if number > last or number in written]


def write_skull(root: Path, number: int, side: int, points: int, seed: int, kind: str) -> None:
    """Write the volumes and clouds of one skull and its five defects."""
    rng = np.random.default_rng((seed, number))
    shells = kind == "shells"
    complete = make_shell(rng, side) if shells else make_skull(rng, side)
    affine = np.diag([*((HEAD_MM / side,) * 3), 1.0])

    def write(mask: Mask, *folders: str) -> None:
        volume = root.joinpath(*folders, f"{number:03d}.nrrd")
        write_nrrd(volume, Volume(mask, affine))
        # Poisson discs spread few points evenly; many random points are as good, and much quicker.
        sample = sample_surface if shells else scatter_on_surface
        cloud = sample(surface_triangles(mask), points, rng)
        save_cloud(volume.with_name(f"{number:03d}{SUFFIX}.npy"), cloud)

    for defect in DEFECTS["skullbreak"]:
        if shells:
            implant = take_ball(complete, defect, rng)
        else:
            implant = cut_defect(complete, affine, defect, rng)
        write(complete & ~implant, "defective_skull", defect)
        write(implant, "implant", defect)
    write(complete, "complete_skull")
