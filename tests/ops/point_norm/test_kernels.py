"""overt/ops/point_norm/kernels.py against the definition."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, assert_same_results, kernel_test
from torch import Tensor

from overt.ops.point_norm import plain as norm
from overt.ops.point_pairs.api import find_pairs
from overt.ops.point_pairs.plain import Pairs

SLOTS, CENTERS, POINTS = 12, 15, 60


def make_pairs(capacity: int | None = None) -> Pairs:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(2, POINTS, 3, generator=generator).to(DEVICE)
    centers = points[:, :CENTERS].clone()
    centers[0, 3] = 50.0  # an empty ball
    return find_pairs(centers, points, 1.0, SLOTS, capacity)


def parameters(channels: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(channels, generator=generator).to(DEVICE) for _ in range(2))


@kernel_test
@pytest.mark.parametrize("channels", [16, 48, 512])
def test_the_kernel_normalises_rows(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from overt.ops.point_norm import kernels

    if not ON_GPU:  # several programs for a cloud
        monkeypatch.setattr(kernels, "TILE", 1024)
        monkeypatch.setattr(kernels, "PROGRAMS", 6)
    length = 3000 if ON_GPU else 40
    rows = torch.randn(2, length, channels, generator=torch.Generator().manual_seed(0)) * 2 + 30
    assert_same_results(
        lambda z, scale, shift: kernels.norm_swish_fused(
            z.flatten(0, 1), scale, shift, 8, 2, length, None, None, None
        )[0].view_as(z),
        lambda z, scale, shift: norm.norm_swish_plain(z, scale, shift, 8),
        [rows.to(DEVICE), *parameters(channels)],
        tolerance=3e-5,
    )


@kernel_test
@pytest.mark.parametrize("capacity", [None, 400])
@pytest.mark.parametrize("kind", ["values", "maxima"])
def test_the_kernel_normalises_pairs(
    capacity: int | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overt.ops.point_norm import kernels

    if not ON_GPU:
        monkeypatch.setattr(kernels, "TILE", 256)
        monkeypatch.setattr(kernels, "PROGRAMS", 6)
    pairs = make_pairs(capacity)
    rows = torch.randn(len(pairs.points), 16, generator=torch.Generator().manual_seed(2)) + 5
    rest = (8, 2, CENTERS * SLOTS, pairs.weights, pairs.centers, pairs.starts)
    real = (pairs.weights > 0)[:, None]
    if kind == "maxima":
        assert_same_results(
            lambda z, scale, shift: kernels.norm_swish_max_fused(z, scale, shift, *rest)[0],
            lambda z, scale, shift: norm.norm_swish_max_plain(z, scale, shift, 8, pairs),
            [rows.to(DEVICE), *parameters(16)],
        )
    else:
        assert_same_results(
            lambda z, scale, shift: kernels.norm_swish_fused(z, scale, shift, *rest)[0] * real,
            lambda z, scale, shift: norm.norm_swish_pairs_plain(z, scale, shift, 8, pairs) * real,
            [rows.to(DEVICE), *parameters(16)],
        )


def constant_of(kind: str, channels: int) -> Tensor:
    shape = (channels,) if kind == "bias" else (2, channels)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(DEVICE) * 3


@kernel_test
@pytest.mark.parametrize("kind", ["bias", "by cloud"])
@pytest.mark.parametrize("channels", [16, 24, 8])
def test_a_constant_is_added_before_rows_are_normalized(
    kind: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overt.ops.point_norm import api, kernels

    if not ON_GPU:
        monkeypatch.setattr(kernels, "TILE", 256)
        monkeypatch.setattr(kernels, "PROGRAMS", 6)
    monkeypatch.setattr(api, "use_kernels", lambda *_: True)
    rows = torch.randn(2, 70, channels, generator=torch.Generator().manual_seed(0)) * 2 + 30
    scale, shift = parameters(channels)
    constant = constant_of(kind, channels)
    inputs = [rows.to(DEVICE), scale, shift]
    if channels > 8:  # a group of one channel is moved back entirely: the gradient is 0
        inputs.append(constant)
    assert_same_results(
        lambda z, scale, shift, added=constant: api.norm_swish(z, scale, shift, 8, added),
        lambda z, scale, shift, added=constant: norm.norm_swish_plain(z, scale, shift, 8, added),
        inputs,
        tolerance=5e-5,
    )


@kernel_test
@pytest.mark.parametrize("kind", ["bias", "by cloud"])
@pytest.mark.parametrize("name", ["norm_swish_pairs", "norm_swish_max"])
@pytest.mark.parametrize("capacity", [None, 400])
def test_a_constant_is_added_before_pairs_are_normalized(
    kind: str, name: str, capacity: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overt.ops.point_norm import api

    monkeypatch.setattr(api, "use_kernels", lambda *_: True)
    pairs = make_pairs(capacity)
    rows = torch.randn(len(pairs.points), 16, generator=torch.Generator().manual_seed(2)) + 5
    used = (pairs.weights > 0)[:, None] if name == "norm_swish_pairs" else 1
    kernel, definition = getattr(api, name), getattr(norm, f"{name}_plain")
    assert_same_results(
        lambda z, scale, shift, added: kernel(z, scale, shift, 8, pairs, added) * used,
        lambda z, scale, shift, added: definition(z, scale, shift, 8, pairs, added) * used,
        [rows.to(DEVICE), *parameters(16), constant_of(kind, 16)],
        tolerance=5e-5,
    )


@kernel_test
def test_rows_of_unused_pairs_are_zero_and_a_lost_neighbourhood_is_nan() -> None:
    from overt.ops.point_norm.kernels import norm_swish_fused, norm_swish_max_fused

    scale, shift = parameters(16)
    roomy = make_pairs(400)
    rows = torch.randn(400, 16, device=DEVICE)
    rest = (8, 2, CENTERS * SLOTS, roomy.weights, roomy.centers, roomy.starts)
    found = norm_swish_fused(rows, scale, shift, *rest)[0]
    assert not found[int(roomy.num_pairs) :].any()
    cut = make_pairs(30)
    rest = (8, 2, CENTERS * SLOTS, cut.weights, cut.centers, cut.starts)
    found = norm_swish_max_fused(rows[:30].contiguous(), scale, shift, *rest)[0]
    assert found[-1].isnan().all()


@kernel_test
def test_low_precision_rows_are_normalised_in_float32() -> None:
    from overt.ops.point_norm.kernels import norm_swish_fused

    rows = torch.randn(2 * 40, 16, device=DEVICE).bfloat16()
    scale, shift = parameters(16)
    found = norm_swish_fused(rows, scale, shift, 8, 2, 40, None, None, None)[0]
    assert found.dtype == torch.bfloat16
    exact = norm.norm_swish_plain(rows.view(2, 40, 16), scale, shift, 8).reshape(found.shape)
    assert (found.float() - exact.float()).abs().max() < 0.05


@kernel_test
@pytest.mark.parametrize("channels", [24, 16])
def test_the_kernel_normalizes_grids_channels_last(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from overt.ops.point_norm import api, kernels

    if not ON_GPU:
        monkeypatch.setattr(kernels, "TILE", 256)
        monkeypatch.setattr(kernels, "PROGRAMS", 6)
    monkeypatch.setattr(api, "use_kernels", lambda *_: True)
    grids = torch.randn(2, channels, 4, 5, 3, generator=torch.Generator().manual_seed(0)) * 2 + 5
    grids = grids.to(DEVICE).contiguous(memory_format=torch.channels_last_3d)
    found = api.norm_grid(grids, *parameters(channels), 8)
    assert found.is_contiguous(memory_format=torch.channels_last_3d)
    assert_same_results(
        lambda x, scale, shift: api.norm_grid(x, scale, shift, 8),
        lambda x, scale, shift: norm.norm_grid_plain(x, scale, shift, 8),
        [grids, *parameters(channels)],
        tolerance=3e-5,
    )
