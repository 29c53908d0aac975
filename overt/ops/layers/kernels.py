"""A Triton kernel of `shade_plain`: every pixel is computed by one program, in one launch.

The plain definition reads and writes a whole clip some 900 times. Fields of a layer are numbered as
in `plain.Layer`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from overt.ops.layers import plain

SOLID = tl.constexpr(plain.SOLID)
LEAST_DEPTH = tl.constexpr(plain.LEAST_DEPTH)
ALMOST_NOTHING = tl.constexpr(plain.ALMOST_NOTHING)
LONGEST_BLUR = tl.constexpr(plain.LONGEST_BLUR)
BLOCK = 256


@triton.jit
def _surface(layer, x, y):
    """Where the surface is that positions show; `layer` points to the fields of one, or of each."""
    depth = tl.load(layer + 6) * x + tl.load(layer + 7) * y + tl.load(layer + 8)
    depth = tl.maximum(depth, LEAST_DEPTH)
    u = (tl.load(layer) * x + tl.load(layer + 1) * y + tl.load(layer + 2)) / depth
    v = (tl.load(layer + 3) * x + tl.load(layer + 4) * y + tl.load(layer + 5)) / depth
    a = tl.sin(tl.load(layer + 11) * u + tl.load(layer + 12) * v + tl.load(layer + 13))
    b = tl.sin(tl.load(layer + 16) * u + tl.load(layer + 17) * v + tl.load(layer + 18))
    along = tl.load(layer + 9) * a + tl.load(layer + 14) * b
    across = tl.load(layer + 10) * a + tl.load(layer + 15) * b
    return u + along, v + across


@triton.jit
def _cover(layer, u, v):
    """How much of a place of a surface is there, 0 to 1."""
    x = u * tl.load(layer + 19)
    y = v * tl.load(layer + 20)
    radius = tl.sqrt(x * x + y * y + 1e-8)
    cos = x / radius
    sin = y / radius
    outline = 1 + tl.load(layer + 29) * cos + tl.load(layer + 34) * sin
    re = cos
    im = sin
    for order in tl.static_range(1, 5):
        turned = re * cos - im * sin
        im = re * sin + im * cos
        re = turned
        outline += tl.load(layer + 29 + order) * re + tl.load(layer + 34 + order) * im
    box = 1 - tl.maximum(tl.abs(x), tl.abs(y))
    distance = tl.where(tl.load(layer + 22) > 0, box, outline - radius) * tl.load(layer + 21)
    rate = tl.load(layer + 23)
    waves = tl.cos(rate * u + tl.load(layer + 25)) * tl.cos(tl.load(layer + 24) * v)
    margin = tl.load(layer + 27)
    holes = tl.maximum((waves - tl.load(layer + 26)) / rate, -1.0)
    distance = tl.minimum(distance, holes + tl.where(margin > 0, 50.0, 0.0))
    covers = (distance + margin) * tl.load(layer + 28) + SOLID
    return tl.minimum(tl.maximum(covers, 0.0), 1.0)


@triton.jit
def _mirrored(index, side):
    inside = index % (2 * side)
    inside = tl.where(inside < 0, inside + 2 * side, inside)
    return tl.minimum(inside, 2 * side - 1 - inside)


@triton.jit
def _bilinear(texture, x, y, side):
    """Red, green and blue between texels; beyond an edge textures are mirrored."""
    left = tl.floor(x)
    above = tl.floor(y)
    part_x = x - left
    part_y = y - above
    red = tl.zeros_like(x)
    green = tl.zeros_like(x)
    blue = tl.zeros_like(x)
    for corner in tl.static_range(4):
        row = _mirrored(above.to(tl.int32) + corner // 2, side)
        column = _mirrored(left.to(tl.int32) + corner % 2, side)
        texel = tl.load(texture + row * side + column)
        down = part_y if corner // 2 else 1 - part_y
        right = part_x if corner % 2 else 1 - part_x
        red += down * right * (texel & 255).to(tl.float32)
        green += down * right * ((texel >> 8) & 255).to(tl.float32)
        blue += down * right * ((texel >> 16) & 255).to(tl.float32)
    return red, green, blue


@triton.jit
def _colored(channel, color, TAPS: tl.constexpr):
    value = channel * (1.0 / TAPS) * tl.load(color) + tl.load(color + 3)
    return tl.minimum(tl.maximum(value, 0.0), 255.0)


@triton.jit
def _texels(
    textures, texture_index, maps, colors, row, u, v, blur_u, blur_v, side, BLURRED: tl.constexpr
):
    """Colors of positions on surfaces, averaged along the blur; `row`: the layer of each pixel."""
    to_texel = maps + row * 6
    texture = textures + tl.load(texture_index + row).to(tl.int64) * side * side
    xx = tl.load(to_texel)
    xy = tl.load(to_texel + 1)
    yx = tl.load(to_texel + 3)
    yy = tl.load(to_texel + 4)
    x = xx * u + xy * v + tl.load(to_texel + 2)
    y = yx * u + yy * v + tl.load(to_texel + 5)
    red, green, blue = _bilinear(texture, x, y, side)
    TAPS: tl.constexpr = 3 if BLURRED else 1
    if BLURRED:
        move_x = xx * blur_u + xy * blur_v
        move_y = yx * blur_u + yy * blur_v
        move_x = tl.minimum(tl.maximum(move_x, -LONGEST_BLUR), LONGEST_BLUR)
        move_y = tl.minimum(tl.maximum(move_y, -LONGEST_BLUR), LONGEST_BLUR)
        for tap in tl.static_range(-1, 2, 2):
            more_red, more_green, more_blue = _bilinear(
                texture, x + tap * move_x, y + tap * move_y, side
            )
            red += more_red
            green += more_green
            blue += more_blue
    color = colors + row * 6
    return (
        _colored(red, color, TAPS),
        _colored(green, color + 1, TAPS),
        _colored(blue, color + 2, TAPS),
    )


@triton.jit
def _spot(light, narrow, x, y):
    across = (x - tl.load(light + 1)) * narrow
    down = (y - tl.load(light + 2)) * narrow
    return 1 - tl.load(light) * tl.exp(-(across * across + down * down))


@triton.jit
def _shade(
    layers, maps, texture_index, colors, lights, shutters, textures, out,
    frames, height, width, side, half,
    LAYERS: tl.constexpr, FIELDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    frame = tl.program_id(1)  # of all clips
    clip = frame // frames
    pixels = height * width
    x = ((pixel % width).to(tl.float32) - (width - 1) / 2) / half
    y = ((pixel // width).to(tl.float32) - (height - 1) / 2) / half
    table = layers + frame * LAYERS * FIELDS
    nothing = tl.zeros([BLOCK], tl.float32)
    top = tl.zeros([BLOCK], tl.int32)
    under = tl.zeros([BLOCK], tl.int32)
    top_u = nothing
    top_v = nothing
    under_u = nothing
    under_v = nothing
    top_cover = nothing + 1
    for number in range(LAYERS):  # from back to front
        layer = table + number * FIELDS
        u, v = _surface(layer, x, y)
        covers = _cover(layer, u, v)
        is_visible = covers > ALMOST_NOTHING
        solid = is_visible & (top_cover >= SOLID)  # what was on top before is seen through the edge
        under = tl.where(solid, top, under)
        under_u = tl.where(solid, top_u, under_u)
        under_v = tl.where(solid, top_v, under_v)
        top = tl.where(is_visible, number, top)
        top_u = tl.where(is_visible, u, top_u)
        top_v = tl.where(is_visible, v, top_v)
        top_cover = tl.where(is_visible, covers, top_cover)

    # How far the texture moves while the shutter is open.
    before = tl.where(frame % frames == 0, frame, frame - 1)
    earlier_u, earlier_v = _surface(layers + (before * LAYERS + top) * FIELDS, x, y)
    shutter = tl.load(shutters + clip)
    blur_u = (top_u - earlier_u) * shutter
    blur_v = (top_v - earlier_v) * shutter
    first = clip * LAYERS
    red, green, blue = _texels(
        textures, texture_index, maps, colors, first + top, top_u, top_v, blur_u, blur_v, side, True
    )
    more_red, more_green, more_blue = _texels(
        textures,
        texture_index,
        maps,
        colors,
        first + under,
        under_u,
        under_v,
        nothing,
        nothing,
        side,
        False,
    )

    light = lights + frame * 12
    angle = tl.load(light + 2) * x + tl.load(light + 3) * y + tl.load(light + 4)
    shade = tl.load(light) * (1 + tl.load(light + 1) * tl.sin(angle))
    narrow = tl.load(light + 8)
    shade = shade * _spot(light + 5, narrow, x, y) * _spot(light + 9, narrow, x, y)
    inside = pixel < pixels
    address = out + frame.to(tl.int64) * 3 * pixels + pixel
    behind = 1 - top_cover
    red = (red * top_cover + more_red * behind) * shade
    green = (green * top_cover + more_green * behind) * shade
    blue = (blue * top_cover + more_blue * behind) * shade
    tl.store(address, tl.minimum(tl.maximum(red, 0.0), 255.0), mask=inside)
    tl.store(address + pixels, tl.minimum(tl.maximum(green, 0.0), 255.0), mask=inside)
    tl.store(address + 2 * pixels, tl.minimum(tl.maximum(blue, 0.0), 255.0), mask=inside)


def shade_fused(
    layers: Tensor,
    texture_map: Tensor,
    texture_index: Tensor,
    color: Tensor,
    light: Tensor,
    shutter: Tensor,
    textures: Tensor,
    size: tuple[int, int],
) -> Tensor:
    """`shade_plain` in one launch."""
    fields, batch, count, frames = layers.shape
    height, width = size
    table = layers.permute(1, 3, 2, 0).contiguous()  # (B, T, L, fields): a layer's are neighbors
    out = torch.empty(batch, frames, 3, height, width, device=layers.device)
    grid = (triton.cdiv(height * width, BLOCK), batch * frames)
    _shade[grid](
        table, texture_map.contiguous(), texture_index.contiguous(), color.contiguous(),
        light.contiguous(), shutter.contiguous(), textures.contiguous(), out,
        frames, height, width, textures.shape[1], min(size) / 2,
        LAYERS=count, FIELDS=fields, BLOCK=BLOCK,
    )  # fmt: skip
    return out
