"""`overt estimate IMAGE --checkpoint FILE`: mesh and camera of the person in a picture.

Writes mesh.obj (or .ply), camera.json with focal length, pose and shape, and overlay.png. A mask
of the person (--mask, PNG) sharpens the camera; keypoints of a detector (--keypoints, JSON) replace
those that the model finds. In Python: `overt.commands.estimate.estimate(image, checkpoint)`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overt.checkpoint.trained import load_model
from overt.commands.arguments import configure_model, model_options
from overt.config import build_recipe
from overt.errors import DataError
from overt.tasks import PersonEstimator, need_task

if TYPE_CHECKING:
    from overt.tasks import PersonEstimate


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    person = estimate(
        options.image,
        options.checkpoint,
        mask=options.mask,
        keypoints=options.keypoints,
        recipe=options.recipe,
        part=options.part,
        packages=options.package,
        overrides=options.overrides,
    )
    folder = options.output or Path(f"{options.image.stem}_person")
    write(folder, person, options.format)
    x, y, z = person.pelvis
    print(
        f"pelvis at {x:.3f}, {y:.3f}, {z:.3f} m, focal length {person.focal:.1f} pixels\n"
        f"written to {folder}: mesh.{options.format}, camera.json, overlay.png"
    )
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt estimate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[model_options()],
    )
    parser.add_argument("image", type=Path, metavar="IMAGE")
    parser.add_argument("--mask", type=Path, help="PNG of the picture's size, person not black")
    parser.add_argument(
        "--keypoints", type=Path, help="JSON: 12 rows x, y, confidence; shoulders to ankles"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: IMAGE_person")
    parser.add_argument("--format", choices=("obj", "ply"), default="obj")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the configuration")
    return parser


def estimate(
    image: Path | str | NDArray[np.uint8],
    checkpoint: Path | str,
    *,
    mask: Path | str | NDArray[Any] | None = None,
    keypoints: Path | str | NDArray[Any] | None = None,
    recipe: str | None = None,
    part: str = "auto",
    packages: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> PersonEstimate:
    """The person in a picture, given as a file or as pixels (H, W, 3)."""
    picture = read_picture(image)
    shown = None if mask is None else read_mask(mask)
    points = None if keypoints is None else read_keypoints(keypoints)
    config = configure_model(Path(checkpoint), recipe, overrides, packages)

    from overt.distributed import init_distributed

    world = init_distributed(config.training.device)
    built = build_recipe(config)
    estimator = need_task(built, PersonEstimator, config.recipe.name)
    model, _ = load_model(built, Path(checkpoint), part)
    person: PersonEstimate = estimator.estimate(model.to(world.device), picture, shown, points)
    return person


def read_picture(image: Path | str | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pixels (H, W, 3) of a file, or those given."""
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise DataError(f"a picture is (H, W, 3) uint8, not {image.shape} {image.dtype}")
        return image
    from overt.data.images.decode import decode_image, read_file

    return decode_image(read_file(Path(image)), str(image))


def read_mask(mask: Path | str | NDArray[Any]) -> NDArray[np.bool_]:
    """Where the person is, (H, W)."""
    pixels = mask if isinstance(mask, np.ndarray) else read_picture(mask).max(axis=2)
    return np.asarray(pixels > 0)


def read_keypoints(keypoints: Path | str | NDArray[Any]) -> NDArray[np.float32]:
    """Rows of x, y and perhaps confidence, of a JSON file or as given."""
    if isinstance(keypoints, np.ndarray):
        return keypoints.astype(np.float32)
    try:
        return np.array(json.loads(Path(keypoints).read_text()), dtype=np.float32)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"--keypoints {keypoints}: no JSON list of rows ({error})") from None


def write(folder: Path, person: PersonEstimate, kind: str) -> None:
    """Mesh, camera and picture into a folder."""
    from PIL import Image

    from overt.data.people.mesh import write_mesh

    folder.mkdir(parents=True, exist_ok=True)
    write_mesh(folder / f"mesh.{kind}", person.vertices, person.faces)
    (folder / "camera.json").write_text(json.dumps(person.camera(), indent=1) + "\n")
    Image.fromarray(person.overlay).save(folder / "overlay.png")
