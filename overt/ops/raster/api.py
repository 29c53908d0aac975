"""The nearest face of each pixel, without gradients.

The plain function is the definition, for any device; on CUDA kernels draw all faces into one buffer
without any list, and the host never waits for the device.
"""

from __future__ import annotations

from torch import Tensor

from overt.ops.dispatch import use_kernels
from overt.ops.raster.plain import nearest_faces_plain


def nearest_faces(
    pixels: Tensor,  # (B, V, 2) projected vertices
    depth: Tensor,  # (B, V) meters
    faces: Tensor,  # (F, 3)
    size: tuple[int, int],
    perspective: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return depth (B, H, W), face (B, H, W) int64 and weights (B, H, W, 3) of its corners.

    Pixels without a face have infinity, -1 and 0. Faces that look away from the camera, or
    with a corner nearer than NEAR_M, are not drawn; of equally near faces the last one is chosen.
    With `perspective=False` depth is linear in the picture.
    """
    if not use_kernels("raster", pixels):
        return nearest_faces_plain(pixels, depth, faces, size, perspective)
    from overt.ops.raster.kernels import nearest_faces_fused

    drawn: tuple[Tensor, Tensor, Tensor] = nearest_faces_fused(
        pixels, depth, faces, *size, perspective
    )
    return drawn
