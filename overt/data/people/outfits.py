"""Appearance of people: skin, hair, clothes as displaced and patterned surfaces, light.

Clothes end at coordinates of the body at rest, along arms and legs, so every body in the layout of
SMPL-X can be dressed. Letters: B people, V vertices, N covered pixels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from overt.data.people.render import vertex_normals
from overt.data.rng import choose, cumulative, uniform
from overt.geometry.body import BodyModel
from overt.geometry.silhouette import Raster

Array = NDArray[np.float64]

SKIN, HAIR, TOP, BOTTOM, SHOES, EYES = range(6)
REGIONS = 6
PATTERNS = ("plain", "stripes", "checks", "blotches")
WAVES = 6  # of the random field that makes blotches, folds and bulges
LIGHTS = 3
# Joints whose skin belongs to an arm, a leg, a foot, the head.
_ARMS, _HANDS = (16, 17, 18, 19), (20, 21, *range(25, 55))
_LEGS, _FEET = (1, 2, 4, 5), (7, 8, 10, 11)
_HEAD, _EYES = (15, 22), (23, 24)
# Two ends of human skin, dark and light, as red, green and blue.
_DARK, _LIGHT = np.array([0.25, 0.15, 0.10]), np.array([0.96, 0.80, 0.70])
_HAIR_COLORS = np.array(
    [[0.06, 0.05, 0.04], [0.25, 0.15, 0.08], [0.75, 0.6, 0.35], [0.6, 0.6, 0.6]]
)
_PATTERN_SUMS = cumulative((0.45, 0.25, 0.1, 0.2))
_RANGE_SUMS = cumulative((0.42, 0.46, 0.12))


class Outfit(NamedTuple):
    """Hold one person's sampled looks."""

    colors: Array  # (6, 3) of the regions
    second: Array  # (6, 3) the other color of their patterns
    pattern: NDArray[np.int64]  # (6,) numbers of `PATTERNS`
    frequency: Array  # (6,) waves per meter
    axis: Array  # (6, 3) across stripes
    thickness: Array  # (6,) meters
    sleeve: float  # 0 at the shoulder, 1 at the elbow, 2 at the wrist
    trouser: float  # 0 at the hip, 1 at the knee, 2 at the ankle
    waist: float  # meters above the pelvis
    hairline: float
    waves: Array  # (6, 4) a random field: direction times frequency, and phase
    lights: Array  # (3, 6) direction and color
    ambient: Array  # (2, 3) colors from above and from below


def draw_outfit(rng: np.random.Generator) -> Outfit:
    """Sample clothes, hair, skin and light of one person."""
    tone = rng.beta(1.2, 1.0)
    skin = (_DARK + tone * (_LIGHT - _DARK) + rng.normal(0, 0.02, 3)).clip(0.05, 1)
    colors = rng.uniform(0.02, 0.98, (REGIONS, 3))
    gray = rng.random(REGIONS) < 0.35  # cloth is often black, gray or white
    colors[gray] = colors[gray].sum(1, keepdims=True) / 3
    colors[SKIN] = skin
    colors[HAIR] = (_HAIR_COLORS[rng.integers(4)] + rng.normal(0, 0.04, 3)).clip(0.02, 1)
    colors[EYES] = (0.12, 0.1, 0.09)
    if rng.random() < 0.12:  # a dress, an overall
        colors[BOTTOM] = colors[TOP]
    pattern = choose(rng, _PATTERN_SUMS, REGIONS)
    pattern[[SKIN, EYES]], pattern[HAIR] = 0, 3
    axis = rng.standard_normal((REGIONS, 3))
    thickness = np.zeros(REGIONS)
    thickness[HAIR] = uniform(rng, 0.004, 0.035)
    thickness[TOP], thickness[BOTTOM] = rng.uniform(0.002, 0.02, 2)
    thickness[SHOES] = uniform(rng, 0.004, 0.012)
    towards = rng.standard_normal((LIGHTS, 3)) + np.array([0.0, -0.8, -0.6])
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)
    power = np.array([uniform(rng, 0.4, 1.0), *rng.uniform(0.0, 0.35, LIGHTS - 1)])
    warm = (1 + rng.normal(0, 0.12, (LIGHTS, 3))).clip(0.5, 1.5)
    return Outfit(
        colors,
        (colors + rng.normal(0, 0.25, colors.shape)).clip(0, 1),
        pattern,
        rng.uniform(4, 30, REGIONS),
        axis / np.linalg.norm(axis, axis=1, keepdims=True),
        thickness,
        _one_of(rng, (0.2, 0.8), (1.6, 2.1), (-0.5, -0.4)),
        _one_of(rng, (0.4, 1.0), (1.6, 2.1), (1.6, 2.1)),
        uniform(rng, -0.02, 0.14),
        uniform(rng, -0.1, 0.35) if rng.random() > 0.08 else 9.0,
        np.concatenate(
            [rng.normal(0, 12, (WAVES, 3)), rng.uniform(0, 2 * math.pi, (WAVES, 1))], axis=1
        ),
        np.concatenate([towards, power[:, None] * warm], axis=1),
        uniform(rng, 0.15, 0.5) * (1 + rng.normal(0, 0.1, (2, 3))).clip(0.5, 1.5),
    )  # fmt: skip


def _one_of(rng: np.random.Generator, *ranges: tuple[float, float]) -> float:
    """Sample mostly from the first or second range, otherwise from the third."""
    return uniform(rng, *ranges[choose(rng, _RANGE_SUMS)])


class Tailor:
    """Measures a body once: possible regions of each vertex, and its position along a limb."""

    def __init__(self, model: BodyModel) -> None:
        device = model.template.device
        owner = model.skin_weights.argmax(1)
        rest_joints = model.rest_places
        self.faces, self.template = model.faces, model.template

        def among(joints: tuple[int, ...]) -> Tensor:
            return torch.isin(owner, torch.tensor(joints, device=device))

        self.is_hand, self.is_foot = among(_HANDS), among(_FEET)
        self.is_head, self.is_eye = among(_HEAD), among(_EYES)
        is_arm, is_leg = among(_ARMS), among(_LEGS)
        nothing = torch.full((len(owner),), -1.0, device=device)
        self.along_arm = torch.where(is_arm, self._along(rest_joints, (16, 18, 20)), nothing)
        self.along_arm = torch.where(self.is_hand, nothing + 3.5, self.along_arm)
        self.along_leg = torch.where(is_leg, self._along(rest_joints, (1, 4, 7)), nothing)
        head = self.template[self.is_head]
        middle = (head.amin(0) + head.amax(0)) / 2
        about = (self.template - middle) / (head.amax(0) - head.amin(0)).clamp_min(1e-3) * 2
        # High where hair grows: on top and at the back, not in the face.
        self.scalp = 0.9 * about[:, 1] - 0.8 * about[:, 2]
        flags = [self.is_hand, self.is_foot, self.is_head, self.is_eye]
        # (V, 8): numbers that decide regions, interpolated over faces.
        self.measures = torch.stack(
            [self.along_arm, self.along_leg, self.template[:, 1], self.scalp]
            + [flag.float() for flag in flags],
            dim=1,
        )

    def _along(self, rest_joints: Tensor, joints: tuple[int, int, int]) -> Tensor:
        """Return 0 at the first joint, 1 at the second, 2 at the third, on both sides."""
        points = torch.cat([self.template[:, :1].abs(), self.template[:, 1:]], dim=1)
        first, second, third = (rest_joints[joint] for joint in joints)
        upper, lower = second - first, third - second
        along = ((points - first) @ upper) / upper.dot(upper)
        beyond = ((points - second) @ lower) / lower.dot(lower)
        return torch.where(beyond > 0, 1 + beyond.clamp(0, 1.2), along.clamp(-0.5, 1))

    def regions(self, measures: Tensor, choice: Tensor) -> Tensor:
        """Return regions (...) of points from measures (..., 8) and choices (..., 4) of people."""
        arm, leg, height, scalp, hand, foot, head, eye = measures.unbind(-1)
        sleeve, trouser, waist, hairline = choice.unbind(-1)
        region = torch.where(height < waist, BOTTOM, TOP)
        region = region.masked_fill((arm > sleeve) & (arm > -0.9), SKIN)
        region = region.masked_fill((leg > trouser) & (leg > -0.9), SKIN)
        region = region.masked_fill(hand > 0.5, SKIN)
        region = region.masked_fill(foot > 0.5, SHOES)
        region = region.masked_fill(head > 0.5, SKIN)
        region = region.masked_fill((head > 0.5) & (scalp > hairline), HAIR)
        return region.masked_fill(eye > 0.5, EYES)

    def dress(self, vertices: Tensor, looks: Looks) -> Tensor:
        """Move vertices (B, V, 3) outward by cloth and hair, in smooth bulges."""
        region = self.regions(self.measures, looks.choice[:, None])  # (B, V)
        thick = looks.thickness.gather(1, region)[..., None]
        bulge = smooth_noise(looks.waves[:, None], self.template)[..., None]
        return vertices + vertex_normals(vertices, self.faces) * thick * (1 + 0.6 * bulge)


def smooth_noise(waves: Tensor, positions: Tensor) -> Tensor:
    """Return noise (...), about -1 to 1, of waves (..., W, 4) at points (..., 3) at rest."""
    angles = (waves[..., :3] * positions[..., None, :]).sum(-1) + waves[..., 3]
    return angles.sin().mean(-1) * math.sqrt(2 / WAVES) * 1.7


def take_rows(table: Tensor, index: Tensor) -> Tensor:
    """Return rows (N, ...) of a table (R, ...), in memory as (..., N).

    CUDA copies short rows one by one, each with a block of threads; it copies columns much faster.
    """
    columns = table.flatten(1).t()
    chosen = columns.gather(1, index.expand(len(columns), -1))
    return torch.unflatten(chosen.t(), 1, table.shape[1:])


class Looks(NamedTuple):
    """Hold the outfits of a batch as tensors; see `Outfit`."""

    colors: Tensor  # (B, 6, 3)
    second: Tensor  # (B, 6, 3)
    pattern: Tensor  # (B, 6) int64
    frequency: Tensor  # (B, 6)
    axis: Tensor  # (B, 6, 3)
    thickness: Tensor  # (B, 6)
    choice: Tensor  # (B, 4): sleeve, trouser, waist, hairline
    waves: Tensor  # (B, 6, 4)
    lights: Tensor  # (B, 3, 6)
    ambient: Tensor  # (B, 2, 3)

    @classmethod
    def of(cls, outfits: list[Outfit], device: torch.device) -> Looks:
        """Stack outfits on a device."""

        def stack(name: str) -> Tensor:
            rows = [np.asarray(getattr(outfit, name)) for outfit in outfits]
            return torch.tensor(np.stack(rows), dtype=torch.float32).to(device)

        chosen = ("sleeve", "trouser", "waist", "hairline")
        parts = {name: stack(name) for name in cls._fields if name != "choice"}
        parts["pattern"] = parts["pattern"].long()
        return cls(choice=torch.stack([stack(name) for name in chosen], dim=1), **parts)

    def texture(self, person: Tensor, region: Tensor, positions: Tensor) -> Tensor:
        """Return unlit colors (N, 3)."""
        kind = torch.stack([self.pattern.float(), self.frequency], dim=-1)
        axes = (self.axis, self.axis.roll(1, -1))
        table = torch.cat([self.colors, self.second, *axes, kind], dim=-1).flatten(0, 1)
        numbers = take_rows(table, person * REGIONS + region)  # (N, 14)
        first, second, axis, other_axis, kind = torch.split(numbers, [3, 3, 3, 3, 2], dim=1)
        pattern, frequency = kind.unbind(1)
        across = (axis * positions).sum(-1) * frequency
        along = (other_axis * positions).sum(-1) * frequency
        wave, waves = torch.sin(2 * math.pi * across), take_rows(self.waves, person)
        stripes = (wave > 0).float()
        checks = (wave * torch.sin(2 * math.pi * along) > 0).float()
        blotches = torch.sigmoid(6 * smooth_noise(waves, positions * 3))
        part = torch.zeros_like(stripes)
        for number, mixed in enumerate((stripes, checks, blotches), start=1):
            part = torch.where(pattern == number, mixed, part)
        # Cloth is never perfectly uniform.
        uneven = 1 + 0.08 * smooth_noise(waves, positions * 1.7)
        return (first + part[:, None] * (second - first)) * uneven[:, None]

    def light(self, person: Tensor, normal: Tensor) -> Tensor:
        """Return the light (N, 3) that falls on surfaces."""
        lights = take_rows(self.lights, person)  # (N, L, 6)
        facing = (lights[..., :3] * normal[:, None]).sum(-1).clamp_min(0.0)
        up = 0.5 - 0.5 * normal[:, 1:2]  # y points down in the camera frame
        above, below = take_rows(self.ambient, person).unbind(1)
        direct = (facing[..., None] * lights[..., 3:]).sum(1)
        return direct + up * above + (1 - up) * below


def shade(
    raster: Raster, covered: Tensor, vertices: Tensor, tailor: Tailor, looks: Looks
) -> Tensor:
    """Return colors (N, 3) of the covered pixels."""
    person = covered // raster.face[0].numel()
    face = raster.face.flatten().index_select(0, covered)
    corners = take_rows(tailor.faces, face)  # (N, 3)
    weights = take_rows(raster.weights.flatten(0, 2), covered)[..., None]  # (N, 3, 1)

    def interpolated(table: Tensor, index: Tensor) -> Tensor:
        """Return weighted sums (N, C) of three rows of a table (R, C) each, with numbers (N, 3)."""
        at_corners = torch.unflatten(take_rows(table, index.t().flatten()), 0, (3, -1))
        return (weights * at_corners.transpose(0, 1)).sum(1)  # of (N, 3, C)

    positions = interpolated(tailor.template, corners)
    measures = interpolated(tailor.measures, corners)
    normals = vertex_normals(vertices, tailor.faces).flatten(0, 1)  # (B V, 3)
    corners_of_all = corners + person[:, None] * vertices.shape[1]
    normal = F.normalize(interpolated(normals, corners_of_all), dim=-1)
    region = tailor.regions(measures, take_rows(looks.choice, person))
    return looks.texture(person, region, positions) * looks.light(person, normal)
