"""How the kernels of the correlation lay out their results: r radius, P = 2r + 1 samples a side."""

from __future__ import annotations

ALIGNMENT = 8  # 16-bit numbers that are read and written at once


def pitch(radius: int) -> int:
    """Columns that the kernels use for P*P numbers: filled up with zeros to a multiple of 8."""
    return -(-((2 * radius + 1) ** 2) // ALIGNMENT) * ALIGNMENT


def padded_width(radius: int) -> int:
    """Numbers of a result of the kernels: one `pitch` for each of the frame's P*P samples."""
    return (2 * radius + 1) ** 2 * pitch(radius)
