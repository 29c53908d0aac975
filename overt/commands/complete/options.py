"""`overt complete SCAN --checkpoint FILE`: complete a defective skull with an implant.

SCAN is a CT or a mask (DICOM folder or multi-frame file, .nrrd, .nii.gz, .inv3, .npz), a closed
mesh (.stl, .ply, .obj) or a cloud of points (.npy, (points, 3)). A checkpoint folder and an
exported safetensors file name their recipe; for any other file, give --recipe. --mirror and
--interpolate need neither: they mirror the healthy side, or continue the vault across a hole in it.
--voxels names a trained second stage (pcdiff_refine or pcdiff_voxels), which turns the sampled
points into volumes; without one, a ball is rolled around them.

Everything is written in patient space (LPS, mm): implant.stl, implant.obj, implant.nrrd and
implant.nii.gz, report.html (an interactive 3D view), case.json, the sampled points (sample_N.ply),
and the clouds in the format of the published code (input.npy, sample.npy, shift.npy, scale.npy).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from overt.commands.arguments import configure_model, finite_number, model_options, whole_number
from overt.config import Config
from overt.errors import ConfigError

# Options of the finished implant, 0 where they are not given.
LENGTHS = {
    "--clearance": "distance kept from the skull; default: 0",
    "--min-wall": "make thinner walls this thick where the skull leaves room; default: 0, none",
    "--smooth": "width of the smoothing, which keeps the rim; default: 0, none",
    "--close-holes": "close holes through the wall up to this width; default: 0, cavities only",
}
# Thicker than any skull. Beyond it these would fill the head, where the others leave no implant.
LONGEST_MM = {"--min-wall": 25.0, "--close-holes": 25.0}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt complete",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[model_options(default="none, with --mirror or --interpolate")],
    )
    parser.add_argument("scan", type=Path, metavar="SCAN")
    parser.add_argument("--samples", type=whole_number(1), metavar="N", help="how many implants")
    parser.add_argument(
        "--vote",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="what at least half of the samples fill; --no-vote: the first sample",
    )
    parser.add_argument("--steps", type=whole_number(2), metavar="N", help="steps of the sampler")
    parser.add_argument(
        "--out",
        "--output",
        dest="output",
        type=Path,
        metavar="FOLDER",
        help="default: SCAN_implant",
    )
    untrained = parser.add_mutually_exclusive_group()
    untrained.add_argument(
        "--mirror", action="store_true", help="baseline: mirror the healthy side"
    )
    untrained.add_argument(
        "--interpolate",
        action="store_true",
        help="baseline: continue the vault across a hole, also across the midline",
    )
    parser.add_argument(
        "--threshold",
        type=finite_number(-10_000),
        metavar="HU",
        help="lowest intensity of bone; default: 300 in CT",
    )
    for name, meaning in LENGTHS.items():
        length = finite_number(0, most=LONGEST_MM.get(name, math.inf))
        parser.add_argument(name, type=length, default=0.0, metavar="MM", help=meaning)
    parser.add_argument(
        "--all-parts", action="store_true", help="keep all components, not only the largest"
    )
    parser.add_argument(
        "--voxels", type=Path, metavar="CHECKPOINT", help="a trained second stage, file or folder"
    )
    parser.add_argument(
        "--spacing",
        type=finite_number(0, above=True),
        nargs=3,
        metavar="MM",
        help="of a .npy volume",
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings to change"
    )
    return parser


def default_folder(scan: Path) -> Path:
    """Return SCAN_implant, beside a folder of images instead of in it."""
    scan = scan.resolve()
    name = scan.name.removesuffix(".gz")
    name = name if scan.is_dir() else Path(name).stem
    folder = Path(f"{name}_implant")
    return scan.parent / folder if scan in folder.resolve().parents else folder


def refuse_unused(options: argparse.Namespace) -> None:
    """Raise an error for options that would have no effect."""
    method = "--mirror" if options.mirror else "--interpolate" if options.interpolate else None
    if method is not None:
        of_networks = ("checkpoint", "recipe", "rename", "samples", "steps", "voxels", "overrides")
        given = [name for name in of_networks if getattr(options, name)]
        if given:
            raise ConfigError(
                f"{method} needs no network, and {', '.join(given)} would have no effect; drop "
                f"{method}, or what belongs to a network"
            )
    if options.spacing is not None and options.scan.suffix.lower() != ".npy":
        raise ConfigError(
            f"--spacing is for volumes in .npy files; {options.scan.name} has its own spacing"
        )


def refuse_volume_options(options: argparse.Namespace) -> None:
    """Raise an error for options that have no effect on a cloud."""
    of_volumes = ("--voxels", "--all-parts", *LENGTHS)
    given = [name for name in of_volumes if getattr(options, name[2:].replace("-", "_"))]
    given += [] if options.vote else ["--no-vote"]
    given += [] if options.threshold is None else ["--threshold"]  # 0 is one, too
    if given:
        raise ConfigError(
            f"{options.scan} is a cloud of points, and {', '.join(given)} would have no effect; "
            "give a volume or a mesh, or drop what belongs to them"
        )


def why_empty(options: argparse.Namespace, voters: int = 0) -> str:
    """Return the likely reason; `voters`: of how many samples the implant is the vote."""
    if options.clearance:
        return f"no voxel is {options.clearance:g} mm from the skull, as --clearance asks"
    if options.mirror:
        return (
            "no gap of the skull has bone on the other side, as across the midline; use "
            "--interpolate, or a trained model (--checkpoint)"
        )
    if voters == 1:
        return "the points of the sample enclose no volume; take more steps, or another model"
    return "at least half of the samples must share a volume; take more steps, or another model"


def finishing_of(options: argparse.Namespace) -> Any:
    """Return what is to be done to the implant before it is written."""
    from overt.geometry.implant import Finishing

    return Finishing(
        clearance_mm=options.clearance,
        min_wall_mm=options.min_wall,
        smooth_mm=options.smooth,
        hole_mm=options.close_holes,
        largest_part=not options.all_parts,
    )


def configure(options: argparse.Namespace) -> Config:
    overrides = list(options.overrides)
    if options.samples is not None:
        overrides.append(f"evaluation.ensemble={options.samples}")
    if options.steps is not None:
        overrides.append(f"evaluation.steps={options.steps}")
    return configure_model(options.checkpoint, options.recipe, overrides, options.package)
