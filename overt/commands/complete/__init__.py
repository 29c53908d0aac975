"""`overt complete`: the verb. Options and their help are in options.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from overt.commands.complete.implant import load_voxelizer, make_volumes, sample
from overt.commands.complete.options import (
    configure,
    default_folder,
    finishing_of,
    make_parser,
    refuse_unused,
    why_empty,
)
from overt.commands.complete.result import Clock, facts_of, timing, write_clouds, write_volumes
from overt.commands.complete.skull import Skull, axes_of, read_bone, read_skull
from overt.errors import ConfigError, DataError, need_folder
from overt.progress import shown


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    clock = Clock()
    folder = need_folder("--out", options.output or default_folder(options.scan))
    refuse_unused(options)
    if options.mirror or options.interpolate:
        return complete_untrained(options, folder, clock)
    if options.checkpoint is None:
        raise ConfigError(
            "--checkpoint is missing: the weights of a trained model; or use --mirror or "
            "--interpolate, which need none"
        )
    config = configure(options)
    # What the user gave is read before torch is: a mistake in it shows at once.
    skull = read_skull(options, config)
    clock.end("read", skull.how)
    voxelizer = None if options.voxels is None else load_voxelizer(options, axes_of(config))
    with shown():
        completion = sample(options, config, skull, clock)
    known, implants = completion.known, completion.implants.numpy()
    clouds = implants * known.scale + known.shift  # (n, K, 3) in the coordinates of clouds
    samples = make_volumes(config, skull, completion, voxelizer, clock)
    written = write_clouds(folder, completion, skull.to_patient(clouds))
    is_empty = False
    if skull.volume is not None:
        facts = facts_of(options, skull, clock) | {
            "checkpoint": str(options.checkpoint),
            "recipe": config.recipe.name,
            "sampling": vars(config.settings.evaluation),
            "second_stage": None if options.voxels is None else str(options.voxels),
        }
        finished, files = write_volumes(options, folder, skull, samples, facts, clock)
        written += files
        is_empty = not finished.implant.any()
    print(
        f"{len(implants)} implant(s) of {implants.shape[1]} points\n"
        f"written to {folder}: {', '.join(written)}"
    )
    if is_empty:
        reason = why_empty(options, len(samples) if options.vote else 1)
        raise DataError(f"the implant in {folder} is empty: {reason}. The sampled points are there")
    return 0


def complete_untrained(options: argparse.Namespace, folder: Path, clock: Clock) -> int:
    """Write an implant without a model: the mirrored other side, or the interpolated vault."""
    from overt.geometry.implant import finish
    from overt.geometry.symmetry import mirrored_implant
    from overt.geometry.vault import interpolated_implant
    from overt.tools.report.case_folder import Case, clear_case, write_case

    volume, how = read_bone(options)
    clock.end("read", how)
    facts: dict[str, Any]
    if options.mirror:
        implant, matrix, mismatch = mirrored_implant(volume.values, volume.affine)
        facts = {"method": "mirror", "mirror": matrix.tolist(), "mismatch_mm": mismatch}
        note = f"Mirrored from the other side; the halves differ by {mismatch:.2f} mm."
    else:
        implant, area = interpolated_implant(volume.values, volume.affine)
        facts = {"method": "interpolate", "hole_mm2": area}
        note = f"Interpolated across the largest hole of the vault, {area / 100:.0f} cm²."
    clock.end(facts["method"], note)
    finished = finish(implant, volume.values, volume.spacing, finishing_of(options))
    if not finished.implant.any():
        raise DataError(f"the implant is empty, nothing was written: {why_empty(options)}")
    clear_case(folder)
    skull = Skull(volume, how, np.zeros((0, 3)), None)
    facts = facts_of(options, skull, clock) | facts
    case = Case(options.scan.name, volume, finished, [], facts | timing(clock), [how, note])
    written = write_case(folder, case)
    clock.end("write")
    print(f"written to {folder}: {', '.join(written)}")
    return 0
