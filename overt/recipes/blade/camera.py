"""The camera of a picture: focal length and person position, from silhouette and keypoints.

The mesh and its depth are given; a closed-form initialization is refined by gradient descent
through a soft silhouette. Section 3.4 of arXiv:2412.08640. Letters: B people, V vertices, J
keypoints.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from overt.geometry.body import BodyModel
from overt.geometry.camera import fit_camera
from overt.geometry.rotation import axis_angle_to_matrix
from overt.geometry.silhouette import soft_silhouette
from overt.ops.resize.api import resize

# Body joints of the twelve limb keypoints: shoulders, elbows, wrists, hips, knees, ankles, left
# first.
LIMB_JOINTS = (16, 17, 18, 19, 20, 21, 1, 2, 4, 5, 7, 8)
FOCAL_LIMITS = (10.0, 1e4)
DEPTH_LIMITS_M = (0.3, 50.0)
DEPTH_ROUNDS = 5
MOMENTUM = 0.9
# Step sizes; that of the focal length is in units of the longer side of the picture.
STEPS = {"place": 0.002, "focal": 0.01, "depth": 0.05, "pose": 0.01}
PRIOR_WEIGHTS = {"place": 0.1, "depth": 0.1, "pose": 2.0, "root": 1.0}
# Blur in the first and the second half: taps, standard deviation, size.
COARSE, FINE = (17, 8.0, 0.25), (5, 3.0, 1.0)
WARM_UP = 2  # iterations before one is recorded
ROOM = 1.5  # of the list of face-pixel pairs, over what the start needs


class Observation(NamedTuple):
    """Observations of each person, in pixels of the picture in which cameras are solved."""

    mask: Tensor | None  # (B, H, W) 0 to 1
    keypoints: Tensor  # (B, 12, 2)
    good: Tensor  # (B, 12) bool
    size: tuple[int, int]
    # Principal point x, y; None: the middle. A shrunken picture of whole pixels may differ.
    centre: tuple[float, float] | None = None


@dataclass(frozen=True)
class SolveOptions:
    iterations: int = 100
    keypoint_weight: float = 12.0
    optimize_depth: bool = False
    optimize_pose: bool = False
    optimize_focal: bool = True


class Solution(NamedTuple):
    """Cameras and people in them."""

    focal: Tensor  # (B,) pixels
    translation: Tensor  # (B, 3) meters, of the pelvis
    vertices: Tensor  # (B, V, 3) relative to the pelvis
    joints: Tensor  # (B, J, 3) relative to the pelvis
    rotations: Tensor  # (B, 22, 3, 3)
    soft_iou: Tensor  # (B,) of the silhouettes at their last blur; NaN without a mask


def start_camera(joints: Tensor, depth: Tensor, observed: Observation) -> tuple[Tensor, Tensor]:
    """Return focal length (B,) and pelvis position (B, 3) in closed form from keypoints."""
    limbs = joints[:, LIMB_JOINTS, :]
    keypoints = observed.keypoints
    if observed.centre is not None:
        # `fit_camera` has its principal point in the middle: the keypoints are moved instead.
        height, width = observed.size
        x, y = observed.centre
        keypoints = keypoints + keypoints.new_tensor([width / 2 - x, height / 2 - y])
    start = fit_camera(limbs, depth, keypoints, observed.good, observed.size)
    focal = start.focal.clamp(*FOCAL_LIMITS)
    moved = _shifted_to_keypoints(limbs, depth, focal, observed)
    unclamped = (focal == start.focal)[:, None]
    return focal, torch.where(unclamped, start.translation, moved)


def _shifted_to_keypoints(
    limbs: Tensor, depth: Tensor, focal: Tensor, observed: Observation
) -> Tensor:  # (B, 3)
    """Return the pelvis position at which limbs (B, 12, 3) lie on the keypoints on average."""
    centre = observed.keypoints.new_tensor(observed.centre or middle(observed.size))
    distance = limbs[..., 2:] + depth[:, None, None]
    offsets = (observed.keypoints - centre) * distance / focal[:, None, None] - limbs[..., :2]
    total = torch.where(observed.good[..., None], offsets, 0.0).sum(1)
    shift = total / observed.good.sum(1).clamp_min(1)[:, None]
    return torch.cat([shift, depth[:, None]], dim=1)


def pelvis_relative(model: BodyModel, shape: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor]:
    """Return vertices and joints relative to the pelvis."""
    body = model(shape, rotations)
    pelvis = body.joints[:, :1]
    return body.vertices - pelvis, body.joints - pelvis


@torch.inference_mode(False)
@torch.enable_grad()
def solve_camera(
    model: BodyModel,
    shape: Tensor,  # (B, 10)
    rotations: Tensor,  # (B, 22, 3, 3)
    depth: Tensor,  # (B,) meters
    observed: Observation,
    options: SolveOptions,
    known_focal: Tensor | None = None,  # (B,) pixels
) -> Solution:
    """Solve the camera of each person and of what `options` free; keep the best iterate.

    With a known focal length, the depth is solved instead.
    """
    # Copies: tensors created in inference mode cannot take part in a gradient.
    shape, rotations, depth = (part.detach().clone() for part in (shape, rotations, depth))
    observed = observed._replace(
        mask=None if observed.mask is None else observed.mask.clone(),
        keypoints=observed.keypoints.clone(),
        good=observed.good.clone(),
    )
    if known_focal is None:
        vertices, joints = pelvis_relative(model, shape, rotations)
        focal, translation = start_camera(joints, depth, observed)
        nothing = torch.full_like(focal, torch.nan)
        start = Solution(focal, translation, vertices, joints, rotations, nothing)
    else:
        start = solve_depth(model, shape, rotations, depth, observed, known_focal.clone())
        depth = start.translation[:, 2].clone()
        options = replace(options, optimize_focal=False, optimize_depth=True)
    if options.iterations == 0 or observed.mask is None:
        return start
    capacity: int | None = None
    if depth.device.type == "cuda":
        with torch.no_grad():
            capacity = int(ROOM * int(_silhouette(model, start, observed, None)[1]))
    while True:
        descent = Descent(model, shape, start, depth, observed, options, capacity)
        descent.run()
        # The only read from the device: if the list was too short, it is enlarged.
        if capacity is None or int(descent.needed) <= capacity:
            return descent.best
        capacity = int(ROOM * int(descent.needed))


@torch.no_grad()
def solve_depth(
    model: BodyModel,
    shape: Tensor,  # (B, 10)
    rotations: Tensor,  # (B, 22, 3, 3)
    depth: Tensor,  # (B,) meters, where to start
    observed: Observation,
    focal: Tensor,  # (B,) pixels
) -> Solution:
    """Return people at the depths at which a camera of known focal length fits their keypoints."""
    vertices, joints = pelvis_relative(model, shape, rotations)
    for _ in range(DEPTH_ROUNDS):  # a fitted focal length is almost proportional to the depth
        fitted, _ = start_camera(joints, depth, observed)
        depth = (depth * focal / fitted).clamp(*DEPTH_LIMITS_M)
    translation = _shifted_to_keypoints(joints[:, LIMB_JOINTS, :], depth, focal, observed)
    nothing = torch.full_like(depth, torch.nan)
    return Solution(focal, translation, vertices, joints, rotations, nothing)


class Descent:
    """Gradient descent with momentum from a start.

    All state is in tensors that are changed in place, nothing is read on the host and every
    iteration is the same work: on CUDA it is recorded once and replayed.
    """

    def __init__(
        self,
        model: BodyModel,
        shape: Tensor,
        start: Solution,
        depth: Tensor,
        observed: Observation,
        options: SolveOptions,
        capacity: int | None,
    ) -> None:
        self.model, self.shape, self.start, self.depth = model, shape, start, depth
        self.observed, self.options, self.capacity = observed, options, capacity
        self.longer = float(max(observed.size))
        # Variables are scaled by their step sizes, so that one learning rate serves all.
        self.shift = start.translation[:, :2].clone()
        self.focal = start.focal / self.longer
        self.distance = depth.clone()
        self.turns = torch.zeros(len(depth), 22, 3, device=depth.device)
        self.free = {"place": self.shift}
        if options.optimize_focal:
            self.free["focal"] = self.focal
        if options.optimize_depth:
            self.free["depth"] = self.distance
        if options.optimize_pose:
            self.free["pose"] = self.turns
        for variable in self.free.values():
            variable.requires_grad_()
        self.velocity = {name: torch.zeros_like(variable) for name, variable in self.free.items()}
        self.needed = torch.zeros((), dtype=torch.int64, device=depth.device)
        self.best = Solution(*(part.clone() for part in start))
        self.best_iou = torch.full_like(depth, -1.0)

    def run(self) -> None:
        coarse = self.options.iterations // 2
        # One iteration more than updates that count: the last one looks at the result.
        for kind, count in ((COARSE, coarse), (FINE, self.options.iterations + 1 - coarse)):
            blur = Blur(*kind, self.observed.mask)
            self.best_iou.fill_(-1.0)  # overlaps of other blurs do not compare
            if self.depth.device.type == "cuda":
                self.replay(blur, count)
            else:
                for _ in range(count):
                    self.iterate(blur)

    def replay(self, blur: Blur, count: int) -> None:
        """Run some iterations as they are, record one, replay it for the others."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(min(count, WARM_UP)):  # libraries choose and load their kernels
                self.iterate(blur)
        torch.cuda.current_stream().wait_stream(stream)
        if count <= WARM_UP:
            return
        graph = torch.cuda.CUDAGraph()
        # Loader threads may go on meanwhile, which the default mode takes for a mistake.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.iterate(blur)
        for _ in range(count - WARM_UP):
            graph.replay()

    def iterate(self, blur: Blur) -> None:
        state = self.solution()
        alpha, count = _silhouette(self.model, state, self.observed, self.capacity)
        iou = blur.soft_iou(alpha)
        gradients = torch.autograd.grad(self.energy(state, iou).sum(), list(self.free.values()))
        with torch.no_grad():
            self.needed.copy_(torch.maximum(self.needed, count))
            self.keep_better(state._replace(soft_iou=iou))
            for (name, variable), gradient in zip(self.free.items(), gradients, strict=True):
                self.velocity[name].mul_(MOMENTUM).add_(gradient)
                variable.add_(self.velocity[name], alpha=-STEPS[name])
            self.focal.clamp_(FOCAL_LIMITS[0] / self.longer, FOCAL_LIMITS[1] / self.longer)
            self.distance.clamp_(*DEPTH_LIMITS_M)

    def solution(self) -> Solution:
        rotations, vertices, joints = self.start.rotations, self.start.vertices, self.start.joints
        if self.options.optimize_pose:
            rotations = axis_angle_to_matrix(self.turns) @ rotations
            vertices, joints = pelvis_relative(self.model, self.shape, rotations)
        # A person stays on their ray when focal length and depth change: off the center they would
        # move out of the picture, and the descent diverge.
        on_ray = (self.start.focal / (self.longer * self.focal)) * (self.distance / self.depth)
        shift = self.shift + (on_ray - 1)[:, None] * self.start.translation[:, :2]
        translation = torch.cat([shift, self.distance[:, None]], dim=1)
        nothing = torch.zeros_like(self.distance)
        return Solution(self.longer * self.focal, translation, vertices, joints, rotations, nothing)

    def energy(self, state: Solution, iou: Tensor) -> Tensor:  # (B,)
        energy = 1.0 - iou + PRIOR_WEIGHTS["place"] * self.shift.abs().mean(1)
        energy = energy + PRIOR_WEIGHTS["depth"] * (self.distance - self.depth).abs()
        energy = energy + self.options.keypoint_weight * keypoint_energy(state, self.observed)
        if self.options.optimize_pose:
            energy = energy + PRIOR_WEIGHTS["pose"] * self.turns[:, 1:].square().mean((1, 2))
            energy = energy + PRIOR_WEIGHTS["root"] * self.turns[:, 0].square().mean(1)
        return energy

    def keep_better(self, state: Solution) -> None:
        better = state.soft_iou > self.best_iou
        for best, new in zip(self.best, state, strict=True):
            best.copy_(torch.where(better.view(-1, *[1] * (new.ndim - 1)), new, best))
        self.best_iou.copy_(torch.maximum(self.best_iou, state.soft_iou))


def _silhouette(
    model: BodyModel, state: Solution, observed: Observation, capacity: int | None
) -> tuple[Tensor, Tensor]:
    size = observed.size
    pixels, depth = look(state.vertices, state.translation, state.focal, size, observed.centre)
    return soft_silhouette(pixels, depth, model.faces, size, capacity=capacity)


def look(
    points: Tensor,
    translation: Tensor,
    focal: Tensor,
    size: tuple[int, int],
    centre: tuple[float, float] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return pixels (B, N, 2) and depths (B, N) of points (B, N, 3).

    The principal point is `centre`, by default the middle of the picture.
    """
    moved = points + translation[:, None]
    depth = moved[..., 2]
    scale = focal[:, None] / depth
    centre_x, centre_y = centre or middle(size)
    x, y = moved[..., 0] * scale + centre_x, moved[..., 1] * scale + centre_y
    return torch.stack([x, y], dim=-1), depth


def middle(size: tuple[int, int]) -> tuple[float, float]:
    """Return the middle x, y of a picture of (height, width)."""
    height, width = size
    return width / 2, height / 2


@lru_cache
def limb_index(device: torch.device) -> Tensor:
    """Return the limb joints as an index that is already on the device: recording copies none."""
    return torch.tensor(LIMB_JOINTS, device=device)


def keypoint_energy(state: Solution, observed: Observation) -> Tensor:
    """Return mean distances (B,) of projected joints to keypoints, relative to their extent."""
    limbs = limb_index(state.joints.device)
    limb_joints = state.joints.index_select(1, limbs)
    pixels, _ = look(limb_joints, state.translation, state.focal, observed.size, observed.centre)
    good = observed.good[..., None]
    low = torch.where(good, observed.keypoints, torch.inf).amin(1)
    high = torch.where(good, observed.keypoints, -torch.inf).amax(1)
    extent = (high - low).amax(1)  # minus infinity without a keypoint
    # A single keypoint has no extent: divided by a pixel, it would outweigh the silhouette.
    extent = torch.where(extent > 0, extent.clamp_min(1.0), float(max(observed.size)))
    distance = torch.where(good, (pixels - observed.keypoints).abs(), 0.0).sum((1, 2))
    return distance / extent / (2 * observed.good.sum(1)).clamp_min(1)


class Blur:
    """Compares silhouette and mask, both with the same blur."""

    def __init__(self, taps: int, deviation: float, size: float, mask: Tensor | None) -> None:
        assert mask is not None
        offsets = torch.arange(taps, device=mask.device, dtype=torch.float32) - (taps - 1) / 2
        kernel = torch.exp(-0.5 * (offsets / deviation).square())
        self.kernel, self.size = kernel / kernel.sum(), size
        self.mask = self.apply(mask.to(torch.float32))

    def apply(self, maps: Tensor) -> Tensor:  # (B, H, W)
        margin = len(self.kernel) // 2
        maps = F.conv2d(maps[:, None], self.kernel.view(1, 1, -1, 1), padding=(margin, 0))
        maps = F.conv2d(maps, self.kernel.view(1, 1, 1, -1), padding=(0, margin))
        if self.size != 1.0:
            # A side of too few pixels would vanish: it keeps its size.
            factors = [self.size if self.size * side >= 1 else 1.0 for side in maps.shape[-2:]]
            maps = resize(maps, scale_factor=factors)
        return maps[:, 0]

    def soft_iou(self, alpha: Tensor) -> Tensor:  # (B,)
        blurred = self.apply(alpha)
        both = blurred * self.mask
        return both.sum((1, 2)) / (blurred + self.mask - both).sum((1, 2)).clamp_min(1e-6)
