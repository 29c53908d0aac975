"""The diffusion and its samplers: identities, and an oracle that finds what it knows."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from overt.errors import ConfigError
from overt.recipes.pcdiff import diffusion
from overt.recipes.pcdiff.sampling import (
    refuse_overflow,
)

STEPS = 60


def arrays(schedule: str = "linear") -> diffusion.Arrays:
    return diffusion.make_arrays(diffusion.make_betas(schedule, 1e-3, 0.2, STEPS))


def noisy(times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(len(times), 3, 7, generator=generator)
    noise = torch.randn(start.shape, generator=generator)
    return start, noise, diffusion.add_noise(arrays(), start, times, noise)


def test_the_true_noise_leads_back_to_the_start() -> None:
    times = torch.tensor([0, 5, 40, STEPS - 1])
    start, noise, x = noisy(times)
    found = diffusion.predict_start(arrays(), x, times, noise)
    torch.testing.assert_close(found, start, atol=1e-3, rtol=1e-3)


def test_ddim_with_all_steps_and_eta_1_is_ddpm() -> None:
    spaced = diffusion.respace(arrays(), STEPS)
    assert spaced.timesteps == list(range(STEPS - 1, -1, -1))
    times = torch.tensor([0, 1, 17, STEPS - 1])
    _, noise, x = noisy(times)
    more = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    small = diffusion.log_variance(arrays(), "fixedsmall")
    one = diffusion.ddpm_step(arrays(), x, times, noise, more, small)
    other = diffusion.ddim_step(spaced.arrays, x, times, noise, more, eta=1.0)
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_the_large_variance_is_beta_but_for_the_first_step() -> None:
    both = arrays()
    large = diffusion.log_variance(both, "fixedlarge").exp()
    torch.testing.assert_close(large[1:], both.betas[1:])
    torch.testing.assert_close(large[0], both.posterior_variance[1])


def test_the_divergence_vanishes_for_the_true_noise_only() -> None:
    times = torch.tensor([1, 20, 50])
    start, noise, x = noisy(times)
    exact = diffusion.posterior_divergence(arrays(), start, x, times, noise, "fixedsmall")
    torch.testing.assert_close(exact, torch.zeros(3), atol=1e-5, rtol=0)
    wrong = diffusion.posterior_divergence(arrays(), start, x, times, noise + 0.1, "fixedsmall")
    assert (wrong > 1e-4).all()
    wide = diffusion.posterior_divergence(arrays(), start, x, times, noise, "fixedlarge")
    assert (wide > 0).all()


def test_min_snr_weighs_early_steps_less() -> None:
    times = torch.arange(STEPS)
    weight = diffusion.min_snr_weight(arrays(), times, 5.0)
    assert (weight <= 1).all()
    assert (weight.diff() >= -1e-6).all()
    assert weight[0] < 0.1
    assert weight[-1] == 1


@pytest.mark.parametrize("schedule", diffusion.SCHEDULES)
def test_every_schedule_ends_in_noise_and_keeps_its_length(schedule: str) -> None:
    found = diffusion.make_arrays(diffusion.make_betas(schedule, 1e-4, 0.02, 1000))
    assert len(found.betas) == 1000
    assert (found.alphas_cumprod.diff() <= 0).all()
    assert found.alphas_cumprod[-1] < 0.01


@pytest.mark.parametrize("power", [0.25, 1.0, 2.0, 8.0])
def test_as_many_steps_are_kept_as_requested(power: float) -> None:
    for steps in range(2, STEPS + 1):
        timesteps = diffusion.respace(arrays(), steps, power).timesteps
        assert (len(timesteps), timesteps[0], timesteps[-1]) == (steps, STEPS - 1, 0)
        assert all(later < earlier for earlier, later in itertools.pairwise(timesteps))


def test_even_steps_are_those_of_the_published_code() -> None:
    for steps in range(2, STEPS + 1):
        published = np.unique(np.round(np.linspace(0, STEPS - 1, steps)).astype(int))
        assert diffusion.respace(arrays(), steps).timesteps == published[::-1].tolist()


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [("linear", 2), ("linear", 4), ("warm0.5", 3), ("cosine", 50), ("cosine", 1000)],
)
def test_coefficients_of_kept_steps_are_those_of_the_published_code(
    schedule: str, steps: int
) -> None:
    """Betas are rounded to float32 before their products are taken, also where they are near 1."""
    known = diffusion.make_arrays(diffusion.make_betas(schedule, 1e-4, 0.02, 1000))
    cumulative = known.alphas_cumprod.numpy()
    betas, before = np.zeros(1000, np.float32), np.float32(1.0)
    for step in np.unique(np.round(np.linspace(0, 999, steps)).astype(int)):
        betas[step] = np.float32(1.0) - cumulative[step] / before
        before = cumulative[step]
    alphas_cumprod = (1.0 - betas.astype(np.float64)).cumprod().astype(np.float32)
    found = diffusion.respace(known, steps).arrays
    np.testing.assert_allclose(found.betas.numpy(), betas, 1e-6, 0)
    np.testing.assert_allclose(found.alphas_cumprod.numpy(), alphas_cumprod, 1e-6, 0)


@pytest.mark.parametrize("steps", [2, 5, 20, 50])
@pytest.mark.parametrize("power", [1.0, 5.0])
def test_few_steps_of_the_cosine_schedule_leave_some_signal(steps: int, power: float) -> None:
    known = diffusion.make_arrays(diffusion.make_betas("cosine", 1e-4, 0.02, 1000))
    spaced = diffusion.respace(known, steps, power)
    assert (spaced.arrays.alphas_cumprod > 0).all()
    if spaced.arrays.betas[999] == 1:  # the published code would leave nothing
        found, expected = (part.alphas_cumprod[999] for part in (spaced.arrays, known))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)
    times = torch.tensor([999])
    ones = torch.ones(1, 3, 5)
    x = diffusion.ddim_step(spaced.arrays, ones, times, ones, ones, eta=1.0)
    assert x.isfinite().all()


def test_too_little_room_for_neighbours_is_refused() -> None:
    refuse_overflow(1.0)
    with pytest.raises(ConfigError, match=r"1\.50 times as many neighbors as its pairs_per_center"):
        refuse_overflow(1.5)


def test_noise_changes_only_where_its_start_leaves_the_box() -> None:
    generator = torch.Generator().manual_seed(3)
    x, noise = (torch.randn((2, 3, 50), generator=generator) for _ in range(2))
    times = torch.tensor([5, STEPS - 1])
    box = diffusion.box_around(torch.randn((2, 3, 30), generator=generator), 0.1)
    kept = diffusion.keep_inside(arrays(), x, times, noise, box)
    start = diffusion.predict_start(arrays(), x, times, noise)
    inside = (start >= box.low) & (start <= box.high)
    assert 0.1 < inside.float().mean() < 0.9
    torch.testing.assert_close(kept[inside], noise[inside], atol=1e-4, rtol=1e-4)
    again = diffusion.predict_start(arrays(), x, times, kept)
    torch.testing.assert_close(again, start.clamp(box.low, box.high), atol=1e-4, rtol=1e-4)
