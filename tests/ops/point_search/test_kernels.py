"""overt/ops/point_search: the kernels make the choices of the definitions."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, kernel_test
from point_clouds import KINDS, cloud

from overt.ops.point_search import api
from overt.ops.point_search import plain as search


@kernel_test
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_make_the_choices_of_the_definition(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overt.ops.point_search import cell_kernels, furthest_kernels, kernels

    batch, points, picks = (3, 5000, 1500) if ON_GPU else (2, 90, 25)
    if not ON_GPU:  # few candidates, so that several phases and what is left are seen
        few = {"CANDIDATES": 16, "ROUNDS": 3, "PHASES": 1, "NEAR": 4, "PASS_BLOCK": 32}
        for name, value in few.items():
            monkeypatch.setattr(furthest_kernels, name, value)
    coords = cloud(batch, points, kind).to(DEVICE)
    found = furthest_kernels.furthest_point_sample_fused(coords, picks)
    assert torch.equal(found, search.furthest_point_sample_plain(coords, picks))
    centers = cloud(batch, points // 4, kind, seed=1).to(DEVICE)
    centers[0, 0] = 100.0
    for slots in (3, 24):
        expected = search.ball_query_plain(centers, coords, 0.5, slots)
        for query in (kernels.ball_query_fused, cell_kernels.ball_query_in_cells):
            found = query(centers, coords, 0.5, slots)
            assert all(map(torch.equal, found, expected)), (query, slots)
    for some in (centers, centers[:, :2], centers[:, :1]):
        expected = search.three_nearest_plain(coords, some)
        for nearest in (kernels.three_nearest_fused, cell_kernels.three_nearest_in_cells):
            found = nearest(coords, some)
            assert all(map(torch.equal, found, expected)), (nearest, some.shape)


@kernel_test
def test_cells_find_what_lies_beside_and_far_beyond_them() -> None:
    """Clusters, a flat cloud, single points far away, and queries outside of the grid."""
    from overt.ops.point_search import cell_kernels

    count = 4000 if ON_GPU else 60
    coords = cloud(3, count, "random")
    coords[0, : count // 2] *= 0.01  # hundreds in a cell
    coords[1, :, 2] = 0.0
    coords[2, :3] = torch.tensor([[9.0, 0.0, 0.0], [0.0, -30.0, 0.0], [8.99, 0.0, 0.01]])
    coords = coords.to(DEVICE)
    queries = torch.cat([coords[:, ::3], 4 * coords[:, 1::5]], dim=1)
    for radius in (0.02, 1.3):
        found = cell_kernels.ball_query_in_cells(queries, coords, radius, 16)
        expected = search.ball_query_plain(queries, coords, radius, 16)
        assert all(map(torch.equal, found, expected)), radius
    found = cell_kernels.three_nearest_in_cells(queries, coords)
    assert all(map(torch.equal, found, search.three_nearest_plain(queries, coords)))


@kernel_test
def test_the_kernel_repeats_point_0_after_the_last() -> None:
    from overt.ops.point_search.furthest_kernels import furthest_point_sample_fused

    coords = cloud(2, 10, "twice").to(DEVICE)
    found = furthest_point_sample_fused(coords, 16)
    assert torch.equal(found, search.furthest_point_sample_plain(coords, 16))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernel_samples_official_clouds_exactly() -> None:
    """30,720 points: hundreds of rounds; a cloud with a dense implant and one of noise."""
    coords = torch.randn(2, 30720, 3, generator=torch.Generator().manual_seed(0))
    coords[0, :27648] = torch.nn.functional.normalize(coords[0, :27648], dim=1) * 3
    coords = coords.cuda()
    found = api.furthest_point_sample(coords, 10240)
    assert torch.equal(found, search.furthest_point_sample_plain(coords, 10240))
    # Large enough for the cells of a grid.
    assert coords.shape[1] * found.shape[1] >= api.MANY_PAIRS
    centers = coords.gather(1, found.long()[..., None].expand(-1, -1, 3))
    balls = search.ball_query_plain(centers, coords, 0.1, 128)
    assert all(map(torch.equal, api.ball_query(centers, coords, 0.1, 128), balls))
    nearest, _ = search.three_nearest_plain(coords, centers)
    assert torch.equal(api.three_nearest(coords, centers)[0], nearest)
