"""`overt complete SCAN --checkpoint FILE`: complete a defective skull with an implant.

SCAN is a CT or a mask (DICOM folder, .nrrd, .nii.gz, .inv3, .npz), a closed mesh (.stl, .ply, .obj)
or a cloud of points (.npy, (points, 3)). A checkpoint folder and an exported safetensors file name
their recipe; for any other file, give --recipe. --mirror and --interpolate need neither: they
mirror the healthy side, or continue the vault across a hole in it. --voxels names a trained second
stage (pcdiff_refine or pcdiff_voxels), which turns the sampled points into volumes; without one, a
ball is rolled around them.

Everything is written in patient space (LPS, mm): implant.stl, implant.obj, implant.nrrd and
implant.nii.gz, report.html (an interactive 3D view), case.json, the sampled points (sample_N.ply),
and the clouds in the format of the published code (input.npy, sample.npy, shift.npy, scale.npy).
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.commands.arguments import configure_model, finite_number, model_options, whole_number
from overt.config import Config, build_recipe
from overt.errors import ConfigError, DataError
from overt.files.bounds import open_arrays
from overt.progress import shown
from overt.tasks import ImplantVoxelizer, SkullCompleter, need_task

if TYPE_CHECKING:
    from overt.data.skulls.volumes import CloudFrame, Volume
    from overt.geometry.implant import Finished

CLOUD_FACTOR = 2  # points on a volume's surface for each one that is drawn
CLOSE_UP_FACTOR = 10  # the same for a close-up, which shows a part of the surface

Points = NDArray[np.floating[Any]]


class Clock:
    """Times the stages of a case and prints each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.start = time.perf_counter()

    def end(self, stage: str, note: str = "") -> None:
        now = time.perf_counter()
        self.seconds[stage] = round(now - self.start, 3)
        print(f"{stage:<9} {now - self.start:6.1f} s{'  ' if note else ''}{note}", flush=True)
        self.start = now


class Skull(NamedTuple):
    """A defective skull as the network's input, and the transform back to the patient."""

    volume: Volume | None  # of booleans; None for a cloud
    how: str
    cloud: Points  # (points, 3)
    frame: CloudFrame | None

    def to_patient(self, cloud: Points) -> Points:
        if self.volume is None or self.frame is None:
            return cloud
        return self.volume.to_patient(self.frame.to_indices(cloud))


class Voxelizer(NamedTuple):
    """A second stage."""

    task: ImplantVoxelizer
    model: Any
    how: str


# Options of the finished implant, 0 where they are not given.
LENGTHS = {
    "--clearance": "distance kept from the skull; default: 0",
    "--min-wall": "make thinner walls as thick as this; default: 0, as they are",
    "--smooth": "width of the smoothing, which keeps the rim; default: 0, none",
    "--close-holes": "close holes through the wall up to this width; default: 0, cavities only",
}


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    clock = Clock()
    folder = options.output or default_folder(options.scan)
    refuse_unused(options)
    if options.mirror or options.interpolate:
        return complete_untrained(options, folder, clock)
    if options.checkpoint is None:
        raise ConfigError(
            "--checkpoint is missing: the weights of a trained model; or use --mirror or "
            "--interpolate, which need none"
        )
    config = _configure(options)
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
        raise DataError(
            f"the implant in {folder} is empty: {why_empty(options)}. The sampled points are there"
        )
    return 0


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
                f"{method} needs no network, and {', '.join(given)} would have no effect; leave "
                f"out {method}, or what belongs to a network"
            )
    if options.spacing is not None and options.scan.suffix.lower() != ".npy":
        raise ConfigError(
            f"--spacing is for volumes in .npy files; {options.scan.name} has its own spacing"
        )


def why_empty(options: argparse.Namespace) -> str:
    """Return the likely reason."""
    if options.clearance:
        return f"no voxel is {options.clearance:g} mm from the skull, as --clearance asks"
    if options.mirror:
        return "nothing of the mirrored side is missing here"
    return "at least half of the samples must share a volume; take more steps, or another model"


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
        parser.add_argument(name, type=finite_number(0), default=0.0, metavar="MM", help=meaning)
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


def _configure(options: argparse.Namespace) -> Config:
    overrides = list(options.overrides)
    if options.samples is not None:
        overrides.append(f"evaluation.ensemble={options.samples}")
    if options.steps is not None:
        overrides.append(f"evaluation.steps={options.steps}")
    return configure_model(options.checkpoint, options.recipe, overrides, options.package)


def read_bone(options: argparse.Namespace) -> tuple[Volume, str]:
    """Return the bone of a scan and what its values were taken for."""
    from overt.data.skulls.bone import find_bone
    from overt.data.skulls.scans import read_scan

    spacing = None if options.spacing is None else tuple(options.spacing)
    scan = read_scan(options.scan, spacing)
    bone = find_bone(scan, str(options.scan), options.threshold)
    if not bone[0].values.any():
        raise DataError(f"{options.scan} holds no bone: all its voxels are empty")
    return bone


def read_skull(options: argparse.Namespace, config: Config) -> Skull:
    """Return a defective skull as a cloud, and as a volume where it is one."""
    from overt.data.skulls.lists import load_cloud
    from overt.data.skulls.prepare import cloud_of
    from overt.data.skulls.volumes import cloud_frame

    path = options.scan
    required_points = getattr(config.settings.data, "num_known_points", 1)
    if path.suffix.lower() == ".npy" and options.spacing is None:
        if not path.is_file():
            raise DataError(f"no skull at {path}; check the path")
        refuse_volume(path)
        refuse_volume_options(options)
        return Skull(None, "a cloud of points", load_cloud(path, required_points), None)
    volume, how = read_bone(options)
    frame = cloud_frame(volume, axes_of(config))
    is_close_up = getattr(config.settings.evaluation, "close_up", False)
    points = required_points * (CLOSE_UP_FACTOR if is_close_up else CLOUD_FACTOR)
    cloud = cloud_of(volume.mask, points, np.random.default_rng(0), path, frame)
    return Skull(volume, how, cloud, frame)


def refuse_volume(path: Path) -> None:
    """Raise an error that names the missing option if an array is a volume."""
    try:
        shape = open_arrays(path, mapped=True).shape
    except (ValueError, OSError, EOFError):
        return  # whoever reads it as a cloud says what is wrong
    if len(shape) == 3:
        raise DataError(
            f"{path} holds a volume of shape {shape}: give its voxels in mm by --spacing MM MM MM. "
            "A cloud of points has the shape (points, 3)"
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


def sample(options: argparse.Namespace, config: Config, skull: Skull, clock: Clock) -> Any:
    """Return the recipe's implants for the skull."""
    import torch

    from overt.checkpoint.trained import load_model
    from overt.distributed import init_distributed
    from overt.engine.precision import AUTOCAST, set_precision

    world = init_distributed(config.training.device)
    recipe = build_recipe(config)
    completer = need_task(recipe, SkullCompleter, config.recipe.name)
    model, report = load_model(recipe, options.checkpoint, options.part, options.rename)
    clock.end("load", str(report))
    set_precision(config.training.precision, config.training.deterministic)
    # CPUs without 16-bit arithmetic emulate it, at a tenth of the speed.
    dtype = AUTOCAST.get(config.training.precision) if world.device.type == "cuda" else None
    with (
        torch.inference_mode(),
        torch.autocast(world.device.type, dtype, enabled=dtype is not None),
    ):
        completion = completer.complete(model.to(world.device), skull.cloud, str(options.scan))
    clock.end("sample", f"{len(completion.implants)} implant(s) on {world.device}")
    return completion


def write_clouds(folder: Path, completion: Any, implants: Points) -> list[str]:
    """Write the samples as points of the patient, as the published code does, and as a picture."""
    import torch

    from overt.data.skulls.meshes import write_ply_points
    from overt.tools.report.case_folder import clear_case
    from overt.viz.points import Shown, draw_clouds
    from overt.viz.tracks import save_image

    clear_case(folder)
    folder.mkdir(parents=True, exist_ok=True)
    known, parts = completion.known, completion.implants
    completed = [np.concatenate([known.points, part]) for part in parts.numpy()]
    arrays = {"input": known.points[None], "sample": np.stack(completed)}
    arrays |= {"shift": known.shift[None], "scale": known.scale[None]}
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    for index, points in enumerate(implants):
        write_ply_points(folder / f"sample_{index}.ply", points)
    defective = torch.from_numpy(known.points)
    rows = [Shown(f"implant {index}", defective, part) for index, part in enumerate(parts)]
    save_image(folder / "picture.png", draw_clouds(rows))
    return [*(f"{name}.npy" for name in arrays), f"{len(parts)} sample_N.ply", "picture.png"]


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


def axes_of(config: Config) -> str:
    """Return the axis orientation of the clouds that a model was trained on."""
    axes: str | None = getattr(config.settings.data, "axes", None)
    return (axes or "LPS").upper()


def load_voxelizer(options: argparse.Namespace, axes: str) -> Voxelizer:
    """Return the second stage of --voxels, for clouds with the axes of the first stage."""
    from overt.checkpoint.recorded import recorded_recipe
    from overt.checkpoint.trained import load_model

    if options.voxels.is_file() and recorded_recipe(options.voxels) is None:  # --recipe: stage one
        raise ConfigError(
            f"--voxels {options.voxels} does not name its recipe; give a checkpoint folder, or a "
            "safetensors file that `overt ckpt export` wrote"
        )
    config = configure_model(options.voxels, None, [], options.package)
    recipe = build_recipe(config)
    task = need_task(recipe, ImplantVoxelizer, config.recipe.name)
    if axes_of(config) != axes:
        raise ConfigError(
            f"--voxels {options.voxels} was trained on skulls with data.axes={axes_of(config)}, "
            f"--checkpoint {options.checkpoint} with {axes}; use two stages of one data set"
        )
    model, report = load_model(recipe, options.voxels, options.part)
    return Voxelizer(task, model, f"by {config.recipe.name}; {report}")


def make_volumes(
    config: Config, skull: Skull, completion: Any, voxelizer: Voxelizer | None, clock: Clock
) -> list[NDArray[np.bool_]]:
    """Return a volume for each sample: by the second stage, or by rolling a ball around points."""
    volume, frame = skull.volume, skull.frame
    if volume is None or frame is None:
        return []
    known = completion.known
    if voxelizer is None:
        from overt.geometry.solid import solid_of_points

        ball = vars(config.settings.evaluation).get("solid_mm", 8.0)
        clouds = completion.implants.numpy() * known.scale + known.shift
        samples = [
            solid_of_points(frame.to_indices(cloud), volume.values.shape, volume.spacing, ball)
            & ~volume.values
            for cloud in clouds
        ]
        clock.end("solid", f"{len(samples)} volume(s)")
        return samples
    from overt.distributed import init_distributed
    from overt.geometry.indicator import ScanGrid

    device = init_distributed(config.training.device).device
    grid = ScanGrid(volume.values, volume.spacing, frame.to_indices)
    volumes: list[NDArray[np.bool_]] = voxelizer.task.implant_volumes(
        voxelizer.model.to(device), known, completion.implants, grid
    )
    clock.end("voxels", f"{len(volumes)} volume(s) {voxelizer.how}")
    return volumes


def write_volumes(
    options: argparse.Namespace,
    folder: Path,
    skull: Skull,
    samples: list[NDArray[np.bool_]],
    facts: dict[str, Any],
    clock: Clock,
) -> tuple[Finished, list[str]]:
    """Write the implant that the samples agree on as volume, meshes and page."""
    from overt.geometry.implant import finish
    from overt.tools.report.case_folder import Case, write_case

    volume = skull.volume
    assert volume is not None
    spacing = volume.spacing
    voters = samples if options.vote else samples[:1]
    votes = np.sum(voters, axis=0, dtype=np.int32)
    chosen = np.asarray(votes >= (len(voters) + 1) // 2)
    finished = finish(chosen, volume.values, spacing, finishing_of(options))
    notes = [skull.how, f"Implant by {'vote of ' if options.vote else 'the first of '}"
             f"{len(samples)} sample(s), clearance {options.clearance:g} mm."]  # fmt: skip
    case = Case(options.scan.name, volume, finished, samples, facts | timing(clock), notes)
    written = write_case(folder, case)
    clock.end("write")
    return finished, written


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


def facts_of(options: argparse.Namespace, skull: Skull, clock: Clock) -> dict[str, Any]:
    """Return what case.json says about the scan and the software."""
    from importlib.metadata import version

    packages = ("overt", "torch", "numpy", "scipy")
    volume = skull.volume
    assert volume is not None
    return {
        "scan": str(options.scan),
        "values": skull.how,
        "shape": list(volume.values.shape),
        "spacing_mm": list(volume.spacing),
        "affine_lps": volume.affine.tolist(),
        "space": "LPS, mm",
        "versions": _versions(packages, version) | {"python": platform.python_version()},
        "finishing": finishing_of(options)._asdict(),
    }


def _versions(packages: Sequence[str], version: Callable[[str], str]) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError

    versions = {}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def timing(clock: Clock) -> dict[str, Any]:
    """Return times and the most memory so far."""
    memory = {"host_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        memory["device_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return {"seconds": dict(clock.seconds), "peak_memory": memory}
