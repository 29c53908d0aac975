"""Scenes of moving textured layers: the sampled parameters of a clip, and surface geometry.

A scene is a function of one row of random numbers. B clips, L layers from back to front, T frames;
positions (x, y) are in half image sides from the image center, on surfaces as well. All numbers of
a layer in a frame are one column of a table, so that the same code serves pixels, points and
candidates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from overt.data.tracking.procedural_bodies import Motion, Parts, join_layers
from overt.data.tracking.procedural_draws import Draws
from overt.data.tracking.procedural_settings import ProceduralSettings
from overt.ops.layers.plain import LEAST_DEPTH, Layer, bent

SINES = 3  # of each smooth motion
HARMONICS = 5  # of an outline
DRAWS = 8192  # random numbers of a clip: enough for 16 layers and 1,000 points
REFERENCE_FRAMES = 24  # motion is described for clips of this many; longer ones have more of it
BENDS = 2
NO_HOLES = -9.0  # a level that no lattice falls below
INVERSIONS = 14  # of a bend, by iteration: each leaves at most 0.4 of the error


class Scene(NamedTuple):
    """Everything about B clips except the pixels of their textures."""

    layers: Tensor  # (fields of Layer, B, L, T)
    forward: Tensor  # (9, B, L, T) surface to image, row by row
    texture: Tensor  # (B, L) number of a texture, uniform in 0..1 before it is scaled
    texture_map: Tensor  # (B, L, 6) surface to texels: x from x, y, 1, then y
    color: Tensor  # (B, L, 6) gain and offset of each channel
    light: Tensor  # (B, T, 12): gain, wave (strength, x, y, phase), two spots (strength, x, y, 1/s)
    shutter: Tensor  # (B,) of a frame's duration in which the texture moves
    finish: Tensor  # (B, 4): blur, gray, noise, step of the compression
    draws: Draws  # what is left, for the choice of points


def draw_scene(
    numbers: Tensor,  # (B, DRAWS)
    frames: int,
    settings: ProceduralSettings,
    pixels_per_unit: float,  # half of the image's shorter side
) -> Scene:
    """Build the scenes of rows of random numbers."""
    draws, count, device = Draws(numbers), settings.layers, numbers.device
    time = torch.arange(frames, device=device) / REFERENCE_FRAMES  # (T,)

    def smooth(*shape: int) -> Tensor:
        """Return (B, *shape, T): a sum of slow sines of about unit variance and zero mean."""
        strength = draws.normal(*shape, SINES) / math.sqrt(SINES / 2)
        rate = draws.uniform(*shape, SINES, low=0.1, high=settings.fastest)
        phase = draws.uniform(*shape, SINES, high=2 * math.pi)
        angles = 2 * math.pi * rate[..., None] * time + phase[..., None]
        # Relative to the first frame: motion, not position.
        return (strength[..., None] * (angles.sin() - phase.sin()[..., None])).sum(-2)

    def per_layer(value: Tensor) -> Tensor:
        """(B, L) to (B, L, T)."""
        return value.unsqueeze(-1).expand(-1, -1, frames)

    # What moves in a clip: nothing, the camera, objects, or both.
    moves = 1 - draws.chance(settings.static_clips, 1)
    camera_moves = moves * (1 - draws.chance(settings.static_camera, 1))
    things_move = moves * (1 - draws.chance(settings.static_things, 1))
    near = torch.cat(  # inverse depth from back to front
        [draws.uniform(1, low=0.2, high=0.9), draws.uniform(count - 1, low=0.9, high=1.8)], 1
    )
    near = near.sort(dim=1).values
    camera = smooth(4)  # x, y, roll, zoom
    camera = camera * camera_moves[..., None]
    pan = 2 * draws.spread(1, median=settings.camera_shift, deviation=settings.spread)
    pan_xy = camera[:, :2] * pan[..., None]  # (B, 2, T)

    own_scale = things_move.repeat(1, count)
    background = torch.zeros(count, device=device)
    background[0] = 1
    own_scale = own_scale * (1 - 0.7 * background)
    layer_motion = smooth(count, 8) * own_scale[..., None, None]  # (B, L, 8, T)
    shift = 2 * draws.spread(count, median=settings.shift, deviation=settings.spread)
    turn = draws.spread(count, median=settings.rotation, deviation=settings.spread)
    zoom = draws.spread(count, median=settings.zoom, deviation=settings.spread)
    center = draws.uniform(count, 2, low=-1.0, high=1.0) * (1 - background[:, None])

    x = (
        layer_motion[:, :, 0] * shift[..., None]
        + pan_xy[:, None, 0] * near[..., None]
        + center[:, :, :1]
    )
    y = (
        layer_motion[:, :, 1] * shift[..., None]
        + pan_xy[:, None, 1] * near[..., None]
        + center[:, :, 1:]
    )
    roll = layer_motion[:, :, 2] * turn[..., None] + camera[:, 2:3] * settings.rotation * 0.5
    growth = (
        layer_motion[:, :, 3] * zoom[..., None] + camera[:, 3:] * settings.zoom * near[..., None]
    )
    growth = growth.clamp(-0.9, 0.9)
    shear = (layer_motion[:, :, 4:6] * settings.shear).clamp(-0.4, 0.4)  # stretch along and across
    tilt = (layer_motion[:, :, 6:8] * settings.perspective).clamp(-0.2, 0.2)
    forward = _homography(x, y, roll, growth, shear, tilt)
    parts = None
    if settings.solids or settings.articulated:
        chances = (settings.solids, settings.articulated)
        motions = Motion(x, y, roll, growth)
        parts = join_layers(draws, smooth, chances, things_move, motions, forward)
        forward = parts.forward
    inverse = _inverted(forward)

    # Bends of the surface: one fixed on it that the camera's motion reveals, one that travels over
    # it.
    wave_angle = draws.uniform(count, BENDS, 2, high=2 * math.pi)
    wave_number = draws.uniform(count, BENDS, low=1.5, high=6.0)
    bend = draws.spread(count, BENDS, median=settings.bend, deviation=0.7)
    bend = bend * draws.chance(0.7, count, BENDS)
    bend = torch.minimum(bend, 0.2 / wave_number)  # so that a bend can be undone by iteration
    if parts is not None:
        bend = bend * ~parts.belongs[..., None]
    phase = draws.uniform(count, BENDS, high=2 * math.pi)
    wobble = smooth(count, 2) * things_move[..., None, None]
    relief = torch.tanh(pan_xy[:, :1] * 3).expand(-1, count, -1)
    strengths = (bend[..., :1] * relief, bend[..., 1:] * torch.tanh(wobble[:, :, 0]))
    phases = (per_layer(phase[..., 0]), phase[..., 1:] + 1.5 * wobble[:, :, 1])
    bends = []
    for k in range(BENDS):
        bends += [
            strengths[k] * wave_angle[..., k, :1].cos(),
            strengths[k] * wave_angle[..., k, :1].sin(),
            per_layer(wave_number[..., k] * wave_angle[..., k, 1].cos()),
            per_layer(wave_number[..., k] * wave_angle[..., k, 1].sin()),
            phases[k],
        ]

    # Outlines.
    size = torch.exp(
        draws.uniform(count, low=math.log(settings.sizes[0]), high=math.log(settings.sizes[1]))
    )
    aspect = torch.exp(0.45 * draws.normal(count))
    thin = draws.chance(settings.thin, count)
    aspect = torch.where(thin > 0, aspect.sign() * 12.0, aspect.clamp(0.4, 2.5))
    size = torch.where(thin > 0, size * 0.6 + 0.03, size)
    present = draws.chance(settings.present, count)
    lattice = draws.chance(settings.holes, count)
    lattice_rate = draws.uniform(count, low=8.0, high=30.0)
    striped = draws.chance(0.4, count)
    margin = torch.where(background > 0, 50.0, torch.where(present > 0, 0.0, -50.0))
    order = torch.arange(1, HARMONICS + 1, device=device)
    wiggle = 0.22 * draws.normal(count, 2, HARMONICS) / order
    sharpness = draws.uniform(count, low=0.4, high=1.0) * pixels_per_unit
    lattice_phase = draws.uniform(count, high=2 * math.pi)
    level = torch.where(lattice > 0, draws.uniform(count, low=-0.5, high=0.3), NO_HOLES)
    outline = [
        1 / (size * aspect.sqrt()),
        1 / (size / aspect.sqrt()),
        size / aspect.clamp(min=1).sqrt(),
        draws.chance(settings.boxes, count),
        lattice_rate,
        lattice_rate * (1 - striped),
        lattice_phase,
        level,
        margin,
        sharpness,
        *(wiggle[:, :, 0, k] for k in range(HARMONICS)),
        *(wiggle[:, :, 1, k] for k in range(HARMONICS)),
    ]
    outline = [per_layer(value) for value in outline]
    if parts is not None:
        outline = _with_parts(outline, parts)
    layers = torch.stack([*inverse, *bends, *outline])

    return Scene(
        layers,
        torch.stack(forward),
        draws.uniform(count),
        _texture_map(draws, settings, pixels_per_unit),
        _colors(draws, count),
        _light(draws, smooth, settings),
        draws.chance(settings.motion_blur, 1)[:, 0] * draws.uniform(1, high=0.5)[:, 0],
        _finish(draws, settings),
        draws,
    )


def _with_parts(outline: list[Tensor], parts: Parts) -> list[Tensor]:
    """Return the fields of outlines, with those of boxes for the parts of objects."""
    first, second = parts.half
    own = {
        "inverse_x": 1 / first[..., None],
        "inverse_y": 1 / second[..., None],
        "size": torch.minimum(first, second)[..., None],
        "is_box": torch.ones_like(first)[..., None],
        "lattice_level": torch.full_like(first, NO_HOLES)[..., None],
        "margin": torch.where(parts.is_seen, 0.0, -50.0),
    }
    names = Layer._fields[-len(outline) :]
    return [
        torch.where(parts.belongs[..., None], own[name], value) if name in own else value
        for name, value in zip(names, outline, strict=True)
    ]


def _texture_map(draws: Draws, settings: ProceduralSettings, pixels_per_unit: float) -> Tensor:
    """Return (B, L, 6): surface to texels, rotated, scaled, with a random offset."""
    count = settings.layers
    low, high = settings.texels_per_pixel
    rate = torch.exp(draws.uniform(count, low=math.log(low), high=math.log(high)))
    rate = rate * pixels_per_unit
    angle = draws.normal(count) * 0.5
    mirror = 1 - 2 * draws.chance(0.5, count)
    corner = draws.uniform(count, 2, high=settings.texture_size)
    rows = [
        rate * angle.cos() * mirror, -rate * angle.sin(), corner[..., 0],
        rate * angle.sin() * mirror, rate * angle.cos(), corner[..., 1],
    ]  # fmt: skip
    return torch.stack(rows, -1)


def _colors(draws: Draws, count: int) -> Tensor:
    """Return (B, L, 6): gain and offset of the channels, mostly the same for all three."""
    gain = torch.exp(0.2 * draws.normal(count, 1) + 0.06 * draws.normal(count, 3))
    offset = 18 * draws.normal(count, 1) + 5 * draws.normal(count, 3)
    return torch.cat([gain, offset], -1)


def _light(draws: Draws, smooth: object, settings: ProceduralSettings) -> Tensor:
    """(B, T, 12): see `Scene`."""
    assert callable(smooth)
    varies = draws.chance(settings.lights, 1, 1)
    gain = torch.exp(0.12 * settings.light * varies * smooth(1))[:, 0]
    rolls = draws.chance(settings.lights, 1)
    strength = rolls * draws.uniform(1, high=0.25 * settings.light)
    phase = 3 * smooth(1)[:, 0]
    wave = [strength.expand_as(gain), *(
        (6 * draws.uniform(1, low=-1.0)).expand_as(gain) for _ in range(2)
    ), phase]  # fmt: skip
    spots = []
    for _ in range(2):
        on = draws.chance(settings.lights, 1) * settings.light
        path = 0.6 * smooth(2) + draws.uniform(2, 1, low=-1.0, high=1.0)
        dark = (on * draws.uniform(1, low=-0.35, high=0.55)).expand_as(gain)
        narrow = draws.uniform(1, low=1.2, high=5.0).expand_as(gain)
        spots += [dark, path[:, 0], path[:, 1], narrow]
    return torch.stack([gain, *wave, *spots[:7]], -1)


def _finish(draws: Draws, settings: ProceduralSettings) -> Tensor:
    """(B, 4): see `Scene`."""
    blur = draws.chance(settings.blur, 1) * draws.uniform(1)
    gray = draws.chance(settings.gray, 1)
    noise = draws.chance(settings.noisy, 1) * draws.uniform(1, high=settings.noise)
    step = draws.chance(settings.compressed, 1) * draws.uniform(1, low=4.0, high=26.0)
    return torch.cat([blur, gray, noise, step], 1)


def _homography(
    x: Tensor, y: Tensor, roll: Tensor, growth: Tensor, shear: Tensor, tilt: Tensor
) -> list[Tensor]:
    """Return the homography of a surface: tilt, stretch, rotation and zoom, then shift."""
    scale = growth.exp()
    cos, sin = scale * roll.cos(), scale * roll.sin()
    along, across = shear[:, :, 0].exp(), shear[:, :, 1]
    # turn @ [[along, across], [0, 1]]
    a, b = cos * along, cos * across - sin
    c, d = sin * along, sin * across + cos
    gx, gy = tilt[:, :, 0], tilt[:, :, 1]
    return [a + x * gx, b + x * gy, x, c + y * gx, d + y * gy, y, gx, gy, torch.ones_like(x)]


def _inverted(h: list[Tensor]) -> list[Tensor]:
    """Return the inverse of a homography, scaled to end in 1 at the layer's center."""
    a, b, c, d, e, f, g, i, j = h
    adjugate = [
        e * j - f * i, c * i - b * j, b * f - c * e,
        f * g - d * j, a * j - c * g, c * d - a * f,
        d * i - e * g, b * g - a * i, a * e - b * d,
    ]  # fmt: skip
    determinant = a * adjugate[0] + b * adjugate[3] + c * adjugate[6]
    return [number / determinant for number in adjugate]


# --- where surfaces lie ----------------------------------------------------------------------


def to_image(layer: Layer, forward: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Map surface positions to image positions; `forward` has nine rows."""
    x, y = u, v
    for _ in range(INVERSIONS):  # undoes the bend
        along, across = bent(layer, x, y)
        x, y = u - along, v - across
    a, b, c, d, e, f, g, h, i = forward.unbind(0)
    depth = (g * x + h * y + i).clamp(min=LEAST_DEPTH)
    return (a * x + b * y + c) / depth, (d * x + e * y + f) / depth


def pick_layer(table: Tensor, chosen: Tensor) -> Tensor:
    """Select from (F, B, L, T) the layer of each of N points, (B, N): (F, B, T, N)."""
    fields, _, _, frames = table.shape
    index = chosen[None, :, :, None].expand(fields, -1, -1, frames)
    return table.gather(2, index).transpose(2, 3)


def pick_frame(table: Tensor, frame: Tensor) -> Tensor:
    """Select from (F, B, L, T) the frame of each of N points, (B, N): (F, B, L, N)."""
    fields, _, layers, _ = table.shape
    return table.gather(3, frame[None, :, None].expand(fields, -1, layers, -1))
