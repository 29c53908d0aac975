"""Estimate mesh and camera of a person in one picture: the implementation of `overt estimate`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.images.decode import as_tensor
from overt.data.people.crops import Crop, box_square, cut, keypoint_square
from overt.errors import DataError
from overt.geometry.body import BodyModel
from overt.geometry.crop import Picture, crop_squares, mask_squares
from overt.geometry.rotation import axis_angle_to_matrix, matrix_to_axis_angle
from overt.recipes.blade.camera import Observation, SolveOptions, look, solve_camera
from overt.recipes.blade.config import PoseNetSettings
from overt.recipes.blade.data import whole_crop
from overt.recipes.blade.posenet import LIMBS, PoseNet, PoseOutput
from overt.tasks import PersonEstimate
from overt.viz.mesh import draw_mesh

Array = NDArray[np.float32]

ROOM = 1.25  # of PoseNet's square about what was found of a person
SMALLEST = 8  # the second look is at least this part of the picture


@torch.no_grad()
def estimate_person(
    model: PoseNet,
    body: BodyModel,
    settings: PoseNetSettings,
    picture: Picture,  # (H, W, 3)
    mask: NDArray[Any] | None = None,  # (H, W), true where the person is
    keypoints: Array | None = None,  # (12, 2) or (12, 3) with confidence, pixels
    box: Array | None = None,  # (4,) x, y, width, height of the person, pixels
) -> PersonEstimate:
    """Estimate mesh and camera of the person in a picture; a mask improves the camera.

    Without a box, the model runs twice: on the whole picture to locate the limbs, then on a crop
    around them.
    """
    height, width = picture.shape[:2]
    if model.depthnet is None:
        raise DataError(
            "a model with model.tz_conditioning=false predicts no depth, so no camera can be solved"
        )
    if mask is not None and (mask.shape != (height, width) or not np.any(mask)):
        raise DataError(
            f"the mask is {mask.shape} with {np.count_nonzero(mask)} pixels set; it must be "
            f"{(height, width)} like the picture, and show the person"
        )
    device = body.template.device
    if mask is None and keypoints is None and box is None:
        near, crop = _look_twice(model, picture, settings, device)
        crops = _cut(picture, near, settings.data.depth_size)
    else:
        crops = _near_crop(picture, mask, keypoints, box, settings.data.depth_size)
        crop = whole_crop((height, width)) if box is None else _box_crop(box, ROOM)
    crop_pixels = _cut(picture, crop, settings.data.pose_size).to(device)
    output: PoseOutput = model(crops.to(device), crop_pixels)
    rotations, shape, depth = (part.float() for part in output[:3] if part is not None)
    limb_pixels, good = _limb_pixels(output, crop, keypoints, device)
    scale = min(1.0, settings.evaluation.camera.size / max(height, width))
    size = (round(height * scale), round(width * scale))
    seen_mask = None if mask is None else _shrunk(mask, size).to(device)
    observed = Observation(seen_mask, limb_pixels * scale, good, size)
    chosen = settings.evaluation.camera
    options = SolveOptions(
        chosen.iterations, chosen.keypoint_weight, chosen.optimize_depth, chosen.optimize_pose
    )
    if box is not None:
        # In an off-center crop the person appears rotated by the angle between both views.
        start = solve_camera(body, shape, rotations, depth, observed, SolveOptions(iterations=0))
        turn = _ray_turn(crop, (height, width), float(start.focal[0]) / scale)
        first = torch.tensor(turn, dtype=rotations.dtype, device=device) @ rotations[:, :1]
        rotations = torch.cat([first, rotations[:, 1:]], dim=1)
    solved = solve_camera(body, shape, rotations, depth, observed, options)
    pelvis = solved.translation[0]
    pixels, _ = look(solved.vertices, solved.translation, solved.focal, size)
    vertices = solved.vertices[0] + pelvis
    picture_tensor = as_tensor(picture).to(device)
    over = draw_mesh(picture_tensor, vertices, body.faces, pixels[0] / scale)
    rest_pelvis = body.joints(shape, torch.eye(3, device=device).expand(1, 22, 3, 3))[0, 0]
    turns = matrix_to_axis_angle(solved.rotations[0])
    return PersonEstimate(
        vertices=vertices.cpu().numpy(),
        faces=body.faces.cpu().numpy(),
        joints=(solved.joints[0] + pelvis).cpu().numpy(),
        focal=float(solved.focal[0]) / scale,
        centre=(width / 2, height / 2),
        image_size=(height, width),
        pelvis=pelvis.cpu().numpy(),
        translation=(pelvis - rest_pelvis).cpu().numpy(),
        global_orient=turns[0].cpu().numpy(),
        body_pose=turns[1:].cpu().numpy(),
        betas=shape[0].cpu().numpy(),
        keypoints=limb_pixels[0].cpu().numpy(),
        overlay=over.permute(1, 2, 0).cpu().numpy(),
    )


def _cut(picture: Picture, crop: Crop, size: int) -> Tensor:  # (1, 3, S, S)
    return as_tensor(cut(picture, crop, size)[0])[None]


def _look_twice(
    model: PoseNet, picture: Picture, settings: PoseNetSettings, device: torch.device
) -> tuple[Crop, Crop]:
    """Squares for DepthNet and PoseNet about the limbs that the whole picture shows.

    PoseNet's stays about the middle of the picture, as in training: a crop there changes the focal
    length and nothing else.
    """
    height, width = picture.shape[:2]
    full_crop = whole_crop((height, width))
    crops = [_cut(picture, full_crop, size).to(device) for size in _sizes(settings)]
    output: PoseOutput = model(*crops)
    if output.keypoints is None:
        return full_crop, full_crop
    limb_pixels, _ = _limb_pixels(output, full_crop, None, device)
    limbs = _with_confidence(limb_pixels[0].cpu().numpy())
    centre, side = keypoint_square(limbs)
    least = full_crop.side / SMALLEST
    reach = ROOM * 2 * float(np.abs(limbs[:, :2] - full_crop.centre).max())
    closer = Crop(full_crop.centre, float(np.clip(reach, least, full_crop.side)))
    return Crop(centre, max(side, least)), closer


def _sizes(settings: PoseNetSettings) -> tuple[int, int]:
    return settings.data.depth_size, settings.data.pose_size


def _box_crop(box: Array, growth: float = 1.0) -> Crop:
    """The square about a box (4,)."""
    numbers = np.asarray(box, np.float32).ravel()
    if numbers.shape != (4,) or not np.isfinite(numbers).all() or (numbers[2:] <= 0).any():
        raise DataError(
            f"a box of {numbers.tolist()}; expected x, y, width and height of a person in pixels"
        )
    (centre, side) = box_square(np.append(numbers, 1.0))
    return Crop(centre, growth * side)


def _ray_turn(crop: Crop, size: tuple[int, int], focal: float) -> NDArray[np.float64]:
    """The rotation (3, 3) from the line of sight to the one through the middle of a crop."""
    height, width = size
    ray = np.array([crop.centre[0] - width / 2, crop.centre[1] - height / 2, focal])
    ray /= np.linalg.norm(ray)
    axis = np.cross([0.0, 0.0, 1.0], ray)
    angle = np.arctan2(np.linalg.norm(axis), ray[2])
    vector = axis * (angle / max(float(np.linalg.norm(axis)), 1e-12))
    return np.asarray(axis_angle_to_matrix(torch.tensor(vector)))


def _near_crop(
    picture: Picture,
    mask: NDArray[Any] | None,
    keypoints: Array | None,
    box: Array | None,
    size: int,
) -> Tensor:
    """DepthNet's crop (1, 3, S, S): about the mask, else the box, else the keypoints."""
    if mask is not None:
        image = as_tensor(picture)[None].float()
        corner, side = mask_squares(torch.from_numpy(np.array(mask) > 0)[None])
        return crop_squares(image, corner, side, size).round().to(torch.uint8)
    if box is not None:
        return _cut(picture, _box_crop(box), size)
    assert keypoints is not None
    return _cut(picture, Crop(*keypoint_square(_with_confidence(keypoints))), size)


def _limb_pixels(
    output: PoseOutput, crop: Crop, keypoints: Array | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Limb joints (1, 12, 2) in pixels and whether they count: those given, or those found."""
    if keypoints is not None:
        labeled = torch.from_numpy(_with_confidence(keypoints)).to(device)[None]
        return labeled[..., :2], labeled[..., 2] > 0
    if output.keypoints is None:
        raise DataError(
            "this model finds no keypoints (model.keypoint_head=false): give those of a detector "
            "by --keypoints FILE, twelve rows of x, y and confidence"
        )
    corner = torch.tensor(crop.centre, device=device) - crop.side / 2
    limb_pixels = corner + crop.side * output.keypoints.float()
    return limb_pixels, torch.ones(1, LIMBS, dtype=torch.bool, device=device)


def _with_confidence(keypoints: Array) -> Array:
    rows = np.asarray(keypoints, np.float32)
    if rows.shape == (LIMBS, 2):
        rows = np.concatenate([rows, np.ones((LIMBS, 1), np.float32)], axis=1)
    if rows.shape != (LIMBS, 3) or not np.isfinite(rows).all():
        raise DataError(
            f"keypoints of shape {rows.shape}; expected 12 rows of x, y and confidence: left "
            "and right shoulder, elbow, wrist, hip, knee, ankle"
        )
    return rows


def _shrunk(mask: NDArray[Any], size: tuple[int, int]) -> Tensor:
    full_mask = torch.from_numpy((np.array(mask) > 0).astype(np.float32))[None, None]
    if tuple(mask.shape) == size:
        return full_mask[0]
    return torch.nn.functional.interpolate(full_mask, size, mode="area")[0]
