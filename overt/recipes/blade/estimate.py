"""Estimate mesh and camera of a person in one picture: the implementation of `overt estimate`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from overt.data.images.decode import as_tensor
from overt.data.people.crops import Crop, box_square, cut, keypoint_square
from overt.data.people.detections import (
    check_picture,
    checked_box,
    good_keypoints,
    mask_box,
)
from overt.data.people.scenes import FRAME
from overt.errors import DataError
from overt.geometry.body import BodyModel
from overt.geometry.crop import Picture, crop_squares, mask_squares
from overt.geometry.rotation import axis_angle_to_matrix, matrix_to_axis_angle
from overt.recipes.blade.camera import Observation, SolveOptions, look, solve_camera
from overt.recipes.blade.config import PoseNetSettings
from overt.recipes.blade.data import whole_crop
from overt.recipes.blade.posenet import LIMBS, PoseNet, PoseOutput
from overt.recipes.blade.search import Sightings, find_person
from overt.recipes.blade.silhouette import mask_in_picture
from overt.tasks import PersonEstimate
from overt.viz.mesh import draw_mesh

Array = NDArray[np.float32]

ROOM = 1.25  # of PoseNet's square about what was found of a person
PORTRAIT = 0.75  # of the picture: a person whose square is larger fills it
WIDEST = 1.6  # longer side of a photograph at a distance of 1: 77 degrees
TOGETHER = 16  # windows in one forward pass
TORSO = (16, 17, 1, 2)  # body joints: shoulders, hips
SMALLEST = 8  # the second look is at least 1 / SMALLEST of the picture
SMALLEST_FOUND = 32  # likewise for the box of a mesh in a window
FEWEST_FOUND = 4  # keypoints of the model that count, however unlikely


@torch.no_grad()
def estimate_person(
    model: PoseNet,
    body: BodyModel,
    settings: PoseNetSettings,
    picture: Picture,  # (H, W, 3)
    mask: NDArray[Any] | None = None,  # (H, W), true where the person is
    keypoints: Array | None = None,  # (12, 2) or (12, 3) with confidence, pixels
    box: Array | None = None,  # (4,) x, y, width, height of the person, pixels
    focal: float | None = None,  # pixels
) -> PersonEstimate:
    """Estimate mesh and camera of the person in a picture; a mask improves the camera.

    Where none is given, that is the silhouette which the model predicts (`model.silhouette_head`).

    Without a box, the model runs twice: on the whole picture to locate the limbs, then on a crop
    around them. A model that was trained on crops of photographs gets such a crop: around the mask,
    the keypoints, or the person that it finds in windows of the picture (`find_person`). With a
    known focal length, keypoints and mask determine the depth.
    """
    height, width = picture.shape[:2]
    if model.depthnet is None:
        raise DataError(
            "a model with model.tz_conditioning=false predicts no depth, so no camera can be solved"
        )
    check_picture((height, width), mask)
    if keypoints is not None:
        keypoints = good_keypoints(keypoints, (height, width))
    if box is not None:
        box = checked_box(box, (height, width))
    device = body.template.device
    if settings.data.is_photographic:
        if box is None:
            box = _person_box(model, body, settings, picture, mask, keypoints)
        crop = _box_crop(box, ROOM)
        crops, crop_pixels = (_smooth_cut(picture, crop, size) for size in _sizes(settings))
    elif mask is None and keypoints is None and box is None:
        near, crop = _look_twice(model, picture, settings, device)
        crops = _cut(picture, near, settings.data.depth_size)
        crop_pixels = _cut(picture, crop, settings.data.pose_size)
    else:
        crops = _near_crop(picture, mask, keypoints, box, settings)
        crop = whole_crop((height, width)) if box is None else _box_crop(box, ROOM)
        crop_pixels = _cut(picture, crop, settings.data.pose_size)
    output: PoseOutput = model(crops.to(device), crop_pixels.to(device))
    rotations, shape, depth = (part.float() for part in output[:3] if part is not None)
    limb_xy, good = limb_pixels(output, crop, keypoints, device)
    chosen = settings.evaluation.camera
    shrunk = Shrunk.of((height, width), chosen.size)
    centre = (width / 2, height / 2)
    seen_mask = None
    if mask is not None:
        seen_mask = shrunk.mask(mask).to(device)
    elif output.silhouette is not None:  # the model's own
        side = settings.data.pose_size
        seen_mask = mask_in_picture(output.silhouette, crop, side, shrunk.size, shrunk.scale)
    small_centre = (shrunk.pixel(centre[0]), shrunk.pixel(centre[1]))
    observed = Observation(seen_mask, shrunk.pixel(limb_xy), good, shrunk.size, small_centre)
    options = SolveOptions(
        chosen.iterations, chosen.keypoint_weight, chosen.optimize_depth, chosen.optimize_pose
    )
    if box is not None:
        # In an off-center crop the person appears rotated by the angle between both views.
        # That angle is given by the camera that looks at the crop.
        towards = observed._replace(
            centre=(shrunk.pixel(crop.centre[0]), shrunk.pixel(crop.centre[1]))
        )
        start = solve_camera(body, shape, rotations, depth, towards, SolveOptions(iterations=0))
        crop_focal = float(start.focal[0]) / shrunk.scale
        if settings.data.is_photographic:
            # A crop does not tell how small it is in the photograph. Where the depth would need a
            # larger angle of view than cameras have, the person is farther away.
            farther = max(max(height, width) / (WIDEST * crop_focal), 1.0)
            depth, crop_focal = farther * depth, farther * crop_focal
        turn = _ray_turn(crop, (height, width), crop_focal if focal is None else focal)
        first = torch.tensor(turn, dtype=rotations.dtype, device=device) @ rotations[:, :1]
        rotations = torch.cat([first, rotations[:, 1:]], dim=1)
    known = None if focal is None else torch.full_like(depth, focal * shrunk.scale)
    solved = solve_camera(body, shape, rotations, depth, observed, options, known)
    pelvis = solved.translation[0]
    focals = solved.focal / shrunk.scale
    pixels, _ = look(solved.vertices, solved.translation, focals, (height, width))
    vertices = solved.vertices[0] + pelvis
    over = draw_mesh(as_tensor(picture).to(device), vertices, body.faces, pixels[0])
    rest_pelvis = body.joints(shape, torch.eye(3, device=device).expand(1, 22, 3, 3))[0, 0]
    turns = matrix_to_axis_angle(solved.rotations[0])
    return PersonEstimate(
        vertices=vertices.cpu().numpy(),
        faces=body.faces.cpu().numpy(),
        joints=(solved.joints[0] + pelvis).cpu().numpy(),
        focal=float(focals[0]),
        centre=centre,
        image_size=(height, width),
        pelvis=pelvis.cpu().numpy(),
        translation=(pelvis - rest_pelvis).cpu().numpy(),
        global_orient=turns[0].cpu().numpy(),
        body_pose=turns[1:].cpu().numpy(),
        betas=shape[0].cpu().numpy(),
        keypoints=limb_xy[0].cpu().numpy(),
        overlay=over.permute(1, 2, 0).cpu().numpy(),
    )


class Shrunk(NamedTuple):
    """A smaller picture in which cameras are solved; pixels are counted at their middles."""

    scale: float  # the same in x and y, whatever is rounded: the focal length has one value
    size: tuple[int, int]

    @classmethod
    def of(cls, image_size: tuple[int, int], longest: int) -> Shrunk:
        """Return the picture whose longer side is at most `longest`."""
        longer = max(image_size)
        if longer <= longest:
            return cls(1.0, image_size)
        # Rounded up, so that the last row and column are not lost.
        height, width = (-(-side * longest // longer) for side in image_size)
        return cls(longest / longer, (height, width))

    def pixel(self, position: Any) -> Any:
        """Return a coordinate, or a tensor of them, in the smaller picture."""
        return self.scale * (position + 0.5) - 0.5

    def mask(self, mask: NDArray[Any]) -> Tensor:  # (1, H, W)
        """Return how much of each pixel of the smaller picture a mask covers."""
        covered = (np.array(mask) > 0).astype(np.float32)
        return torch.from_numpy(self.averaged(covered))[None]

    def averaged(self, picture: NDArray[Any]) -> NDArray[Any]:
        """Return means over the pixels of the smaller picture, of (H, W) floats or (H, W, 3)."""
        if self.scale == 1.0:
            return picture
        height, width = self.size
        # The last row and column may reach beyond the picture; a person at its edge continues.
        spans = (height / self.scale, width / self.scale)
        missing = [int(span) + 1 - side for span, side in zip(spans, picture.shape, strict=False)]
        added = [(0, max(0, count)) for count in missing] + [(0, 0)] * (picture.ndim - 2)
        padded = Image.fromarray(np.pad(picture, added, mode="edge"))
        frame = (0, 0, spans[1], spans[0])
        return np.array(padded.resize((width, height), Image.Resampling.BOX, frame))


def _cut(picture: Picture, crop: Crop, size: int) -> Tensor:  # (1, 3, S, S)
    return as_tensor(cut(picture, crop, size)[0])[None]


def _smooth_cut(
    picture: Picture, crop: Crop, size: int, shrunken: dict[Shrunk, Picture] | None = None
) -> Tensor:  # (1, 3, S, S)
    """Cut from a picture that is as coarse as the crop: without aliasing, as rendered people.

    Smaller pictures are kept in `shrunken`, for other crops of the same size.
    """
    longer = max(picture.shape[:2])
    shrunk = Shrunk.of(picture.shape[:2], max(round(longer * size / crop.side), 1))
    kept = {} if shrunken is None else shrunken
    if shrunk not in kept:
        kept[shrunk] = shrunk.averaged(picture)
    x, y = (shrunk.pixel(position) for position in crop.centre)
    return _cut(kept[shrunk], Crop((x, y), shrunk.scale * crop.side), size)


def _look_twice(
    model: PoseNet, picture: Picture, settings: PoseNetSettings, device: torch.device
) -> tuple[Crop, Crop]:
    """Squares for DepthNet and PoseNet about the limbs that the whole picture shows.

    PoseNet's stays about the middle of the picture, as in training: a crop there changes the focal
    length and nothing else. So does DepthNet's if it was trained on portraits.
    """
    height, width = picture.shape[:2]
    full_crop = whole_crop((height, width))
    crops = [_cut(picture, full_crop, size).to(device) for size in _sizes(settings)]
    output: PoseOutput = model(*crops)
    if output.keypoints is None:
        return full_crop, full_crop
    limb_xy, _ = limb_pixels(output, full_crop, None, device)
    limbs = _with_confidence(limb_xy[0].cpu().numpy())
    closer = _middle_crop(limbs[:, :2], (height, width), ROOM)
    if settings.data.is_portrait:
        return _framed(closer, full_crop), closer
    return Crop(*keypoint_square(limbs, full_crop.side / SMALLEST)), closer


def _middle_crop(points: Array, size: tuple[int, int], growth: float) -> Crop:
    """The square about the middle of the picture that covers points (N, 2), larger by `growth`."""
    full_crop = whole_crop(size)
    reach = growth * 2 * float(np.abs(points - full_crop.centre).max())
    return Crop(full_crop.centre, float(np.clip(reach, full_crop.side / SMALLEST, full_crop.side)))


def _person_box(
    model: PoseNet,
    body: BodyModel,
    settings: PoseNetSettings,
    picture: Picture,
    mask: NDArray[Any] | None,
    keypoints: Array | None,  # those of `good_keypoints`
) -> Array:  # (4,)
    """Return the box of a person: of the mask, of the keypoints, or as the model finds it."""
    if mask is not None:
        return mask_box(mask)
    if keypoints is not None:
        (x, y), side = keypoint_square(keypoints)
        return np.array([x - side / 2, y - side / 2, side, side], np.float32)
    crop = find_person(
        lambda crops: _sightings(crops, model, body, settings, picture),
        lambda box: _box_crop(box, ROOM),
        picture.shape[:2],
        settings.evaluation.search_scales,
    )
    side = crop.side / ROOM
    corner = (crop.centre[0] - side / 2, crop.centre[1] - side / 2)
    return np.array([*corner, side, side], np.float32)


def _sightings(
    crops: list[Crop],
    model: PoseNet,
    body: BodyModel,
    settings: PoseNetSettings,
    picture: Picture,
) -> Sightings:
    """Return what the model sees in crops of the picture."""
    device, side = body.template.device, settings.data.pose_size
    shrunken: dict[Shrunk, Picture] = {}  # windows of one size share a smaller picture
    limbs, visible, boxes, torsos = [], [], [], []
    for start in range(0, len(crops), TOGETHER):
        some = crops[start : start + TOGETHER]
        inputs = [
            torch.cat([_smooth_cut(picture, crop, size, shrunken) for crop in some]).to(device)
            for size in _sizes(settings)
        ]
        output: PoseOutput = model(*inputs)
        assert output.depth is not None
        pixels, good = limb_pixels(output, Crop((side / 2, side / 2), side), None, device)
        # The camera of the crop: its principal point is where the model was trained to look.
        observed = Observation(None, pixels, good, (side, side))
        person = (output.shape, output.rotations, output.depth.float())
        camera = solve_camera(body, *person, observed, SolveOptions(iterations=0))
        seen = [
            look(points, camera.translation, camera.focal, (side, side))[0]
            for points in (camera.vertices, camera.joints[:, TORSO, :])
        ]
        vertices, torso, joints = (_in_picture(points / side, some) for points in (*seen, pixels))
        boxes += [mesh_box(points, picture.shape[:2]) for points in vertices]
        limbs.append(joints)
        ends = torso.reshape(-1, 2, 2, 2).mean(2)  # (B, 2, 2): shoulders and hips
        torsos.append(np.linalg.norm(ends[:, 0] - ends[:, 1], axis=-1))
        sure = good if output.visible is None else output.visible.sigmoid()
        visible.append(sure.float().cpu().numpy())
    return Sightings(
        np.array([(*crop.centre, crop.side) for crop in crops], np.float32),
        np.concatenate(limbs),
        np.concatenate(visible),
        np.stack(boxes),
        np.concatenate(torsos),
    )


def _in_picture(points: Tensor, crops: list[Crop]) -> Array:  # (B, P, 2)
    """Return points (B, P, 2), 0 to 1 across their crops, in pixels of the picture."""
    middles, sides = zip(*((crop.centre, crop.side) for crop in crops), strict=True)
    offsets = (points.cpu().numpy() - 0.5) * np.array(sides, np.float32)[:, None, None]
    return np.asarray(offsets + np.array(middles, np.float32)[:, None])


def mesh_box(pixels: NDArray[np.floating], image_size: tuple[int, int]) -> Array:  # (4,)
    """Return the box of the part of a mesh (V, 2) inside the picture, at least a part of it."""
    height, width = image_size
    limits = np.array([width, height], np.float32)
    low, high = (np.clip(ends, 0, limits) for ends in (pixels.min(0), pixels.max(0)))
    middle, least = (low + high) / 2, max(image_size) / SMALLEST_FOUND
    extent = np.maximum(high - low, np.minimum(least, limits))
    low = np.clip(middle - extent / 2, 0, limits - extent)
    return np.array([*low, *extent], np.float32)


def _sizes(settings: PoseNetSettings) -> tuple[int, int]:
    return settings.data.depth_size, settings.data.pose_size


def _box_crop(box: Array, growth: float = 1.0) -> Crop:
    """The square about a box (4,)."""
    centre, side = box_square(box)
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
    keypoints: Array | None,  # those of `good_keypoints`
    box: Array | None,
    settings: PoseNetSettings,
) -> Tensor:
    """DepthNet's crop (1, 3, S, S): about the mask, else the box, else the keypoints."""
    size = settings.data.depth_size
    if settings.data.is_portrait:
        return _cut(picture, _portrait_crop(picture.shape[:2], mask, keypoints, box), size)
    if mask is not None:
        image = as_tensor(picture)[None].float()
        corner, side = mask_squares(torch.from_numpy(np.array(mask) > 0)[None])
        return crop_squares(image, corner, side, size).round().to(torch.uint8)
    if box is not None:
        return _cut(picture, _box_crop(box), size)
    assert keypoints is not None
    return _cut(picture, Crop(*keypoint_square(keypoints)), size)


def _framed(closer: Crop, whole: Crop) -> Crop:
    """Return DepthNet's crop of a person that `closer` covers: the picture, if it is a portrait.

    Limbs do not tell to the pixel how far a person reaches, and a DepthNet that was trained on
    portraits has never seen them a few pixels larger.
    """
    return whole if closer.side > PORTRAIT * whole.side else closer


def _portrait_crop(
    size: tuple[int, int],
    mask: NDArray[Any] | None,
    keypoints: Array | None,
    box: Array | None,
) -> Crop:
    """A crop in which a person is where portraits have them: in the middle, with a border.

    Without a box, for which the line of sight is turned, it stays about the middle of the picture.
    """
    if box is not None:
        return _box_crop(box, FRAME)
    if mask is not None:
        x, y, width, height = mask_box(mask)
        ends = np.array([[x, y], [x + width, y + height]], np.float32)
        closer = _middle_crop(ends, size, FRAME)
    else:
        assert keypoints is not None
        closer = _middle_crop(keypoints[keypoints[:, 2] > 0, :2], size, ROOM)
    return _framed(closer, whole_crop(size))


def limb_pixels(
    output: PoseOutput, crop: Crop, keypoints: Array | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Limb joints (B, 12, 2) in pixels and whether they count: those given, or those found."""
    if keypoints is not None:
        labeled = torch.from_numpy(keypoints).to(device)[None]
        return labeled[..., :2], labeled[..., 2] > 0
    if output.keypoints is None:
        raise DataError(
            "this model finds no keypoints (model.keypoint_head=false): give those of a detector "
            "by --keypoints FILE, twelve rows of x, y and confidence"
        )
    if not all(torch.isfinite(part).all() for part in output if part is not None):
        raise DataError(
            "the model predicts non-finite numbers (NaN or Inf), so its weights are damaged or "
            "diverged; use another --checkpoint"
        )
    corner = torch.tensor(crop.centre, device=device) - crop.side / 2
    pixels = corner + crop.side * output.keypoints.float()
    if output.visible is None:
        return pixels, torch.ones_like(pixels[..., 0], dtype=torch.bool)
    # Keypoints beyond the crop are arbitrary; the likeliest ones count in any case.
    fewest = output.visible.topk(FEWEST_FOUND).values[:, -1:]
    return pixels, (output.visible > 0) | (output.visible >= fewest)


def _with_confidence(keypoints: Array) -> Array:  # (12, 2) to (12, 3)
    return np.concatenate([keypoints, np.ones((LIMBS, 1), np.float32)], axis=1)
