"""Sample people in front of a camera: pose, shape, depth and focal length of each.

Row i depends only on (seed, i). Depth and focal length are independent given the person's size in
the picture, so that only perspective reveals the distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.people.photograph import Photos, aim, lay
from overt.data.people.poses import UPPER, sketch_pose, upper_limbs
from overt.data.rng import sample_rng, uniform
from overt.errors import DataError
from overt.geometry.body import BODY_JOINTS, BodyModel
from overt.geometry.body_anny import ANNY
from overt.geometry.body_capsule import STANDING_HEIGHT_M
from overt.geometry.body_files import CAPSULE
from overt.geometry.camera import intrinsics, project
from overt.geometry.rotation import axis_angle_to_matrix, matrix_to_axis_angle

Array = NDArray[np.float64]

NEAREST_M = 0.15  # no vertex may be closer to the camera
TRIES, TOGETHER = 500, 16
# Depths of lively people, log-uniform in two ranges, and the fraction in the first.
CLOSE_M, FAR_M, CLOSE = (0.4, 2.0), (2.0, 8.0), 0.6
FRAME = 1.1  # side of the picture over that of the person's box, in portraits
SUBSETS: dict[str, tuple[float, float]] = {  # limits of the distortion
    "all": (0.0, math.inf),
    "p3": (1.8, math.inf),
    "p5": (3.0, math.inf),
    "far": (0.0, 1.2),
}
_SPINE = (3, 6, 9, 12, 15)
_ONE_SIDED = {4: 0, 5: 0, 18: 1, 19: 1}  # knees bend about x, elbows about y


@dataclass(frozen=True)
class PeopleOptions:
    """Appearance of the people and the camera."""

    # pixels of a picture's side
    size: int = 256
    seed: int = 0
    # camera (the person anywhere in the picture, possibly cut off), or portrait (the whole person,
    # calm if plain, in a square around the box); of live people also photograph: `photograph.py`
    framing: str = "camera"
    # parallel rays instead of perspective: nothing in the picture reveals the depth
    orthographic: bool = False
    # capsules: one fixed color per part in all pictures, instead of random ones
    fixed_colors: bool = False
    # also write the depth of every pixel
    depth_maps: bool = False
    # which pictures to keep, by their distortion: all, p3, p5 or far
    subset: str = "all"
    # anny, or a file of its body: dressed people in everyday poses; or capsule, in plain colors
    body: str = ANNY
    # folder of background photographs for dressed people; None: synthetic backgrounds
    backgrounds: str | None = None
    # rendering device: cpu or cuda
    device: str = "cpu"

    @property
    def is_plain(self) -> bool:
        return self.body == CAPSULE


class Person(NamedTuple):
    """Parameters sampled for one row before anything is rendered."""

    shape: Array  # (10,)
    root: Array  # (3,) axis-angle in the camera frame
    body: Array  # (21, 3)
    hands: Array  # (2, 15, 3)
    depth: float  # meters, of the pelvis
    height: float  # of the person over that of the picture
    pelvis_xy: Array  # (2,) of the pelvis, in picture sides from the center


def draw_person(rng: np.random.Generator, calm: bool) -> Person:
    """Sample shape, pose, depth and framing of one person."""
    shape = np.clip(rng.standard_normal(10), -2, 2)
    if calm:
        body = 0.2 * rng.standard_normal((21, 3))
        lowered = rng.uniform(0, 1.3)
        body[15, 2] -= lowered  # left shoulder: the arm points along x
        body[16, 2] += lowered
        yaw = rng.uniform(-math.pi / 3, math.pi / 3)
        hands = np.zeros((2, 15, 3))
    else:
        body = 0.35 * rng.standard_normal((21, 3))
        for joint in _SPINE:
            body[joint - 1] *= 0.15 / 0.35
        for joint, axis in _ONE_SIDED.items():
            sign = 1.0 if joint in (4, 5, 18) else -1.0
            body[joint - 1, axis] = sign * abs(body[joint - 1, axis])
        hands = np.clip(0.05 * rng.standard_normal((2, 15, 3)), -1.2, 1.2)
        near = rng.random() < 0.7
        yaw = rng.uniform(-math.pi / 3, math.pi / 3) if near else rng.uniform(-math.pi, math.pi)
    body = np.clip(body, -1.2 if not calm else -2.0, 1.2 if not calm else 2.0)
    pitch, roll = np.radians(10) * rng.standard_normal(2)
    limits = (0.5, 2.0) if rng.random() < 0.6 else (2.0, 8.0)
    depth = math.exp(rng.uniform(math.log(limits[0]), math.log(limits[1])))
    turns = torch.tensor([[math.pi, 0, 0], [pitch, 0, roll], [0, yaw, 0]], dtype=torch.float64)
    first, second, third = axis_angle_to_matrix(turns)
    root = matrix_to_axis_angle(first @ second @ third).numpy()
    return Person(
        shape, root, body, hands, depth, rng.uniform(0.5, 1.3), rng.uniform(-0.25, 0.25, size=2)
    )


class Scene(NamedTuple):
    """People in front of the camera, as tensors, and the camera."""

    vertices: Tensor  # (B, V, 3) meters in the camera frame
    joints: Tensor  # (B, 55, 3)
    matrix: Tensor  # (B, 3, 3) pixels
    translation: Tensor  # (B, 3): pelvis = joint 0 at rest + translation

    @property
    def distortion(self) -> Tensor:
        """Return the largest ratio of pelvis depth to joint depth, (B,)."""
        depth = self.joints[:, :BODY_JOINTS, 2]
        return (depth[:, :1] / depth).amax(1)


class PersonSketch(NamedTuple):
    """A sampled person in whom products of rotations are not multiplied out yet."""

    person: Person  # with zeros for root and upper limbs
    root: Array  # (3, 3) axis-angle
    limbs: Array  # (2, 4, 3) axis-angle


def sketch_lively_person(rng: np.random.Generator, rest_joints: Array) -> PersonSketch:
    """Sample one person in an everyday pose, from 0.4 m to 8 m away, seen from any side."""
    shape = rng.standard_normal(10).clip(-2, 2)
    body, limbs, hands, _ = sketch_pose(rng, rest_joints)
    near = rng.random() < 0.7
    yaw = uniform(rng, -math.pi / 3, math.pi / 3) if near else uniform(rng, -math.pi, math.pi)
    high = rng.random() < 0.25  # seen from above or from below
    pitch = uniform(rng, -0.7, 0.7) if high else rng.normal(0, 0.2)
    roll = rng.normal(0, 0.07)
    limits = CLOSE_M if rng.random() < CLOSE else FAR_M
    depth = math.exp(uniform(rng, math.log(limits[0]), math.log(limits[1])))
    person = Person(
        shape, np.zeros(3), body[1:], hands, depth, uniform(rng, 0.5, 1.4),
        rng.uniform(-0.25, 0.25, size=2),
    )  # fmt: skip
    turns = np.array([[math.pi, 0, 0], [pitch, 0, roll], [0, yaw, 0]])
    return PersonSketch(person, turns, limbs)


def finished(sketches: list[PersonSketch]) -> list[Person]:
    """Multiply rotations out, for all people at once."""
    limbs = upper_limbs(np.stack([sketch.limbs for sketch in sketches]))
    turns = axis_angle_to_matrix(torch.from_numpy(np.stack([sketch.root for sketch in sketches])))
    # One product at a time: batched ones round differently from those of sets already written.
    products = [
        first @ second @ third for first, second, third in zip(*turns.unbind(1), strict=True)
    ]
    roots = matrix_to_axis_angle(torch.stack(products)).numpy()
    people = []
    for sketch, root, upper in zip(sketches, roots, limbs, strict=True):
        body = sketch.person.body.copy()
        body[UPPER - 1] = upper
        people.append(sketch.person._replace(root=root, body=body))
    return people


def standing_height(model: BodyModel, shape: Tensor, options: PeopleOptions) -> Tensor:  # (B,)
    """Return the body height in meters of people at rest."""
    if options.is_plain:
        return STANDING_HEIGHT_M * (1 + 0.05 * shape[:, 0])
    used = model.directions[: shape.shape[1]]
    heights = (model.template + (shape @ used).view(len(shape), -1, 3))[..., 1]
    return heights.amax(1) - heights.amin(1)


class PeopleTensors(NamedTuple):
    """Parameters of several people as tensors; see `Person`."""

    shape: Tensor  # (B, 10)
    pose: Tensor  # (B, 55, 3) axis-angle
    depth: Tensor  # (B,)
    height: Tensor  # (B,)
    pelvis_xy: Tensor  # (B, 2)

    @classmethod
    def of(cls, people: list[Person], device: torch.device) -> PeopleTensors:
        """Stack people on a device."""

        def stack(rows: list[Any]) -> Tensor:
            return torch.tensor(np.stack(rows), dtype=torch.float32).to(device)

        face = np.zeros((3, 3))
        pose = [
            np.concatenate([person.root[None], person.body, face, person.hands.reshape(30, 3)])
            for person in people
        ]
        return cls(
            stack([person.shape for person in people]),
            stack(pose),
            stack([person.depth for person in people]),
            stack([person.height for person in people]),
            stack([person.pelvis_xy for person in people]),
        )


def place_people(
    people: PeopleTensors,
    model: BodyModel,
    options: PeopleOptions,
    move_back: bool = False,
    photos: Photos | None = None,
) -> Scene:
    """Place bodies in front of a camera that frames them, as sampled where there are `photos`.

    With `move_back` people who would reach closer than NEAREST_M stand further away.
    """
    shape, depth = people.shape, people.depth
    body = model(shape, axis_angle_to_matrix(people.pose))
    pelvis = body.joints[:, 0]
    vertices, joints = body.vertices - pelvis[:, None], body.joints - pelvis[:, None]
    if move_back:
        depth = moved_back(depth, NEAREST_M - vertices[..., 2].amin(1))
    if options.framing in ("portrait", "photograph"):
        translation, matrix = _framed(vertices, depth, options, photos)
    else:
        size = options.size
        height = standing_height(model, shape, options)
        focal = people.height * size * depth / height
        if options.is_plain:
            focal = focal.clamp(0.3 * size, 4.0 * size)
        across = people.pelvis_xy * size * (depth / focal)[:, None]
        translation = torch.cat([across, depth[:, None]], dim=1)
        matrix = intrinsics(focal, torch.full_like(across, size / 2))
    return Scene(
        vertices + translation[:, None], joints + translation[:, None], matrix, translation - pelvis
    )


def moved_back(depth: Tensor, nearest: Tensor) -> Tensor:
    """Return depths (B,) of lively people; those below `nearest` (B,) become others beyond it.

    The result is distributed as if the depth had been sampled until it is beyond `nearest`.
    """
    low = _depth_rank(nearest)
    rank = (_depth_rank(depth) / low).clamp(0, 1)  # uniform among depths that are too small
    return torch.where(depth < nearest, _depth_of_rank(low + rank * (1 - low)), depth)


def _depth_rank(depth: Tensor) -> Tensor:
    """Return the probability of a smaller depth."""
    close, far = ((depth / low).log() / math.log(high / low) for low, high in (CLOSE_M, FAR_M))
    return torch.where(depth < CLOSE_M[1], CLOSE * close, CLOSE + (1 - CLOSE) * far)


def _depth_of_rank(rank: Tensor) -> Tensor:
    """Undo `_depth_rank`."""
    close = CLOSE_M[0] * (CLOSE_M[1] / CLOSE_M[0]) ** (rank / CLOSE)
    far = FAR_M[0] * (FAR_M[1] / FAR_M[0]) ** ((rank - CLOSE) / (1 - CLOSE))
    return torch.where(rank < CLOSE, close, far)


def _framed(
    vertices: Tensor, depth: Tensor, options: PeopleOptions, photos: Photos | None
) -> tuple[Tensor, Tensor]:
    """Return pelvis positions (B, 3) and cameras in which people fill the picture or the crop.

    Without `photos` the person's box is centered and fills the picture.
    """
    divisor = (
        depth[:, None].expand(vertices.shape[:2])
        if options.orthographic
        else (vertices[..., 2] + depth[:, None]).clamp_min(NEAREST_M)
    )
    middle = torch.full((len(depth), 2), options.size / 2, device=depth.device)
    if photos is None:
        half = torch.full_like(middle, 0.5)
        across, extent = lay(vertices, divisor, half, torch.zeros_like(half))
        focal = options.size / (FRAME * extent.amax(1))
    else:
        across, focal = aim(vertices, divisor, photos, options.size)
    return torch.cat([across, depth[:, None]], dim=1), intrinsics(focal, middle)


def see(scene: Scene, points: Tensor, orthographic: bool) -> tuple[Tensor, Tensor]:
    """Return pixels (B, N, 2) and depths (B, N) of points (B, N, 3) in the camera frame."""
    if not orthographic:
        return project(points, torch.zeros_like(scene.translation), scene.matrix)
    depth = scene.joints[:, :1, 2:]  # all at the depth of the pelvis
    focal = scene.matrix[:, 0, 0][:, None, None]
    pixels = focal * points[..., :2] / depth + scene.matrix[:, None, :2, 2]
    return pixels, points[..., 2]


def boxes(pixels: Tensor, options: PeopleOptions) -> Tensor:
    """Return boxes (B, 4) of projected vertices (B, V, 2) within the picture: x, y, w, h."""
    size = options.size
    low, high = pixels.amin(1).clamp(0, size - 1), pixels.amax(1).clamp(0, size - 1)
    if options.framing in ("portrait", "photograph"):  # the picture is the crop
        low, high = torch.zeros_like(low), torch.full_like(high, size)
    return torch.cat([low, high - low], dim=1)


def with_visibility(pixels: Tensor, size: int) -> Tensor:
    """Return points (B, N, 2) with a third number: 1 within the picture, otherwise 0."""
    inside = ((pixels >= 0) & (pixels <= size - 1)).all(-1, keepdim=True).float()
    return torch.cat([pixels, inside], dim=-1)


def draw_rows(
    first: int, count: int, model: BodyModel, options: PeopleOptions
) -> tuple[list[Person], Scene, list[np.random.Generator]]:
    """Sample rows from `first` on, each with its own generator, until they are usable."""
    generators = [sample_rng(options.seed, 0, first + number) for number in range(count)]
    people: list[Person | None] = [None] * count
    low, high = SUBSETS[options.subset]
    # Few people are as distorted as a subset requires, so several are tried at a time.
    together = 1 if options.subset == "all" else TOGETHER
    calm = options.framing == "portrait"
    rest_joints = model.rest_places[:BODY_JOINTS].double().cpu().numpy()
    device = model.template.device

    def draw(rngs: list[np.random.Generator]) -> list[Person]:
        if options.is_plain:
            return [draw_person(rng, calm) for rng in rngs]
        return finished([sketch_lively_person(rng, rest_joints) for rng in rngs])

    for _ in range(TRIES):
        waiting = [number for number in range(count) if people[number] is None]
        if not waiting:
            break
        drawn = draw([generators[n] for n in waiting for _ in range(together)])
        scene = place_people(PeopleTensors.of(drawn, device), model, options)
        good = scene.vertices[..., 2].amin(1) > NEAREST_M
        good &= (scene.distortion >= low) & (scene.distortion <= high)
        for index in reversed(good.nonzero().flatten().tolist()):  # the first one stays
            people[waiting[index // together]] = drawn[index]
    if None in people:
        raise DataError(f"no person of subset {options.subset} was found in {TRIES} draws")
    done = [person for person in people if person is not None]
    return done, place_people(PeopleTensors.of(done, device), model, options), generators
