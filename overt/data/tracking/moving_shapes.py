"""Textured shapes that move over a moving background, with exact tracks and occlusions.

A point is fixed on its surface, and the formula that moves the point also renders the frames. T
frames, N points, S texels; (x, y) in pixels of the image, 0 at the center of the first pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.data.rng import sample_rng
from overt.data.tracking.kubric import Tracks

Array = NDArray[Any]

_OUTLINE_ANGLES = 720
_BEVEL_PIXELS = 4.0


@dataclass(frozen=True)
class SceneSettings:
    """Settings shared by a set of sequences."""

    frames: int
    height: int
    width: int
    points: int
    seed: int
    # shapes that move in front of the background
    shapes: int
    # pixels per frame: peak translation of the fastest shape
    speed: float


@dataclass(frozen=True)
class _Motion:
    """A similarity transform per frame, from the surface (u, v) to the image (x, y)."""

    centre_xy: Array  # (T, 2)
    zoom: Array  # (T,)
    matrix: Array  # (T, 2, 2) rotation times zoom

    def to_image(self, surface: Array) -> Array:
        """Map points (N, 2) of the surface to every frame (N, T, 2)."""
        image: Array = np.einsum("tij,nj->nti", self.matrix, surface) + self.centre_xy
        return image

    def to_surface(self, image: Array, frames: Any) -> Array:
        """Map points (..., 2) of the image, each in its frame, to the surface (..., 2)."""
        offset = image - self.centre_xy[frames]
        surface: Array = np.einsum("...ij,...j->...i", np.linalg.inv(self.matrix[frames]), offset)
        return surface


@dataclass(frozen=True)
class _Layer:
    """One textured surface; `outline` is its radius over the angle, None for the background."""

    texture: Array  # (S, S, 3) 0 to 255, one texel per unit of the surface, its middle at (0, 0)
    motion: _Motion
    outline: Array | None

    def inside(self, surface: Array) -> Array:
        """Return how far surface points (..., 2) are inside the outline; negative outside."""
        if self.outline is None:
            return np.full(surface.shape[:-1], np.inf)
        u, v = surface[..., 0], surface[..., 1]
        position = np.arctan2(v, u) / (2 * np.pi) % 1 * _OUTLINE_ANGLES
        lower = position.astype(np.intp)
        fraction = position - lower
        lower %= _OUTLINE_ANGLES  # the remainder of a tiny negative angle rounds up to the end
        upper = (lower + 1) % _OUTLINE_ANGLES
        radius = self.outline[lower] * (1 - fraction) + self.outline[upper] * fraction
        return radius - np.hypot(u, v)

    def color(self, surface: Array) -> Array:
        """Sample the texture bilinearly at surface points (..., 2); it repeats beyond its edge."""
        size = len(self.texture)
        position = surface + size // 2
        corner = np.floor(position)
        fraction_x, fraction_y = np.split((position - corner).astype(np.float32), 2, axis=-1)
        x0, y0 = np.moveaxis(corner.astype(np.intp) % size, -1, 0)
        x1, y1 = (x0 + 1) % size, (y0 + 1) % size
        texels = self.texture.reshape(-1, 3)

        def row(y: Array) -> Array:
            left, right = texels.take(y * size + x0, axis=0), texels.take(y * size + x1, axis=0)
            return _blend(left, right, fraction_x)

        return _blend(row(y0), row(y1), fraction_y)


def _blend(start: Array, end: Array, fraction: Array) -> Array:
    """Interpolate from `start` at 0 to `end` at 1; `end` is overwritten."""
    end -= start
    end *= fraction
    end += start
    return end


def make_sequence(settings: SceneSettings, index: int) -> tuple[NDArray[np.uint8], Tracks]:
    """Return frames (T, H, W, 3) and tracks of sequence `index`; depends only on the arguments."""
    rng = sample_rng(settings.seed, 0, index)
    layers = [_background(settings, rng)]
    layers += [_shape(settings, rng) for _ in range(settings.shapes)]
    return _render(layers, settings), _track(layers, settings, rng)


def _background(settings: SceneSettings, rng: np.random.Generator) -> _Layer:
    height, width = settings.height, settings.width
    reach = np.hypot(height, width) / 2
    motion = _motion(
        rng,
        settings.frames,
        middle_xy=np.array([width, height]) / 2,
        sway=0.15 * min(height, width),
        speed=0.4 * settings.speed,
        reach=reach,
    )
    size = int(2 ** np.ceil(np.log2(1.2 * max(height, width))))
    return _Layer(_texture(rng, size, saturation=0.45, brightness=0.75), motion, None)


def _shape(settings: SceneSettings, rng: np.random.Generator) -> _Layer:
    extent = np.array([settings.width, settings.height])
    radius = rng.uniform(0.13, 0.27) * extent.min()
    motion = _motion(
        rng,
        settings.frames,
        middle_xy=extent * rng.uniform(0.15, 0.85, 2),
        sway=rng.uniform(0.15, 0.35) * extent.min(),
        speed=rng.uniform(0.5, 1.0) * settings.speed,
        reach=radius,
    )
    outline = _outline(rng, radius)
    size = 2 * int(np.ceil(outline.max())) + 4
    return _Layer(_texture(rng, size, saturation=0.75, brightness=0.95), motion, outline)


def _motion(
    rng: np.random.Generator,
    frames: int,
    middle_xy: Array,
    sway: float,
    speed: float,
    reach: float,
) -> _Motion:
    """Sample an oscillating, rotating, scaling motion with a similar speed at `reach`."""
    xy = _swing(rng, frames, np.full(2, sway), speed / np.sqrt(2))
    angle = _swing(rng, frames, np.array([rng.uniform(0.3, 1.2)]), 0.5 * speed / reach)[:, 0]
    zoom = np.exp(_swing(rng, frames, np.array([0.15]), 0.25 * speed / reach)[:, 0])
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=-1)
    return _Motion(middle_xy + xy, zoom, zoom[:, None, None] * turn.reshape(frames, 2, 2))


def _swing(rng: np.random.Generator, frames: int, amplitude: Array, speed: float) -> Array:
    """Return sine waves (T, D) with amplitudes (D) that change by at most `speed` per frame."""
    phase = rng.uniform(0, 2 * np.pi, amplitude.shape)
    rate = speed / amplitude * rng.uniform(0.6, 1.0, amplitude.shape)
    return amplitude * np.sin(np.arange(frames)[:, None] * rate + phase)


def _outline(rng: np.random.Generator, radius: float) -> Array:
    """Return the radius of an ellipse, a polygon or a blob at evenly spaced angles."""
    angle = np.arange(_OUTLINE_ANGLES) * (2 * np.pi / _OUTLINE_ANGLES)
    kind = rng.integers(3)
    if kind == 0:
        stretch = rng.uniform(0.55, 0.9)
        outline = radius / np.hypot(np.cos(angle), np.sin(angle) / stretch)
    elif kind == 1:
        sector = 2 * np.pi / rng.integers(3, 7)
        outline = radius * np.cos(sector / 2) / np.cos(angle % sector - sector / 2)
    else:
        waves = np.arange(2, 6)[:, None]
        phase = rng.uniform(0, 2 * np.pi, waves.shape)
        weight = rng.uniform(0.04, 0.14, waves.shape) / np.sqrt(waves - 1)
        outline = radius * (0.85 + (weight * np.cos(waves * angle + phase)).sum(axis=0))
    return np.roll(outline, rng.integers(_OUTLINE_ANGLES))


def _texture(
    rng: np.random.Generator, size: int, saturation: float, brightness: float
) -> NDArray[np.float32]:
    """Return veins and grain in a palette of four colors, (S, S, 3), seamless when repeated."""
    # Nothing finer than about four texels: bilinear sampling would blur it differently as it moves.
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size))  # (S, S // 2 + 1)
    wavelength = 1 / np.maximum(frequency, 1 / size)
    gate = 1 / (1 + np.exp((5 - wavelength) / 0.5))
    veins, grain = _noise(rng, size, np.stack([gate * wavelength**1.6, gate * wavelength**0.6]))
    position = (0.5 + 0.5 * np.sin(2.2 * veins + rng.uniform(0, 2 * np.pi))) * 3
    hues = rng.uniform() + np.cumsum(rng.uniform(0.06, 0.22, 4))
    values = rng.permutation(np.array([0.35, 0.6, 0.85, 1.0])) * brightness
    palette = _hsv(hues, saturation * rng.uniform(0.6, 1.2, 4), values)  # (4, 3)
    lower = np.minimum(position.astype(np.intp), 2)
    fraction = (position - lower)[..., None]
    color = palette[lower] * (1 - fraction) + palette[lower + 1] * fraction
    shade = 1 + 0.17 * np.clip(grain, -2.5, 2.5)
    texture: Array = 255 * np.clip(color * shade[..., None], 0.02, 1.0)
    return texture.astype(np.float32)


def _noise(rng: np.random.Generator, size: int, spectrum: Array) -> Array:
    """Return periodic noise (C, S, S) of unit variance with spectra (C, S, S // 2 + 1)."""
    white = np.fft.rfft2(rng.standard_normal((len(spectrum), size, size)))
    white[:, 0, 0] = 0
    fields = np.fft.irfft2(white * spectrum, s=(size, size))
    normalised: Array = fields / fields.std(axis=(1, 2), keepdims=True)
    return normalised


def _hsv(hue: Array, saturation: Array, value: Array) -> Array:
    """Colors (C, 3) in 0 to 1."""
    sector = (np.array([5, 3, 1]) + hue[:, None] * 6) % 6
    strength = np.clip(np.minimum(sector, 4 - sector), 0, 1)
    colors: Array = value[:, None] * (1 - np.clip(saturation, 0, 1)[:, None] * strength)
    return colors


def _render(layers: list[_Layer], settings: SceneSettings) -> NDArray[np.uint8]:
    """Paint the layers from back to front, (T, H, W, 3)."""
    height, width = settings.height, settings.width
    video = np.empty((settings.frames, height, width, 3), dtype=np.uint8)
    for frame in range(settings.frames):
        canvas = np.empty((height, width, 3), dtype=np.float32)
        for layer in layers:
            left, top, right, bottom = _bounds(layer, frame, width, height)
            if left >= right or top >= bottom:
                continue
            grid = np.stack(np.meshgrid(np.arange(left, right), np.arange(top, bottom)), axis=-1)
            surface = layer.motion.to_surface(grid, frame)
            window = canvas[top:bottom, left:right]
            color = layer.color(surface)
            if layer.outline is None:
                window[:] = color
                continue
            depth = layer.inside(surface)[..., None].astype(np.float32)
            # Half covered on the outline itself, where the visibility of a track changes.
            cover = np.clip(0.5 + depth * layer.motion.zoom[frame], 0, 1)
            color *= 0.55 + 0.45 * np.clip(depth / _BEVEL_PIXELS, 0, 1)
            window += cover * (color - window)
        video[frame] = np.rint(canvas)
    return video


def _bounds(layer: _Layer, frame: int, width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom of the pixels that the layer can touch."""
    if layer.outline is None:
        return 0, 0, width, height
    reach = layer.outline.max() * layer.motion.zoom[frame] + 1
    x, y = layer.motion.centre_xy[frame]
    return (
        max(int(x - reach), 0),
        max(int(y - reach), 0),
        min(int(x + reach) + 2, width),
        min(int(y + reach) + 2, height),
    )


def _track(layers: list[_Layer], settings: SceneSettings, rng: np.random.Generator) -> Tracks:
    """Track points, each picked on the front surface at a random pixel of a random frame."""
    count, frames = settings.points, settings.frames
    extent = np.array([settings.width - 1, settings.height - 1])
    start_frame = rng.integers(frames, size=count)
    start_xy = rng.uniform(0, 1, (count, 2)) * extent
    coords = np.empty((count, frames, 2))
    owner = np.full(count, -1)
    for index in reversed(range(len(layers))):
        surface = layers[index].motion.to_surface(start_xy, start_frame)
        mine = (owner < 0) & (layers[index].inside(surface) > 0)
        owner[mine] = index
        coords[mine] = layers[index].motion.to_image(surface[mine])
    visible = np.asarray(((coords >= 0) & (coords <= extent)).all(axis=-1))  # (N, T)
    for index, layer in enumerate(layers):
        behind = owner < index
        surface = layer.motion.to_surface(coords[behind], np.arange(frames))
        visible[behind] &= layer.inside(surface) <= 0
    return Tracks(coords.astype(np.float32), visible)
