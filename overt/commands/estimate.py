"""`overt estimate IMAGE... --checkpoint FILE`: estimate mesh and camera of people in pictures.

For one person nothing else is needed: the model finds limbs in the whole picture, then crops; one
trained on crops of photographs looks at windows of several sizes first.
Detections can be given instead. A mask of the person (--mask: not black, or a cut-out with
transparency) improves the camera; without one, the silhouette that a model with
model.silhouette_head predicts does. Keypoints (--keypoints, JSON) replace those of the model if
their confidence is above 0.5, boxes (--boxes, JSON: rows x, y, width, height) select people. For
several people of one picture, give a mask for each (--mask twice or more), their keypoints as a
list, or both, in the order of the boxes; they share one focal length.
For several pictures, give all detections in one file (--detections, JSON): COCO results or
annotations, found by file name, with bbox, keypoints and segmentation as far as they have them.
People with a score up to 0.5 are ignored, and pictures without a person are skipped.
Written into IMAGE_person, or for several people into its folders person_0, person_1 and so forth
in their order: mesh.obj (or .ply, .glb), view.html (an interactive 3D view), camera.json with focal
length, pose, shape and box, and overlay.png. In Python:
`overt.commands.estimate.estimate(image, checkpoint)`, or `Estimator`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overt.checkpoint.trained import load_model
from overt.commands.arguments import configure_model, model_options
from overt.config import build_recipe
from overt.data.people.coco import Row, read_detections
from overt.data.people.detections import (
    Detection,
    Masks,
    collect,
    with_boxes,
)
from overt.errors import ConfigError, DataError, need_folder
from overt.tasks import PersonEstimator, need_task

if TYPE_CHECKING:
    from overt.files.key_maps import KeyRule
    from overt.tasks import PersonEstimate

ONE_PICTURE = ("mask", "keypoints", "boxes")  # options with detections of one picture
FREED = {"opt_pose": "optimize_pose", "opt_tz": "optimize_depth"}


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    images, overrides = split_words(options.words)
    rows_of = None
    if options.detections is not None:
        rows_of = read_detections(options.detections, images)
    check_options(options, images, rows_of)
    folders = output_folders(images, options.output)
    # What cannot be read or written is said before a model is loaded.
    missing = [str(image) for image in images if image.is_dir() or not image.exists()]
    if missing:
        raise DataError(f"{', '.join(missing)}: no such file; give a JPEG, PNG or WebP")
    for folder in folders:
        need_folder("--output", folder)
    people, given = [Detection()], [getattr(options, name) for name in ONE_PICTURE]
    if any(given):
        people = collect(read_picture(images[0]).shape[:2], *given)
    freed = [name for name in FREED if getattr(options, name)]
    estimator = Estimator(
        options.checkpoint,
        recipe=options.recipe,
        part=options.part,
        packages=options.package,
        overrides=[*(f"evaluation.camera.{FREED[name]}=true" for name in freed), *overrides],
        rename=options.rename,
    )
    has_mask = options.mask or any(row.outline for rows in rows_of or [] for row in rows)
    if freed and not has_mask and not estimator.recipe.predicts_mask():
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in freed)
        raise ConfigError(
            f"{flags} can only be used with a mask, against which pose and depth are optimized, "
            "and this model predicts none; add --mask FILE, or --detections FILE with a "
            "segmentation"
        )
    count, failed = 0, []
    for number, (image, folder) in enumerate(zip(images, folders, strict=True)):
        try:
            picture = read_picture(image)
            if rows_of is not None:
                people = people_in(picture.shape[:2], rows_of[number], image)
            estimates = estimator.detected(picture, people) if people else []
        except DataError as error:
            if len(images) == 1:
                raise
            print(f"{image}: skipped: {error}")
            failed.append(str(image))
            continue
        if people:
            _write_people(folder, picture, estimates, people, options.format)
        count += len(people)
    if failed:
        raise DataError(
            f"{', '.join(failed)}: not estimated, see above; the other "
            f"{len(images) - len(failed)} pictures were processed"
        )
    if count == 0:
        raise DataError(f"--detections {options.detections}: nobody could be estimated, see above")
    return 0


def check_options(
    options: argparse.Namespace, images: Sequence[Path], rows_of: list[list[Row]] | None
) -> None:
    """Refuse options that contradict each other, or the number of pictures."""
    given = [f"--{name}" for name in ONE_PICTURE if getattr(options, name)]
    if given and rows_of is not None:
        raise ConfigError(f"{given[0]} and --detections exclude each other; remove one of them")
    if given and len(images) > 1:
        raise ConfigError(
            f"{given[0]} belongs to one picture, but {len(images)} are given; use --detections, "
            "one file for all pictures, or call the command once for each"
        )


def people_in(image_size: tuple[int, int], rows: Sequence[Row], image: Path) -> list[Detection]:
    """Return the people of a picture; print who is skipped, and why."""
    people = []
    for row in rows:
        try:
            people.append(row.detection(image_size))
        except DataError as error:
            print(f"{image}: person in row {row.index} of --detections skipped: {error}")
    if not rows:
        print(f"{image}: skipped, no person in --detections")
    return with_boxes(people, image_size)


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
    parser.add_argument(
        "--mask",
        type=Path,
        action="append",
        help="PNG, JPEG or WebP of the picture's size; once for each person",
    )
    parser.add_argument(
        "--keypoints",
        type=Path,
        help="JSON: 12 rows x, y, confidence; shoulders to ankles; of several people, a list",
    )
    parser.add_argument("--boxes", type=Path, help="JSON: rows x, y, width, height of people")
    parser.add_argument(
        "--detections",
        type=Path,
        metavar="FILE",
        help="JSON of all pictures: COCO results or annotations, or {IMAGE: boxes}",
    )
    parser.add_argument(
        "--opt-pose", action="store_true", help="against the mask: also optimize the pose"
    )
    parser.add_argument(
        "--opt-tz", action="store_true", help="against the mask: also optimize the depth"
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
        if focal is not None and not 0 < focal < math.inf:
            raise DataError(f"focal={focal:g}; give a positive number of pixels, or None")
        picture = read_picture(image)
        return self._estimate(picture, one_person(picture, mask, keypoints, box), focal)

    def people(
        self,
        image: Path | str | NDArray[np.uint8],
        masks: Masks | None = None,
        keypoints: Path | str | NDArray[Any] | None = None,
        boxes: Path | str | NDArray[Any] | None = None,
    ) -> list[PersonEstimate]:
        """Return people in the order of what is given of them; without any of it, one person.

        Of P people, masks are (P, H, W) or files, keypoints (P, 12, 3), boxes (P, 4).
        """
        picture = read_picture(image)
        return self.detected(picture, collect(picture.shape[:2], masks, keypoints, boxes))

    def detected(
        self, picture: NDArray[np.uint8], people: Sequence[Detection]
    ) -> list[PersonEstimate]:
        """Return an estimate of each detected person.

        A picture has one camera: people get the median of the focal lengths that fit each of them,
        and the distances that follow from it.
        """
        alone = [self._estimate(picture, person) for person in people]
        if len(alone) == 1:
            return alone
        focal = float(np.median([person.focal for person in alone]))
        return [self._estimate(picture, person, focal) for person in people]

    def _estimate(
        self, picture: NDArray[np.uint8], given: Detection, focal: float | None = None
    ) -> PersonEstimate:
        known = {} if focal is None else {"focal": focal}
        person: PersonEstimate = self.recipe.estimate(
            self.model, picture, given.mask, given.keypoints, given.box, **known
        )
        refuse_nonfinite(person)
        return person


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
    picture = read_picture(image)  # what cannot be used is said before a model is loaded
    given = one_person(picture, mask, keypoints)
    estimator = Estimator(
        checkpoint,
        recipe=recipe,
        part=part,
        packages=packages,
        overrides=overrides,
        rename=rename,
    )
    return estimator.detected(picture, [given])[0]


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


def one_person(
    picture: NDArray[np.uint8],
    mask: Path | str | NDArray[Any] | None,
    keypoints: Path | str | NDArray[Any] | None,
    box: NDArray[Any] | None = None,
) -> Detection:
    """Return what is given of one person."""
    people = collect(picture.shape[:2], mask, keypoints, box)
    if len(people) > 1:
        raise DataError(f"expected one person, got {len(people)}; use Estimator.people for several")
    return people[0]


def refuse_nonfinite(person: PersonEstimate) -> None:
    """Raise a DataError where an estimate has NaN or Inf, which other programs stumble over."""
    wrong = [name for name, value in vars(person).items() if not np.isfinite(value).all()]
    if wrong:
        raise DataError(
            f"the estimate has non-finite {', '.join(wrong)}, so nothing is written; give a mask, "
            "keypoints or a box of the person, or use another --checkpoint"
        )


def _write_people(
    folder: Path,
    picture: NDArray[np.uint8],
    people: list[PersonEstimate],
    detections: Sequence[Detection],
    kind: str,
) -> None:
    """Write and print results: one person into the folder, several into folders below it."""
    several = len(people) > 1
    for index, (person, given) in enumerate(zip(people, detections, strict=True)):
        person_folder = folder / f"person_{index}" if several else folder
        origin = {}
        if given.box is not None:
            origin = {"box": given.box.tolist(), "box_index": given.row}
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
