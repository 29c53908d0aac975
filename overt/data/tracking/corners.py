"""Corners of an image: points that differ from their neighborhood in every direction.

Shi and Tomasi, "Good features to track" (1994). This file does not import torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BORDER = 3  # pixels next to the edge of the image that hold no corner
WEAKEST = 0.001  # fraction of the strongest response below which a maximum is noise
REACH = 2  # pixels: a window of 5 x 5 sums gradients, and holds one corner

Response = NDArray[np.float32]


def corner_response(frame: NDArray[np.uint8]) -> Response:
    """Return the smaller eigenvalue of the summed gradient products of a frame (3, H, W)."""
    gray = frame.mean(axis=0, dtype=np.float32)
    down, right = np.gradient(gray)
    xx, yy, xy = (_box_sum(part) for part in (right * right, down * down, right * down))
    trace, difference = (xx + yy) / 2, (xx - yy) / 2
    return (trace - np.sqrt(difference**2 + xy**2)).astype(np.float32)


def find_corners(frame: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """Return up to `count` corners (n, 2) as x, y of a frame (3, H, W), strongest first."""
    if min(frame.shape[1:]) <= 2 * BORDER:
        return np.zeros((0, 2), np.int64)
    response = corner_response(frame)
    inner = np.zeros_like(response)
    middle = (slice(BORDER, -BORDER), slice(BORDER, -BORDER))
    inner[middle] = response[middle]
    is_corner = (inner > WEAKEST * inner.max()) & (inner >= _window_maximum(inner))
    rows, columns = np.nonzero(is_corner)
    # Equal responses, for example in a drawing, keep their row order.
    order = np.argsort(-inner[rows, columns], kind="stable")[:count]
    return np.stack([columns[order], rows[order]], axis=1)


def _box_sum(values: Response) -> Response:
    """Sum each window of (2 REACH + 1) pixels per side, by shifted sums along both axes."""
    for axis in (0, 1):
        padding = [(REACH, REACH) if axis == side else (0, 0) for side in (0, 1)]
        values = _windows(np.pad(values, padding), axis).sum(axis=-1)
    return values


def _window_maximum(values: Response) -> Response:
    for axis in (0, 1):
        padding = [(REACH, REACH) if axis == side else (0, 0) for side in (0, 1)]
        values = _windows(np.pad(values, padding), axis).max(axis=-1)
    return values


def _windows(padded: Response, axis: int) -> Response:
    return np.lib.stride_tricks.sliding_window_view(padded, 2 * REACH + 1, axis)
