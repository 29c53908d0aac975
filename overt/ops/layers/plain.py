"""Layers with textures that move: the place of a surface that a pixel shows, and its color.

B clips, L layers from back to front, T frames, H x W pixels; positions (x, y) are in half image
sides from the middle of the image, on surfaces as well.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SOLID = 0.5  # an outline is where the cover passes this
LEAST_DEPTH = 0.15  # nothing comes closer to the camera, relative to the middle of its layer
BLUR_TAPS = (-1.0, 1.0)  # beside the middle one
LONGEST_BLUR = 8.0  # texels to either side of a tap
ALMOST_NOTHING = 0.02  # of a pixel that a layer covers
MOVES = 19  # of the fields of a layer: those that say where its surface is


class Layer(NamedTuple):
    """A layer, or layers, in frames: tensors that are broadcast against positions."""

    # image to surface, row by row
    m00: Tensor
    m01: Tensor
    m02: Tensor
    m10: Tensor
    m11: Tensor
    m12: Tensor
    m20: Tensor
    m21: Tensor
    m22: Tensor
    # two bends: direction with amplitude, wave vector, phase
    ax: Tensor
    ay: Tensor
    awx: Tensor
    awy: Tensor
    aphase: Tensor
    bx: Tensor
    by: Tensor
    bwx: Tensor
    bwy: Tensor
    bphase: Tensor
    # outline: one over its half axes, a disc (0) or a box (1), a lattice that cuts holes into it
    inverse_x: Tensor
    inverse_y: Tensor
    size: Tensor
    is_box: Tensor
    lattice_x: Tensor
    lattice_y: Tensor
    lattice_phase: Tensor
    lattice_level: Tensor
    margin: Tensor  # added to the distance from the outline: large for a background
    sharpness: Tensor  # cover gained per half image side across the outline
    c1: Tensor
    c2: Tensor
    c3: Tensor
    c4: Tensor
    c5: Tensor
    s1: Tensor
    s2: Tensor
    s3: Tensor
    s4: Tensor
    s5: Tensor


def bent(layer: Layer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """How far a bend moves positions on a surface."""
    a = torch.sin(layer.awx * x + layer.awy * y + layer.aphase)
    b = torch.sin(layer.bwx * x + layer.bwy * y + layer.bphase)
    return layer.ax * a + layer.bx * b, layer.ay * a + layer.by * b


def to_surface(layer: Layer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The place of the surface that positions of the image show."""
    depth = (layer.m20 * x + layer.m21 * y + layer.m22).clamp(min=LEAST_DEPTH)
    u = (layer.m00 * x + layer.m01 * y + layer.m02) / depth
    v = (layer.m10 * x + layer.m11 * y + layer.m12) / depth
    along, across = bent(layer, u, v)
    return u + along, v + across


def cover(layer: Layer, u: Tensor, v: Tensor) -> Tensor:
    """How much of a place of a surface is there, 0 to 1."""
    x, y = u * layer.inverse_x, v * layer.inverse_y
    radius = (x * x + y * y + 1e-8).sqrt()
    cos, sin = x / radius, y / radius
    outline = 1 + layer.c1 * cos + layer.s1 * sin
    re, im = cos, sin
    pairs = ((layer.c2, layer.s2), (layer.c3, layer.s3), (layer.c4, layer.s4), (layer.c5, layer.s5))
    for even, odd in pairs:
        re, im = re * cos - im * sin, re * sin + im * cos
        outline = outline + even * re + odd * im
    disc = outline - radius
    box = 1 - torch.maximum(x.abs(), y.abs())
    distance = torch.where(layer.is_box > 0, box, disc) * layer.size
    waves = torch.cos(layer.lattice_x * u + layer.lattice_phase) * torch.cos(layer.lattice_y * v)
    holes = (waves - layer.lattice_level) / layer.lattice_x
    distance = torch.minimum(distance, holes.clamp(min=-1) + (layer.margin > 0) * 50)
    return ((distance + layer.margin) * layer.sharpness + SOLID).clamp(0, 1)


def shade_plain(
    layers: Tensor,
    texture_map: Tensor,
    texture_index: Tensor,
    color: Tensor,
    light: Tensor,
    shutter: Tensor,
    textures: Tensor,
    size: tuple[int, int],
) -> Tensor:
    """The definition of `api.shade`."""
    _, batch, count, frames = layers.shape
    shape = (batch, frames, *size)
    x, y = _pixel_grid(size, layers.device)
    top = torch.zeros(shape, dtype=torch.int32, device=x.device)
    under, top_cover = top, torch.ones(shape, device=x.device)
    top_u = top_v = under_u = under_v = torch.zeros(shape, device=x.device)
    for number in range(count):  # from back to front
        layer = Layer(*layers[:, :, number, :, None, None].unbind(0))
        u, v = to_surface(layer, x, y)
        covers = cover(layer, u, v)
        is_visible = covers > ALMOST_NOTHING
        solid = is_visible & (top_cover >= SOLID)  # what was on top before is seen through the edge
        under = torch.where(solid, top, under)
        under_u, under_v = torch.where(solid, top_u, under_u), torch.where(solid, top_v, under_v)
        top = torch.where(is_visible, number, top)
        top_u, top_v = torch.where(is_visible, u, top_u), torch.where(is_visible, v, top_v)
        top_cover = torch.where(is_visible, covers, top_cover)

    # How far the texture moves while the shutter is open.
    earlier = _previous_surface(layers, top, x, y)
    open_for = shutter[:, None, None, None]
    blur_u, blur_v = (top_u - earlier[0]) * open_for, (top_v - earlier[1]) * open_for
    colors = _texels(textures, texture_index, texture_map, color, top, top_u, top_v, blur_u, blur_v)
    nothing = torch.zeros_like(blur_u)
    behind = _texels(
        textures,
        texture_index,
        texture_map,
        color,
        under,
        under_u,
        under_v,
        nothing,
        nothing,
        taps=(),
    )
    top_cover = top_cover[:, :, None]
    colors = colors * top_cover + behind * (1 - top_cover)

    gain, strength, wave_x, wave_y, phase, *spots = light[:, :, :, None, None].unbind(2)
    shade = gain * (1 + strength * torch.sin(wave_x * x + wave_y * y + phase))
    for dark, spot_x, spot_y, narrow in (spots[:4], (*spots[4:], spots[3])):
        distance = ((x - spot_x) * narrow) ** 2 + ((y - spot_y) * narrow) ** 2
        shade = shade * (1 - dark * torch.exp(-distance))
    return (colors * shade[:, :, None]).clamp(0, 255)


def _previous_surface(layers: Tensor, top: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What the same layer showed at the same pixels in the frame before."""
    fields, batch, count, frames = layers.shape
    before = torch.cat([layers[..., :1], layers[..., :-1]], -1)
    table = before[:MOVES].permute(1, 3, 2, 0).reshape(batch * frames * count, MOVES)
    first = torch.arange(batch * frames, device=x.device, dtype=torch.int32) * count
    row = first.view(batch, frames, 1, 1) + top
    values = [table[:, field][row] for field in range(MOVES)]
    unused = [values[0]] * (fields - MOVES)
    return to_surface(Layer(*values, *unused), x, y)


def _texels(
    textures: Tensor,
    texture_index: Tensor,
    texture_map: Tensor,
    color: Tensor,
    chosen: Tensor,  # (B, T, H, W) layer of each pixel
    u: Tensor,
    v: Tensor,
    blur_u: Tensor,
    blur_v: Tensor,
    taps: tuple[float, ...] = BLUR_TAPS,
) -> Tensor:
    """Colors (B, T, 3, H, W) of positions on surfaces, averaged along the blur."""
    batch, count, _ = texture_map.shape
    row = torch.arange(batch, device=u.device, dtype=torch.int32).view(-1, 1, 1, 1) * count + chosen
    xx, xy, x0, yx, yy, y0 = (part.reshape(-1)[row] for part in texture_map.unbind(-1))
    number = texture_index.reshape(-1)[row]
    x, y = xx * u + xy * v + x0, yx * u + yy * v + y0
    move_x = (xx * blur_u + xy * blur_v).clamp(-LONGEST_BLUR, LONGEST_BLUR)
    move_y = (yx * blur_u + yy * blur_v).clamp(-LONGEST_BLUR, LONGEST_BLUR)
    red, green, blue = _bilinear(textures, number, x, y)
    for tap in taps:
        tap_color = _bilinear(textures, number, x + tap * move_x, y + tap * move_y)
        red, green, blue = red + tap_color[0], green + tap_color[1], blue + tap_color[2]
    weight = 1 / (1 + len(taps))
    parts = [part.reshape(-1)[row] for part in color.unbind(-1)]
    channels = (red, green, blue)
    return torch.stack(
        [channels[k] * weight * parts[k] + parts[3 + k] for k in range(3)], dim=2
    ).clamp(0, 255)


def _bilinear(
    textures: Tensor, number: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Red, green and blue of textures between their texels; beyond an edge they are mirrored."""
    side = textures.shape[1]
    table = textures.reshape(-1)
    left, above = x.floor(), y.floor()
    part_x, part_y = x - left, y - above
    left, above = left.int(), above.int()
    columns = (_mirrored(left, side), _mirrored(left + 1, side))
    rows = (_mirrored(above, side), _mirrored(above + 1, side))
    first = number * (side * side)
    red = green = blue = torch.zeros_like(x)
    for row, down in ((rows[0], 1 - part_y), (rows[1], part_y)):
        for column, right in ((columns[0], 1 - part_x), (columns[1], part_x)):
            texel = table[first + row * side + column]
            weight = down * right
            red = red + weight * (texel & 255)
            green = green + weight * ((texel >> 8) & 255)
            blue = blue + weight * ((texel >> 16) & 255)
    return red, green, blue


def _mirrored(index: Tensor, side: int) -> Tensor:
    """Indices folded into 0 .. side - 1."""
    inside = index.remainder(2 * side)
    return torch.minimum(inside, 2 * side - 1 - inside)


def _pixel_grid(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """x (1, 1, 1, W) and y (1, 1, H, 1) of pixels in half sides of the image from its middle."""
    height, width = size
    half = min(size) / 2
    x = (torch.arange(width, device=device) - (width - 1) / 2) / half
    y = (torch.arange(height, device=device) - (height - 1) / 2) / half
    return x.view(1, 1, 1, -1), y.view(1, 1, -1, 1)
