"""Synthetic people at close range, written as HumanData: pictures, masks and exact labels."""

from __future__ import annotations

import json
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from overt.data.making import MANIFEST, claim_folder, map_in_processes
from overt.data.people.backdrops import draw_surroundings
from overt.data.people.human_data import write_human_data
from overt.data.people.outfits import Looks, draw_outfit
from overt.data.people.painter import Painter
from overt.data.people.render import Painted, draw_look, paint
from overt.data.people.scenes import (
    SUBSETS,
    PeopleOptions,
    Person,
    Scene,
    boxes,
    draw_rows,
    see,
    with_visibility,
)
from overt.errors import DataError
from overt.files.atomic import new_file, remove_left_overs
from overt.geometry.body import BODY_JOINTS, BodyModel
from overt.geometry.body_anny import ANNY
from overt.geometry.body_files import CAPSULE, load_body
from overt.nested import concatenated, map_tensors
from overt.progress import report

BATCH = 32  # rows rendered together
# Seventeen keypoints in COCO's order as joints of the body; it has no ears.
COCO = (22, 23, 24, -1, -1, 16, 17, 18, 19, 20, 21, 1, 2, 4, 5, 7, 8)


def write_people(
    root: Path,
    name: str,
    count: int,
    options: PeopleOptions,
    workers: int = 0,
) -> Path:
    """Write pictures and masks below ROOT/datasets/NAME, and the annotations; return their path.

    The pictures do not depend on the number of `workers`. A set that was interrupted is rendered
    again; other files of that name are refused.
    """
    if options.subset not in SUBSETS:
        raise DataError(f"subset {options.subset!r}; allowed: {', '.join(SUBSETS)}")
    if options.framing not in ("camera", "portrait"):
        raise DataError(f"framing {options.framing!r}; allowed: camera and portrait")
    _check_backgrounds(options)
    studio = _studio(options)  # refuses a body or a folder that is not there
    check_people(root, name, count, options)
    path, images = paths_of_set(root, name)
    if path.exists() and not (images / MANIFEST).is_file():
        raise DataError(
            f"{path} exists and is not known to be rendered with these settings (there is no "
            f"{images / MANIFEST}), so nothing is written over it; choose another name or folder"
        )
    claim_folder(images, _made_with(count, options), "people")
    for folder in ("imgs", "masks", *(["depth"] if options.depth_maps else [])):
        (images / folder).mkdir(parents=True, exist_ok=True)
        remove_left_overs(images / folder)
    ranges = [(first, min(BATCH, count - first)) for first in range(0, count, BATCH)]
    parts: list[dict[str, NDArray[np.generic]]] = []
    write = partial(_write_rows, images, options)
    # Spawned: a forked process cannot use CUDA. One thread each; the user chooses their number.
    single = partial(torch.set_num_threads, 1)
    for part in map_in_processes(write, ranges, workers, start="spawn", initializer=single):
        parts.append(part)
        report("rendering people", sum(len(done["image_path"]) for done in parts), count)
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    write_human_data(path, columns, keypoints2d_convention="people", overt_body=studio.mark)
    return path


def paths_of_set(root: Path, name: str) -> tuple[Path, Path]:
    """Return the annotation file and the picture folder of a set."""
    return root / "preprocessed_datasets" / f"{name}.npz", root / "datasets" / name


def check_people(root: Path, name: str, count: int, options: PeopleOptions) -> None:
    """Refuse a set that was rendered with other settings, as far as its folder tells them."""
    path, images = paths_of_set(root, name)
    try:
        stored = json.loads((images / MANIFEST).read_text())
    except (OSError, ValueError):  # none: of an earlier version, or not rendered yet
        return
    requested = _made_with(count, options)
    if not options.depth_maps:
        del requested["depth_maps"]  # which need not be read
    stored = stored if isinstance(stored, dict) else {}
    differing = ", ".join(
        f"{key}={stored.get(key)} there, {value} requested"
        for key, value in requested.items()
        if stored.get(key) != value
    )
    if differing:
        raise DataError(
            f"{path} has people rendered with other settings ({differing}). Choose another folder, "
            f"or remove {path} and {images} to render them again. In a run, set data.root, or "
            "data.synthetic=null to use these people as they are"
        )


def _made_with(count: int, options: PeopleOptions) -> dict[str, Any]:
    """Return what the pictures of a set depend on."""
    names = ("size", "seed", "framing", "orthographic", "depth_maps", "subset")
    settings: dict[str, Any] = {name: getattr(options, name) for name in names}
    folder = options.backgrounds
    return settings | {
        "count": count,
        "body": load_body(options.body, "--body").rendered_as,
        "fixed_colors": options.is_plain and options.fixed_colors,
        "backgrounds": None if folder is None else Path(folder).resolve().name,
    }


def _check_backgrounds(options: PeopleOptions) -> None:
    folder = options.backgrounds
    if folder is None:
        return
    if options.is_plain:
        raise DataError(
            f"backgrounds {folder}: people of the body {CAPSULE} have none; use the body {ANNY}, "
            "or no backgrounds"
        )
    if not Path(folder).is_dir():
        raise DataError(f"backgrounds {folder}: no such folder; name one with photographs")


class Studio(NamedTuple):
    """What people are rendered with."""

    model: BodyModel
    painter: Painter | None  # None: plain colors
    mark: str  # of the body, by which training recognizes it


@lru_cache(maxsize=1)
def _studio(options: PeopleOptions) -> Studio:
    """Return the studio of a process, created once."""
    file = load_body(options.body, "--body")
    if file.rendered_as is None:
        # Training would take the people for those of another body.
        raise DataError(
            f"--body {options.body}: not a body for rendered people; use {CAPSULE}, {ANNY}, or a "
            "file of `overt data anny-body`"
        )
    model = BodyModel(file).to(torch.device(options.device))
    painter = None
    if not options.is_plain:
        painter = Painter(model, options.size, options.backgrounds)
    return Studio(model, painter, file.rendered_as)


def _write_rows(
    images: Path, options: PeopleOptions, rows: tuple[int, int]
) -> dict[str, NDArray[np.generic]]:
    """Sample, render and save some rows; return their labels."""
    first, count = rows
    model, painter, _ = _studio(options)
    people, scene, generators = draw_rows(first, count, model, options)
    pixels, _ = see(scene, scene.vertices, options.orthographic)
    painted = render(scene, model, painter, options, generators)
    for index in range(count):
        stem = f"{first + index:06d}"
        _save(images / "imgs" / f"{stem}.jpg", painted.pictures[index], "JPEG", quality=95)
        _save(images / "masks" / f"{stem}.png", painted.parts[index], "PNG")
        if options.depth_maps:
            millimetres = np.nan_to_num(painted.depth_m[index] * 1000, posinf=0)
            stored = millimetres.clip(0, 65535).astype(np.uint16)
            _save(images / "depth" / f"{stem}.png", stored, "PNG")
    return _labels(first, people, scene, pixels, options)


def render(
    scene: Scene,
    model: BodyModel,
    painter: Painter | None,
    options: PeopleOptions,
    generators: list[np.random.Generator],
) -> Painted:
    """Render some people, plain or dressed."""
    perspective = not options.orthographic
    if painter is None:
        plain_looks = [draw_look(rng, options.fixed_colors) for rng in generators]
        pixels, depth = see(scene, scene.vertices, options.orthographic)
        return paint(
            pixels, depth, scene.vertices, model, plain_looks, options.size, generators, perspective
        )
    device = scene.vertices.device
    looks = Looks.of([draw_outfit(rng) for rng in generators], device)
    drawn = [draw_surroundings(options.size, rng, painter.photographs) for rng in generators]
    surroundings = map_tensors(concatenated(drawn), lambda tensor: tensor.to(device))
    dressed = painter.tailor.dress(scene.vertices, looks)
    pixels, depth = see(scene, dressed, options.orthographic)
    return painter.paint(pixels, depth, dressed, looks, surroundings, perspective)


def _save(path: Path, pixels: NDArray[Any], kind: str, **options: int) -> None:
    """Write a picture atomically: another process may be training from the same set."""
    with new_file(path) as hidden:
        Image.fromarray(pixels).save(hidden, kind, **options)


def _labels(
    first: int, people: list[Person], scene: Scene, pixels: Tensor, options: PeopleOptions
) -> dict[str, NDArray[np.generic]]:
    count = len(people)
    joint_pixels, _ = see(scene, scene.joints, options.orthographic)
    joint_pixels, pixels = joint_pixels.cpu(), pixels.cpu()
    coco = torch.stack(
        [
            joint_pixels[:, max(joint, 0)] if joint >= 0 else torch.full((count, 2), -1.0)
            for joint in COCO
        ],
        dim=1,
    )
    keypoints = torch.cat([coco, joint_pixels[:, :BODY_JOINTS]], dim=1)  # (B, 39, 2)
    box = torch.cat([boxes(pixels, options), torch.ones(count, 1)], dim=1)
    root = np.stack([person.root for person in people])
    body = np.stack([person.body for person in people])
    hands = np.stack([person.hands for person in people])
    shape = np.stack([person.shape for person in people])
    translation = scene.translation.cpu().numpy()
    names = np.array([f"imgs/{first + index:06d}.jpg" for index in range(count)])
    numbers: dict[str, NDArray[np.generic]] = {
        "bbox_xywh": box.numpy(),
        "keypoints2d": with_visibility(keypoints, options.size).numpy(),
        "K": scene.matrix.cpu().numpy(),
        "focal_length": scene.matrix[:, 0, :1].cpu().numpy(),
        "distortion_max": scene.distortion.cpu().numpy(),
        "smplx/global_orient": root,
        "smplx/body_pose": body,
        "smplx/betas": shape,
        "smplx/transl": translation,
        "smplx/left_hand_pose": hands[:, 0],
        "smplx/right_hand_pose": hands[:, 1],
    }
    if options.is_plain:  # which is also a body of SMPL
        numbers |= {
            "smpl/global_orient": root,
            "smpl/body_pose": np.concatenate([body, np.zeros((count, 2, 3))], axis=1),
            "smpl/betas": shape,
            "smpl/transl": translation,
        }
    return {"image_path": names} | {
        key: np.asarray(value, np.float32) for key, value in numbers.items()
    }
