"""overt/ops/raster/kernels.py draws what the definition draws."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, kernel_test
from torch import Tensor

from overt.ops.raster.plain import nearest_faces_plain

SIZE = (20, 28)


def soup(meshes: int, faces: int, extent: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Faces apart from each other, some of them outside, looking away or behind the camera."""
    generator = torch.Generator().manual_seed(seed)
    middles = 40 * torch.rand(meshes, faces, 1, 2, generator=generator) - 6
    corners = middles + extent * torch.randn(meshes, faces, 3, 2, generator=generator)
    depth = 4 * torch.rand(meshes, faces, 1, generator=generator) - 0.3
    depth = depth + 0.3 * torch.rand(meshes, faces, 3, generator=generator)
    order = torch.randperm(3 * faces, generator=generator)  # vertices are not in the faces' order
    pixels, meters = torch.empty(meshes, 3 * faces, 2), torch.empty(meshes, 3 * faces)
    pixels[:, order], meters[:, order] = corners.flatten(1, 2), depth.flatten(1)
    return pixels, meters, order.view(faces, 3)


def both(
    pixels: Tensor,
    depth: Tensor,
    faces: Tensor,
    perspective: bool = True,
    size: tuple[int, int] = SIZE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compare kernels with the definition; return what the kernels draw."""
    from overt.ops.raster.kernels import nearest_faces_fused

    mesh = [part.to(DEVICE) for part in (pixels, depth, faces)]
    drawn: tuple[Tensor, Tensor, Tensor] = nearest_faces_fused(*mesh, *size, perspective)
    expected = nearest_faces_plain(*mesh, size, perspective)
    for found, known in zip(drawn, expected, strict=True):
        assert (found.dtype, found.shape) == (known.dtype, known.shape)
    same = drawn[1] == expected[1]
    # A reduction over three numbers may add them in another order on CUDA: the last bit of the
    # depth then differs, and with it the nearer of two faces where they meet.
    allowed = 0.002 if ON_GPU else 0.0
    assert (~same).float().mean() <= allowed
    tolerance = 1e-6 if ON_GPU else 0.0
    torch.testing.assert_close(drawn[0][same], expected[0][same], atol=0, rtol=tolerance)
    torch.testing.assert_close(drawn[2][same], expected[2][same], atol=tolerance, rtol=tolerance)
    return drawn


@kernel_test
@pytest.mark.parametrize("perspective", [True, False])
@pytest.mark.parametrize(("meshes", "faces", "extent"), [(3, 50, 4.0), (2, 300, 1.0), (1, 70, 30)])
def test_faces_of_all_kinds(meshes: int, faces: int, extent: float, perspective: bool) -> None:
    """Middle, small and large ones; 50 of three meshes share programs."""
    _, face, weights = both(*soup(meshes, faces, extent), perspective)
    assert len(face.unique()) > 5
    torch.testing.assert_close(weights.sum(-1), (face >= 0).float())


@kernel_test
def test_one_large_face_among_small_ones() -> None:
    pixels, depth, faces = soup(2, 80, 0.7)
    pixels[:, faces[70]] = torch.tensor([[-90.0, -90.0], [-90.0, 300.0], [300.0, -90.0]])
    depth[:, faces[70]] = torch.tensor([5.0, 6.0, 7.0])
    _, face, _ = both(pixels, depth, faces)
    assert (face >= 0).all()  # it covers the picture
    assert (face == 70).any()
    assert (face != 70).any()


@kernel_test
def test_of_equally_near_faces_the_last_is_chosen() -> None:
    pixels = torch.tensor([[[2.0, 3.0], [2.0, 13.0], [12.0, 3.0]]]).repeat(2, 3, 1)
    depth = torch.full((2, 9), 2.0)
    depth[1, 6:] = 2.5
    nearest, face, _ = both(pixels, depth, torch.arange(9).view(3, 3))
    assert face[0].unique().tolist() == [-1, 2]
    assert face[1].unique().tolist() == [-1, 1]
    assert nearest[face >= 0].unique().tolist() == [2.0]


@kernel_test
def test_faces_without_area_and_corners_without_position() -> None:
    pixels, depth, faces = soup(1, 6, 8.0)
    point, line, unknown, far, unknown_depth, usual = faces
    pixels[:, point] = torch.tensor([6.0, 7.0])
    pixels[:, line] = torch.tensor([[3.0, 3.0], [15.0, 12.0], [9.0, 7.5]])
    pixels[:, unknown[0]] = torch.nan
    pixels[:, far[0]] = torch.inf
    depth[:, faces.flatten()] = 2.0
    depth[:, unknown_depth[1]] = torch.nan
    pixels[:, usual] = torch.tensor([[2.0, 3.0], [2.0, 13.0], [12.0, 3.0]])
    _, face, _ = both(pixels, depth, faces)
    assert face.unique().tolist() == [-1, 5]


@kernel_test
@pytest.mark.parametrize("size", [(1, 1), (40, 7)])
def test_pictures_of_other_sizes(size: tuple[int, int]) -> None:
    both(*soup(2, 90, 5.0), size=size)


@kernel_test
def test_nothing_is_drawn() -> None:
    pixels, depth, faces = soup(2, 20, 4.0)
    for mesh in (
        (pixels, -depth.abs(), faces),  # behind the camera
        (pixels + 1000, depth, faces),
        (pixels[:, faces[:, :1].expand(-1, 3).flatten()], depth, torch.arange(60).view(20, 3)),
    ):
        nearest, face, weights = both(*mesh)
        assert nearest.isinf().all()
        assert (face == -1).all()
        assert not weights.any()


@kernel_test
def test_a_compiler_knows_the_shapes() -> None:
    from overt.ops.raster.kernels import nearest_faces_fused

    mesh = [part.to(DEVICE) for part in soup(2, 5, 4.0)]
    torch.library.opcheck(
        nearest_faces_fused, (*mesh, *SIZE, True), test_utils=("test_schema", "test_faketensor")
    )
