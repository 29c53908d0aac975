"""`overt estimate IMAGE... --checkpoint FILE`: estimate mesh and camera of people in pictures.

For one person nothing else is needed: the model finds limbs in the whole picture, then crops; one
trained on crops of photographs looks at windows of several sizes first.
Detections can be given instead: a mask of the person (--mask: not black, or a cut-out with
transparency) improves the camera, keypoints (--keypoints, JSON) replace those of the model if
their confidence is above 0.5, boxes (--boxes, JSON: rows x, y, width, height) select several
people, who share one focal length. Written into IMAGE_person, or for several boxes into its
folders person_0, person_1 and so forth in their order: mesh.obj (or .ply, .glb), view.html (an
interactive 3D view), camera.json with focal length, pose, shape and box, and overlay.png. In
Python: `overt.commands.estimate.estimate(image, checkpoint)`, or `Estimator`.
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
from overt.errors import ConfigError, DataError
from overt.files.bounds import read_file
from overt.tasks import PersonEstimator, need_task

if TYPE_CHECKING:
    from overt.files.key_maps import KeyRule
    from overt.tasks import PersonEstimate

FREED = {"opt_pose": "optimize_pose", "opt_tz": "optimize_depth"}


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    images, overrides = split_words(options.words)
    given_options = [name for name in ("mask", "keypoints", "boxes") if getattr(options, name)]
    if len(images) > 1 and given_options:
        raise ConfigError(
            f"--{given_options[0]} belongs to one picture, but {len(images)} are given; call "
            "the command once for each"
        )
    flags = [f"--{name.replace('_', '-')}" for name in FREED if getattr(options, name)]
    if flags and options.mask is None:
        raise ConfigError(
            f"{' and '.join(flags)} can only be used with a mask, against which pose and depth are "
            "optimized; add --mask FILE"
        )
    folders = output_folders(images, options.output)
    # What cannot be read is said before a model is loaded.
    missing = [str(image) for image in images if image.is_dir() or not image.exists()]
    if missing:
        raise DataError(f"{', '.join(missing)}: no such file; give a JPEG, PNG or WebP")
    boxes = None if options.boxes is None else read_boxes(options.boxes)
    mask = None if options.mask is None else read_mask(options.mask)
    keypoints = None if options.keypoints is None else read_rows(options.keypoints, "--keypoints")
    freed = [f"evaluation.camera.{FREED[name]}=true" for name in FREED if getattr(options, name)]
    estimator = Estimator(
        options.checkpoint,
        recipe=options.recipe,
        part=options.part,
        packages=options.package,
        overrides=[*freed, *overrides],
        rename=options.rename,
    )
    for image, folder in zip(images, folders, strict=True):
        picture = read_picture(image)
        people = estimator.people(picture, mask, keypoints, boxes)
        _write_people(folder, picture, people, boxes, options.format)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt estimate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[model_options()],
    )
    parser.add_argument(
        "words", nargs="+", metavar="IMAGE|KEY=VALUE", help="pictures; settings of the model"
    )
    parser.add_argument("--mask", type=Path, help="PNG, JPEG or WebP of the picture's size")
    parser.add_argument(
        "--keypoints", type=Path, help="JSON: 12 rows x, y, confidence; shoulders to ankles"
    )
    parser.add_argument("--boxes", type=Path, help="JSON: rows x, y, width, height of people")
    parser.add_argument(
        "--opt-pose", action="store_true", help="with a mask: also optimize the pose"
    )
    parser.add_argument(
        "--opt-tz", action="store_true", help="with a mask: also optimize the depth"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="default: IMAGE_person; of several pictures, each has a folder IMAGE_person in it",
    )
    parser.add_argument("--format", choices=("obj", "ply", "glb"), default="obj")
    return parser


def split_words(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Split pictures from settings by the = sign."""
    images = [Path(word) for word in words if "=" not in word or Path(word).is_file()]
    overrides = [word for word in words if "=" in word and not Path(word).is_file()]
    if not images:
        raise ConfigError("overt estimate needs a picture: overt estimate IMAGE --checkpoint FILE")
    return images, overrides


def output_folders(images: Sequence[Path], output: Path | None) -> list[Path]:
    """Return a folder for each picture; reject pictures that would overwrite each other's."""
    folders = [Path(f"{image.stem}_person") for image in images]
    if output is not None:
        folders = [output] if len(images) == 1 else [output / folder for folder in folders]
    for index, folder in enumerate(folders):
        if folder in folders[:index]:
            first = images[folders.index(folder)]
            raise ConfigError(
                f"{first} and {images[index]} would both be written to {folder}; rename one, or "
                "call the command once for each with its own --output"
            )
    return folders


class Estimator:
    """Loads a model once, for any number of pictures."""

    def __init__(
        self,
        checkpoint: Path | str,
        *,
        recipe: str | None = None,
        part: str = "auto",
        packages: Sequence[str] = (),
        overrides: Sequence[str] = (),
        rename: Sequence[KeyRule] = (),
    ) -> None:
        config = configure_model(Path(checkpoint), recipe, overrides, packages)

        from overt.distributed import init_distributed

        world = init_distributed(config.training.device)
        built = build_recipe(config)
        self.recipe = need_task(built, PersonEstimator, config.recipe.name)
        model, _ = load_model(built, Path(checkpoint), part, rename)
        self.model = model.to(world.device)

    def person(
        self,
        image: Path | str | NDArray[np.uint8],
        mask: Path | str | NDArray[Any] | None = None,
        keypoints: Path | str | NDArray[Any] | None = None,
        box: NDArray[Any] | None = None,
        focal: float | None = None,
    ) -> PersonEstimate:
        """Return the person in a picture, given as a file or as pixels (H, W, 3).

        `focal` is the focal length in pixels, where it is known.
        """
        picture = read_picture(image)
        shown = None if mask is None else read_mask(mask)
        points = None if keypoints is None else read_rows(keypoints, "--keypoints")
        known = {} if focal is None else {"focal": focal}
        person: PersonEstimate = self.recipe.estimate(
            self.model, picture, shown, points, box, **known
        )
        refuse_nonfinite(person)
        return person

    def people(
        self,
        image: Path | str | NDArray[np.uint8],
        mask: Path | str | NDArray[Any] | None = None,
        keypoints: Path | str | NDArray[Any] | None = None,
        boxes: Path | str | NDArray[Any] | None = None,
    ) -> list[PersonEstimate]:
        """Return one person for each box, in their order; without boxes, one person.

        A picture has one camera: people get the median of the focal lengths that fit each of them,
        and the distances that follow from it.
        """
        if boxes is None:
            return [self.person(image, mask, keypoints)]
        if mask is not None or keypoints is not None:
            raise ConfigError("--boxes is for several people; a mask or keypoints are of one")
        picture, rows = read_picture(image), read_boxes(boxes)
        people = [self.person(picture, box=box) for box in rows]
        if len(people) == 1:
            return people
        focal = float(np.median([person.focal for person in people]))
        return [self.person(picture, box=box, focal=focal) for box in rows]


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
    rename: Sequence[KeyRule] = (),
) -> PersonEstimate:
    """Return the person in a picture, given as a file or as pixels (H, W, 3)."""
    picture = read_picture(image)  # what cannot be read is said before a model is loaded
    shown = None if mask is None else read_mask(mask)
    points = None if keypoints is None else read_rows(keypoints, "--keypoints")
    estimator = Estimator(
        checkpoint,
        recipe=recipe,
        part=part,
        packages=packages,
        overrides=overrides,
        rename=rename,
    )
    return estimator.person(picture, shown, points)


def read_picture(image: Path | str | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return pixels (H, W, 3) of a file, or those given."""
    if isinstance(image, np.ndarray):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise DataError(
                f"expected a picture of shape (H, W, 3) uint8, got {image.shape} {image.dtype}"
            )
        return image
    from overt.data.images.decode import decode_image, read_file

    return decode_image(read_file(Path(image)), str(image))


def read_mask(mask: Path | str | NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask (H, W) of the person."""
    if isinstance(mask, np.ndarray):
        return np.asarray(mask > 0)
    from overt.data.images.masks import read_mask_file

    return read_mask_file(Path(mask))


def read_boxes(boxes: Path | str | NDArray[Any]) -> NDArray[np.float32]:
    """Return boxes (N, 4) x, y, width, height, from a JSON file or as given."""
    rows = np.atleast_2d(read_rows(boxes, "--boxes"))
    if rows.size == 0:
        raise DataError("--boxes: no box; without --boxes, the model looks for one person")
    if rows.ndim != 2 or rows.shape[1] < 4:
        raise DataError(f"--boxes: expected rows of x, y, width and height, got {rows.shape}")
    return rows[:, :4]


def refuse_nonfinite(person: PersonEstimate) -> None:
    """Raise a DataError where an estimate has NaN or Inf, which other programs stumble over."""
    wrong = [name for name, value in vars(person).items() if not np.isfinite(value).all()]
    if wrong:
        raise DataError(
            f"the estimate has non-finite {', '.join(wrong)}, so nothing is written; give a mask, "
            "keypoints or a box of the person, or use another --checkpoint"
        )


def read_rows(rows: Path | str | NDArray[Any], option: str) -> NDArray[np.float32]:
    """Return rows of numbers, from a JSON file or as given."""
    if isinstance(rows, np.ndarray):
        return rows.astype(np.float32)
    try:
        return np.array(json.loads(read_file(Path(rows))), dtype=np.float32)
    except OSError as error:
        raise DataError(f"{option} {rows}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{option} {rows}: not a JSON list of rows ({error})") from None


def _write_people(
    folder: Path,
    picture: NDArray[np.uint8],
    people: list[PersonEstimate],
    boxes: NDArray[np.float32] | None,
    kind: str,
) -> None:
    """Write and print results: one person into the folder, several into folders below it."""
    several = len(people) > 1
    for index, person in enumerate(people):
        person_folder = folder / f"person_{index}" if several else folder
        origin = {} if boxes is None else {"box": boxes[index].tolist(), "box_index": index}
        write(person_folder, person, kind, origin)
        x, y, z = person.pelvis
        print(f"pelvis at {x:.3f}, {y:.3f}, {z:.3f} m, focal length {person.focal:.1f} pixels")
        print(f"written to {person_folder}: mesh.{kind}, view.html, camera.json, overlay.png")
    if several:
        from PIL import Image

        Image.fromarray(overlay_of(picture, people)).save(folder / "overlay.png")
        print(f"written to {folder}: overlay.png of all {len(people)} people")


def overlay_of(
    picture: NDArray[np.uint8], people: list[PersonEstimate]
) -> NDArray[np.uint8]:  # (H, W, 3)
    """Return the picture with all meshes over it, the nearest in front."""
    together = picture.copy()
    for person in sorted(people, key=lambda person: -float(person.pelvis[2])):
        covered = (person.overlay != picture).any(-1)
        together[covered] = person.overlay[covered]
    return together


def write(
    folder: Path, person: PersonEstimate, kind: str, origin: dict[str, Any] | None = None
) -> None:
    """Write mesh, page, camera and overlay into a folder; `origin` is added to the camera."""
    from PIL import Image

    from overt.data.people.mesh import write_mesh
    from overt.viz.mesh_page import mesh_page

    folder.mkdir(parents=True, exist_ok=True)
    write_mesh(folder / f"mesh.{kind}", person.vertices, person.faces)
    (folder / "view.html").write_text(mesh_page(person.vertices, person.faces, folder.name))
    camera = {**person.camera(), **(origin or {})}
    (folder / "camera.json").write_text(json.dumps(camera, indent=1) + "\n")
    Image.fromarray(person.overlay).save(folder / "overlay.png")
