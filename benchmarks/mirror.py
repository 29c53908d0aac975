"""Scores of the mirror baseline on a folder in SkullBreak's layout: no training, no GPU.

    overt data skulls data/cranium --scan Cranium.inv3 --points 20000
    python benchmarks/mirror.py data/cranium --workers 2

Every case of test.csv is completed as by `overt complete --mirror`, with its usual finishing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from overt.data.making import map_in_processes
from overt.data.skulls.lists import SkullItem, SkullList
from overt.data.skulls.nrrd import read_nrrd
from overt.geometry.implant import finish
from overt.geometry.symmetry import mirrored_implant
from overt.metrics.implants import implant_scores

BORDER_MM = 10.0
SHOWN = ("dsc", "bdsc", "hd95")


def score(item: SkullItem) -> tuple[str, list[float]]:
    """Return the name of a case and its scores."""
    skull, truth = read_nrrd(item.volume("skull")), read_nrrd(item.volume("implant")).mask
    implant = mirrored_implant(skull.mask, skull.affine).implant
    finished = finish(implant, skull.mask, skull.spacing).implant
    scores = implant_scores(finished, truth, skull.mask, skull.spacing, BORDER_MM)
    return item.name, [scores[key] for key in SHOWN]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--dataset", choices=("skullbreak", "skullfix"), default="skullbreak")
    parser.add_argument("--workers", type=int, default=0, help="worker processes")
    options = parser.parse_args()
    items = SkullList(options.root / "test.csv", options.dataset).items
    print("| case | Dice | border Dice | HD95 mm |\n|---|---|---|---|", flush=True)
    rows = []
    for name, scores in map_in_processes(score, items, options.workers):
        rows.append(scores)
        print(f"| {name.removesuffix('_surf')} | {shown(scores)} |", flush=True)
    print(f"| mean | {shown(np.nanmean(rows, axis=0).tolist())} |")
    return 0


def shown(scores: list[float]) -> str:
    dice, border, distance = scores
    return f"{dice:.2f} | {border:.2f} | {distance:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
