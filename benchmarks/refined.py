"""Score sampled implants as volumes: by the rolled ball, and by a refinement that was trained.

    python benchmarks/refined.py runs/skulls/cranium_ddim50_close_up.npz --root data/cranium \\
        --checkpoint runs/pcdiff_refine/checkpoints/best

The points are those that benchmarks/skulls.py wrote. Every volume is a vote of its samples. The
control `blind` is the refinement without any points, in the cube around them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import guarded, writable_file

from overt.checkpoint.trained import load_model
from overt.commands.arguments import configure_model
from overt.config import build_recipe
from overt.data.skulls.lists import load_cloud
from overt.data.skulls.prepare import load_case
from overt.distributed import init_distributed
from overt.engine.precision import AUTOCAST
from overt.errors import DataError
from overt.files.bounds import open_arrays
from overt.geometry.indicator import ScanGrid
from overt.metrics.implants import implant_scores
from overt.recipes.pcdiff.data import open_list
from overt.recipes.pcdiff.refine_recipe import RefineRecipe

KEYS = ("dsc", "bdsc", "hd95")


def main() -> int:
    options = make_parser().parse_args()
    arrays = read_points(options.points)
    words = [f"data.root={options.root}", "data.synthetic=null"]
    config = configure_model(options.checkpoint, None, words, ())
    recipe = build_recipe(config)
    if not isinstance(recipe, RefineRecipe):
        raise DataError(f"{options.checkpoint} is of recipe {config.recipe.name}, no refinement")
    device = init_distributed(config.training.device).device
    model, _ = load_model(recipe, options.checkpoint, "auto")
    model.to(device).eval()
    data = recipe.settings.data
    items = {item.name: item for item in open_list(data, data.test_list).items}
    dtype = AUTOCAST.get(config.training.precision) if device.type == "cuda" else None
    work, seconds = [], 0.0
    for index, name in enumerate(arrays["names"].tolist()):
        if name not in items:
            raise DataError(f"{options.root} has no test case {name} of {options.points}")
        samples = arrays["implants"][index].astype(np.float32)  # (n, K, 3) normalized
        points = samples * arrays["scales"][index] + arrays["shifts"][index]
        case = load_case(items[name], data.dataset)
        known = np.asarray(load_cloud(items[name].skull))[: data.num_known_points]
        grid = ScanGrid(case.skull, case.spacing, case.to_indices)
        start = time.time()
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            volumes = recipe.volumes(model, known, points, grid)
            seconds += time.time() - start
            blind = recipe.volumes(model, known, points, grid, blind=True)[0]
        votes = np.sum(volumes, axis=0) >= (len(volumes) + 1) // 2
        work.append((name, points, votes, blind, items[name]))
    score = partial(score_case, dataset=data.dataset, settings=recipe.settings.evaluation)
    if options.workers:
        with ProcessPoolExecutor(options.workers, get_context("forkserver")) as pool:
            rows = list(pool.map(score, work))
    else:
        rows = [score(item) for item in work]
    print(f"{len(rows)} cases, {seconds / len(rows):.2f} s to refine the samples of each")
    print_table(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def read_points(path: Path) -> dict[str, Any]:
    """Return the arrays of a file that benchmarks/skulls.py wrote."""
    try:
        arrays = open_arrays(path)
        return {name: arrays[name] for name in ("names", "implants", "shifts", "scales")}
    except Exception as error:  # a damaged file stops numpy with almost any
        raise DataError(
            f"{path} has no sampled implants ({type(error).__name__}: {error}); expected a .npz "
            "that benchmarks/skulls.py wrote"
        ) from error


def score_case(work: tuple[str, Any, Any, Any, Any], dataset: str, settings: Any) -> dict[str, Any]:
    name, points, refined, blind, item = work
    case = load_case(item, dataset)
    skull, truth, spacing, *_ = case
    solid = case.solid(points, settings.solid_mm)
    row: dict[str, Any] = {"name": name}
    for kind, mask in (("ball", solid), ("blind", blind), ("refined", refined)):
        scores = implant_scores(mask, truth, skull, spacing, settings.border_mm)
        row |= {f"{kind}_{key}": scores[key] for key in KEYS}
    return row


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the scores of every case, then means of each kind of defect and of all."""
    groups = defaultdict(list)
    for row in rows:
        groups[row["name"].rstrip("0123456789_surf")].append(row)
        print(f"  {row['name']:28}", *(words(row, kind) for kind in ("ball", "blind", "refined")))
    for name, group in [*groups.items(), ("all", rows)]:
        means = {key: np.nanmean([row[key] for row in group]) for key in rows[0] if key != "name"}
        print(f"{name:30}", *(words(means, kind) for kind in ("ball", "blind", "refined")))


def words(row: dict[str, Any], kind: str) -> str:
    dice, border, distance = (row[f"{kind}_{key}"] for key in KEYS)
    return f" {kind} {dice:.3f} {border:.3f} {distance:5.1f} mm"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("points", type=Path, help=".npz of benchmarks/skulls.py")
    parser.add_argument("--root", type=Path, required=True, help="of the skulls, with test.csv")
    parser.add_argument("--checkpoint", type=Path, required=True, help="of pcdiff_refine")
    parser.add_argument("--workers", type=int, default=0, help="processes that score")
    parser.add_argument("--json", type=writable_file, metavar="FILE", help="a row for each case")
    return parser


if __name__ == "__main__":
    raise SystemExit(guarded(main))
