"""`overt complete SKULL --checkpoint FILE`: implants for a defective skull, and their picture.

SKULL is a volume (.nrrd) or a cloud of points (.npy, (points, 3)). A checkpoint folder of overt
knows its recipe; for any other file name it by --recipe. Writes the clouds as the published code
does (input.npy, sample.npy, shift.npy, scale.npy), the implants as implant_N.ply in the coordinates
of SKULL, a picture and, for a volume, the implant as a volume of the same shape.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overt.checkpoint.trained import load_model
from overt.commands.arguments import configure_model, model_options, whole_number
from overt.config import Config, build_recipe
from overt.errors import DataError
from overt.tasks import SkullCompleter, need_task

if TYPE_CHECKING:
    from overt.data.skulls.volumes import Volume

CLOUD_FACTOR = 2  # points on a volume's surface for each one that is drawn


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    config = _configure(options)
    # What the user gave is read before torch is: a mistake in it shows at once.
    volume, skull = read_skull(options.skull, config)

    import torch

    from overt.distributed import init_distributed
    from overt.engine.precision import AUTOCAST, set_precision
    from overt.viz.points import Shown, draw_clouds
    from overt.viz.tracks import save_image

    world = init_distributed(config.training.device)
    recipe = build_recipe(config)
    completer = need_task(recipe, SkullCompleter, config.recipe.name)
    model, report = load_model(recipe, options.checkpoint, options.part)
    print(report)
    set_precision(config.training.precision, config.training.deterministic)
    dtype = AUTOCAST.get(config.training.precision)
    with (
        torch.inference_mode(),
        torch.autocast(world.device.type, dtype, enabled=dtype is not None),
    ):
        completion = completer.complete(model.to(world.device), skull, str(options.skull))

    folder = options.output or Path(f"{options.skull.stem}_implant")
    folder.mkdir(parents=True, exist_ok=True)
    known, implants = completion.known, completion.implants.numpy()
    whole = [np.concatenate([known.points, implant]) for implant in implants]
    np.save(folder / "input.npy", known.points[None])
    np.save(folder / "sample.npy", np.stack(whole))
    np.save(folder / "shift.npy", known.shift[None])
    np.save(folder / "scale.npy", known.scale[None])
    implants_in_skull = implants * known.scale + known.shift  # (n, K, 3), as the skull has them
    for number, implant in enumerate(implants_in_skull):
        write_ply(folder / f"implant_{number}.ply", implant)
    seen = torch.from_numpy(known.points)
    rows = [Shown(f"implant {n}", seen, part) for n, part in enumerate(completion.implants)]
    save_image(folder / "picture.png", draw_clouds(rows))
    written = f"input.npy, sample.npy, {len(rows)} implant_N.ply, picture.png"
    if volume is not None:
        write_solid(folder / "implant.nrrd", implants_in_skull, volume, config)
        written += ", implant.nrrd"
    print(f"{len(rows)} implant(s) of {implants.shape[1]} points\nwritten to {folder}: {written}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt complete",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[model_options()],
    )
    parser.add_argument("skull", type=Path, metavar="SKULL")
    parser.add_argument("--samples", type=whole_number(1), metavar="N", help="how many implants")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: SKULL_implant")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the configuration")
    return parser


def _configure(options: argparse.Namespace) -> Config:
    overrides = list(options.overrides)
    if options.samples is not None:
        overrides.append(f"evaluation.ensemble={options.samples}")
    return configure_model(options.checkpoint, options.recipe, overrides, options.package)


def read_skull(path: Path, config: Config) -> tuple[Volume | None, NDArray[np.floating[Any]]]:
    """The volume, where it is one, and the cloud of a defective skull."""
    from overt.data.skulls.lists import load_cloud
    from overt.data.skulls.prepare import cloud_of
    from overt.data.skulls.volumes import read_nrrd

    asked = getattr(config.settings.data, "num_known_points", 1)
    match path.suffix.lower():
        case ".npy":
            if not path.is_file():
                raise DataError(f"there is no skull at {path}; check the path")
            return None, load_cloud(path, asked)
        case ".nrrd":
            volume = read_nrrd(path)
            points = CLOUD_FACTOR * asked
            return volume, cloud_of(volume.mask, points, np.random.default_rng(0), path)
        case suffix:
            raise DataError(
                f"{path} ends in {suffix or 'nothing'}; a skull is a volume (.nrrd) or a cloud of "
                "points (.npy)"
            )


def write_ply(path: Path, points: NDArray[np.floating[Any]]) -> None:
    """Points in the format that mesh viewers read."""
    header = (
        f"ply\nformat binary_little_endian 1.0\nelement vertex {len(points)}\n"
        "property float x\nproperty float y\nproperty float z\nend_header\n"
    )
    path.write_bytes(header.encode() + points.astype("<f4").tobytes())


def write_solid(
    path: Path, implants: NDArray[np.floating[Any]], volume: Volume, config: Config
) -> None:
    """The implants grown together to one solid, where most of them are and the skull is not."""
    from overt.data.skulls.volumes import Volume, write_nrrd
    from overt.geometry.voxels import solid_of_votes

    radius = config.settings.evaluation.solid_mm / volume.spacing[0]
    write_nrrd(path, Volume(solid_of_votes(implants, volume.mask, radius), volume.spacing))
