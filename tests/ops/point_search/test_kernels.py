"""overt/ops/point_search: the kernels make the choices of the definitions."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, kernel_test
from point_clouds import KINDS, cloud

from overt.ops.point_search import plain as search
from overt.ops.point_search.api import furthest_point_sample


@kernel_test
@pytest.mark.parametrize("kind", KINDS)
def test_the_kernels_make_the_choices_of_the_definition(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overt.ops.point_search import furthest_kernels, kernels

    batch, points, picks = (3, 5000, 1500) if ON_GPU else (2, 90, 25)
    if not ON_GPU:  # few candidates, so that several rounds and their ends are seen
        for name, value in {"CANDIDATES": 32, "PASS_BLOCK": 32, "PICKS_PER_ROUND": 16}.items():
            monkeypatch.setattr(furthest_kernels, name, value)
    coords = cloud(batch, points, kind).to(DEVICE)
    found = furthest_kernels.furthest_point_sample_fused(coords, picks)
    assert torch.equal(found, search.furthest_point_sample_plain(coords, picks))
    centers = cloud(batch, points // 4, kind, seed=1).to(DEVICE)
    centers[0, 0] = 100.0
    for slots in (3, 24):
        found = kernels.ball_query_fused(centers, coords, 0.5, slots)
        for one, other in zip(
            found, search.ball_query_plain(centers, coords, 0.5, slots), strict=True
        ):
            assert torch.equal(one, other)
    for some in (centers, centers[:, :2], centers[:, :1]):
        found = kernels.three_nearest_fused(coords, some)
        for one, other in zip(found, search.three_nearest_plain(coords, some), strict=True):
            assert torch.equal(one, other)


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
    found = furthest_point_sample(coords, 10240)
    assert torch.equal(found, search.furthest_point_sample_plain(coords, 10240))
