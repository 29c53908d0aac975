"""Scores of the baselines without training on a folder in SkullBreak's layout; no GPU is needed.

    overt data skulls data/cranium --scan Cranium.inv3 --points 20000
    python benchmarks/untrained.py data/cranium --workers 2

Every case of test.csv is completed as by `overt complete --mirror` and `--interpolate`. Last: the
means, also of the interpolation where it is possible and the mirror elsewhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from command import guarded
from numpy.typing import NDArray

from overt.data.making import map_in_processes
from overt.data.skulls.lists import SkullItem, SkullList
from overt.data.skulls.nrrd import read_nrrd
from overt.errors import DataError
from overt.geometry.implant import finish
from overt.geometry.symmetry import mirrored_implant
from overt.geometry.vault import interpolated_implant
from overt.geometry.voxels import Mask
from overt.metrics.implants import implant_scores

BORDER_MM = 10.0
SHOWN = ("dsc", "bdsc", "hd95")


def score(item: SkullItem) -> tuple[str, NDArray[np.float64]]:
    """Return the name of a case, and scores (2, 3) of both methods; NaN if one is refused."""
    skull, truth = read_nrrd(item.volume("skull")), read_nrrd(item.volume("implant")).mask
    implants: list[Mask | None] = [mirrored_implant(skull.mask, skull.affine).implant]
    try:
        implants.append(interpolated_implant(skull.mask, skull.affine).implant)
    except DataError:  # the hole is not one of the vault alone
        implants.append(None)
    rows = np.full((2, len(SHOWN)), np.nan)
    for row, implant in zip(rows, implants, strict=True):
        if implant is not None:
            finished = finish(implant, skull.mask, skull.spacing).implant
            scores = implant_scores(finished, truth, skull.mask, skull.spacing, BORDER_MM)
            row[:] = [scores[key] for key in SHOWN]
    return item.name.removesuffix("_surf"), rows


def shown(scores: NDArray[np.float64]) -> str:
    """Return the cells of one method."""
    dice, border, distance = scores
    return "| | |" if np.isnan(dice) else f"{dice:.2f} | {border:.2f} | {distance:.1f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--dataset", choices=("skullbreak", "skullfix"), default="skullbreak")
    parser.add_argument("--cases", type=int, help="the first ones only")
    parser.add_argument("--workers", type=int, default=0, help="worker processes")
    options = parser.parse_args()
    items = SkullList(options.root / "test.csv", options.dataset).items[: options.cases]
    columns = "Dice | border Dice | HD95 mm"
    print(f"| case | mirror: {columns} | interpolated: {columns} |")
    print("|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for name, scores in map_in_processes(score, items, options.workers):
        rows.append(scores)
        print(f"| {name} | {shown(scores[0])} {shown(scores[1])}", flush=True)
    table = np.stack(rows)  # (cases, 2, 3)
    possible = ~np.isnan(table[:, 1, 0])
    chosen = np.where(possible[:, None], table[:, 1], table[:, 0])
    print(f"| mean of all | {shown(table[:, 0].mean(axis=0))} {shown(chosen.mean(axis=0))}")
    if possible.any():
        means = table[possible].mean(axis=0)
        print(f"| mean of {possible.sum()} interpolated | {shown(means[0])} {shown(means[1])}")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
