"""Pictures and videos of tracks: points, their trails, and the truth if known.

T frames, N points; positions (x, y) in pixels of the video, 0 at the center of the first pixel.
"""

from __future__ import annotations

import colorsys
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from overt.progress import each

POINTS_DRAWN = 24
PANEL_WIDTH = 200  # pixels to which the frames of small videos are enlarged
FRAMES_FILMED = 48  # at most: a video of a run's log is looked at, not measured

_SUPERSAMPLE = 3  # drawn larger and shrunk: smooth lines and circles
_GAP = 6
_PAPER = (250, 250, 250)
_INK = (60, 60, 60)
_RADIUS = 2.6  # of a point, where lines are one and a half wide
_CALM, _LIVELY = 0.5, 0.62  # of pictures and of videos


def draw_tracks(
    video: Tensor,  # (T, 3, H, W) uint8
    tracks: Tensor,  # (T, N, 2) pixels
    visible: Tensor,  # (T, N) bool
    *,
    truth: Tensor | None = None,  # (T, N, 2) pixels
    truth_visible: Tensor | None = None,  # (T, N) bool; left out: everywhere
    columns: int = 5,
    trail: int = 8,
    scale: int = 3,
) -> Tensor:
    """Draw some frames side by side with every point and where it was in the last `trail` frames.

    A point is a disc where it is visible and a ring where it is occluded. With `truth` there is a
    second row for it, and white lines in the first lead from each prediction to its true place.
    """
    frames, _, height, width = video.shape
    _check_shapes(video, tracks, visible, truth, truth_visible)
    images = video.permute(0, 2, 3, 1).cpu().numpy()  # (T, H, W, 3)
    predicted = _positions(tracks)
    visible_mask = visible.cpu().numpy().astype(bool)
    shown = np.unique(np.linspace(0, frames - 1, min(columns, frames)).round().astype(int))
    rows = [("predicted" if truth is not None else "", predicted, visible_mask)]
    target = None
    if truth is not None:
        target = _positions(truth)
        truth_mask = (
            np.ones_like(visible_mask) if truth_visible is None else truth_visible.cpu().numpy()
        )
        rows.append(("true", target, truth_mask.astype(bool)))
    colors = _colors(rows[-1][1], rows[-1][2], height, width)

    font = ImageFont.load_default(size=13)
    label_width = 24 if truth is not None else 0
    caption_height = 20
    panel = (width * scale, height * scale)
    sheet = Image.new(
        "RGB",
        (
            label_width + _GAP + len(shown) * (panel[0] + _GAP),
            caption_height + len(rows) * (panel[1] + _GAP),
        ),
        _PAPER,
    )
    pen = ImageDraw.Draw(sheet)
    for column, frame in enumerate(shown):
        left = label_width + _GAP + column * (panel[0] + _GAP)
        pen.text((left + 1, 2), f"frame {frame}", fill=_INK, font=font)
        for row, (_, positions, row_seen) in enumerate(rows):
            picture = _panel(
                images[frame],
                positions[max(0, frame - trail) : frame + 1],
                row_seen[max(0, frame - trail) : frame + 1],
                colors,
                None if target is None or row else target[frame],
                scale,
                _RADIUS * max(scale, 2) / 2.6,  # sizes follow the scale
                _CALM,
            )
            sheet.paste(picture, (left, caption_height + row * (panel[1] + _GAP)))
    for row, (label, _, _) in enumerate(rows):
        if label:
            _write_upwards(sheet, label, caption_height + row * (panel[1] + _GAP), panel[1], font)
    return torch.from_numpy(np.array(sheet)).permute(2, 0, 1).contiguous()


def draw_video(
    video: Tensor,  # (T, 3, H, W) uint8
    tracks: Tensor,  # (T, N, 2) pixels
    visible: Tensor,  # (T, N) bool
    *,
    trail: int = 16,
    scale: int = 1,
) -> Tensor:
    """Draw every point with a trail that fades over `trail` frames, (T, 3, H, W) times `scale`.

    A point is a disc where it is visible and a ring where it is occluded; the more points there
    are, the smaller they get. Its color says where in the image it was first seen.
    """
    _check_shapes(video, tracks, visible)
    height, width = video.shape[-2:]
    images = video.permute(0, 2, 3, 1).cpu().numpy()  # (T, H, W, 3)
    positions, visible_mask = _positions(tracks), visible.cpu().numpy().astype(bool)
    colors = _colors(positions, visible_mask, height, width)
    spacing = scale * math.sqrt(height * width / max(len(colors), 1))
    largest = max(3.0, 0.008 * scale * max(height, width))
    radius = min(max(0.11 * spacing, 1.3), largest)
    result = torch.empty(len(video), 3, height * scale, width * scale, dtype=torch.uint8)
    for frame, image in enumerate(each(list(images), "drawing frames")):
        past = slice(max(0, frame - trail), frame + 1)
        drawn = _panel(
            image, positions[past], visible_mask[past], colors, None, scale, radius, _LIVELY, trail
        )
        result[frame] = torch.from_numpy(np.array(drawn)).permute(2, 0, 1)
    return result


def save_image(path: Path | str, image: Tensor) -> None:
    """Write a (3, H, W) uint8 image as PNG."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy()).save(path, format="PNG")


def _check_shapes(
    video: Tensor,
    tracks: Tensor,
    visible: Tensor,
    truth: Tensor | None = None,
    truth_visible: Tensor | None = None,
) -> None:
    frames, points = len(video), tracks.shape[1]
    for name, value, shape in (
        ("tracks", tracks, (frames, points, 2)),
        ("visible", visible, (frames, points)),
        ("truth", truth, (frames, points, 2)),
        ("truth_visible", truth_visible, (frames, points)),
    ):
        if value is not None and value.shape != shape:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}, expected {shape} as video and tracks say"
            )


def _positions(tracks: Tensor) -> NDArray[np.float64]:
    """To numpy; a prediction may be NaN or far off, which Pillow does not take."""
    positions = tracks.detach().double().cpu().clamp(-1e4, 1e4).numpy()
    return np.asarray(positions)


def _colors(
    positions: NDArray[Any], visible_mask: NDArray[Any], height: int, width: int
) -> list[tuple[int, int, int]]:
    """A color per point from where it is first seen: hue by direction, paler near the middle."""
    first = visible_mask.argmax(axis=0)  # (N,)
    x, y = np.nan_to_num(positions[first, np.arange(positions.shape[1])]).T
    across, down = 2 * x / max(width - 1, 1) - 1, 2 * y / max(height - 1, 1) - 1
    hues = np.arctan2(down, across) / (2 * math.pi) % 1
    saturations = np.clip(0.3 + 0.55 * np.hypot(across, down), 0, 0.85)
    colors = []
    for hue, saturation in zip(hues, saturations, strict=True):
        red, green, blue = colorsys.hsv_to_rgb(hue, saturation, 1.0)
        colors.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colors


def _panel(
    image: NDArray[np.uint8],  # (H, W, 3)
    positions: NDArray[Any],  # (trail + 1, N, 2)
    visible_mask: NDArray[Any],  # (trail + 1, N)
    colors: list[tuple[int, int, int]],
    target: NDArray[Any] | None,  # (N, 2)
    scale: int,
    radius: float,  # of a point, in pixels of the panel
    liveliness: float,  # how much of the video's colors is kept, 0 to 1
    fade: int | None = None,  # frames until a trail is gone; left out: as many as there are
) -> Image.Image:
    height, width = image.shape[:2]
    # Duller than the video, so that the points stand out.
    gray = 0.5 * image.mean(axis=-1, keepdims=True) + 0.5 * 60
    calm = (liveliness * image + (1 - liveliness) * gray).astype(np.uint8)
    picture = Image.fromarray(calm).resize(
        (width * scale, height * scale), Image.Resampling.BICUBIC
    )
    factor = scale * _SUPERSAMPLE
    overlay = Image.new("RGBA", (width * factor, height * factor), (0, 0, 0, 0))
    pen = ImageDraw.Draw(overlay)
    pixels = (positions + 0.5) * factor - 0.5  # pixel centers of the enlarged picture
    unit = _SUPERSAMPLE * radius / _RADIUS
    length = len(pixels) - 1
    fade = length if fade is None else fade

    # Dark edges first, so that a trail is told from any background.
    for edge in (0.9 * unit, 0.0):
        for age in range(length):
            strength = 1 - (length - age) / (fade + 1)  # the past fades, and tapers
            thickness = max(1, round(2.1 * unit * (0.3 + 0.7 * strength) + edge))
            for point, color in enumerate(colors):
                segment = pixels[age : age + 2, point]
                if np.isfinite(segment).all():
                    faint = 1.0 if visible_mask[age : age + 2, point].all() else 0.35
                    opacity = (110 if edge else 240) * strength * faint
                    ink = (*((0, 0, 0) if edge else color), round(opacity))
                    ends = [(float(x), float(y)) for x, y in segment]
                    pen.line(ends, fill=ink, width=thickness)
    if target is not None:
        for position, goal in zip(pixels[-1], (target + 0.5) * factor - 0.5, strict=True):
            if np.isfinite(position).all() and np.isfinite(goal).all():
                pen.line(
                    [tuple(position), tuple(goal)], fill=(255, 255, 255, 220), width=round(unit)
                )
    for point, color in enumerate(colors):
        if np.isfinite(pixels[-1, point]).all():
            x, y = pixels[-1, point]
            _draw_point(pen, x, y, color, bool(visible_mask[-1, point]), unit)
    small = overlay.resize(picture.size, Image.Resampling.BOX)
    return Image.alpha_composite(picture.convert("RGBA"), small).convert("RGB")


def _draw_point(
    pen: ImageDraw.ImageDraw,
    x: float,
    y: float,
    color: tuple[int, int, int],
    visible: bool,
    unit: float,
) -> None:
    def circle(radius: float, **paint: Any) -> None:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), **paint)

    if visible:
        circle(3.4 * unit, fill=(0, 0, 0, 200))
        circle(_RADIUS * unit, fill=(*color, 255))
    else:
        circle(3.4 * unit, outline=(0, 0, 0, 160), width=round(2.4 * unit))
        circle(3.0 * unit, outline=(*color, 255), width=round(1.3 * unit))


def _write_upwards(
    sheet: Image.Image, text: str, top: int, height: int, font: ImageFont.ImageFont | Any
) -> None:
    label = Image.new("RGB", (height, 20), _PAPER)
    ImageDraw.Draw(label).text((height / 2, 10), text, fill=_INK, font=font, anchor="mm")
    sheet.paste(label.rotate(90, expand=True), (_GAP, top))


def draw_beside_truth(
    video: Tensor,  # (T, 3, H, W) uint8
    tracks: Tensor,  # (T, N, 2)
    visible: Tensor,  # (T, N)
    true_tracks: Tensor,
    true_visible: Tensor,
) -> Tensor:
    """Some of the tracks above the true ones, small videos enlarged, (3, H', W')."""
    count = tracks.shape[1]
    point_indices = torch.linspace(0, count - 1, min(POINTS_DRAWN, count)).round().long()
    return draw_tracks(
        video,
        tracks[:, point_indices],
        visible[:, point_indices],
        truth=true_tracks[:, point_indices],
        truth_visible=true_visible[:, point_indices],
        scale=max(1, PANEL_WIDTH // video.shape[-1]),
    )


def film_beside_truth(
    video: Tensor,  # (T, 3, H, W) uint8
    tracks: Tensor,  # (T, N, 2)
    visible: Tensor,  # (T, N)
    true_tracks: Tensor,
    true_visible: Tensor,
) -> Tensor:
    """The video with some of the tracks, and beside it with the true ones, (T', 3, H', 2 W')."""
    frames, count = tracks.shape[:2]
    frame_indices = torch.linspace(0, frames - 1, min(FRAMES_FILMED, frames)).round().long()
    point_indices = torch.linspace(0, count - 1, min(POINTS_DRAWN, count)).round().long()
    scale = max(1, PANEL_WIDTH // video.shape[-1])
    sides = [
        draw_video(
            video[frame_indices],
            positions[frame_indices][:, point_indices],
            visible_mask[frame_indices][:, point_indices],
            scale=scale,
        )
        for positions, visible_mask in ((tracks, visible), (true_tracks, true_visible))
    ]
    return torch.cat(sides, dim=3)
