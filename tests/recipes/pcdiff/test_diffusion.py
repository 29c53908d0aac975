"""The diffusion and its samplers: identities, and an oracle that finds what it knows."""

from pathlib import Path

import pytest
import torch
from small_recipes import SMALL_PCDIFF
from torch import Tensor

from overt.errors import ConfigError
from overt.recipes.pcdiff import diffusion
from overt.recipes.pcdiff.geometry import Geometry
from overt.recipes.pcdiff.sampling import (
    Plan,
    base_arrays,
    make_plan,
    refuse_overflow,
    sample_implants,
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


class Oracle:
    """Knows the implant and so tells the noise exactly."""

    plans = ()

    def __init__(self, start: Tensor, known: diffusion.Arrays) -> None:
        self.start, self.known = start.transpose(1, 2), known

    def geometry(self, coords: Tensor) -> Geometry:
        return NoGeometry([])

    def __call__(self, x: Tensor, times: Tensor, geometry: Geometry) -> Tensor:
        implant = x[:, :, -self.start.shape[2] :]
        kept = diffusion.at(self.known.alphas_cumprod, times)
        noise = (implant - kept.sqrt() * self.start) / (1 - kept).sqrt()
        return torch.cat([torch.zeros_like(x[:, :, : -noise.shape[2]]), noise], dim=2)


class NoGeometry(Geometry):
    def fullest(self) -> Tensor:
        return torch.zeros(())


def generators(count: int, first: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(first + number) for number in range(count)]


@pytest.mark.parametrize(
    "overrides",
    [
        ["evaluation.sampler=ddpm", "model.diffusion.steps=50", "model.diffusion.beta_end=0.3"],
        ["evaluation.sampler=ddim", "evaluation.steps=10"],
        ["evaluation.sampler=ddim", "evaluation.steps=10", "evaluation.eta=0.5"],
    ],
)
def test_an_oracle_is_led_to_what_it_knows(overrides: list[str], tmp_path: Path) -> None:
    settings = SMALL_PCDIFF.recipe(tmp_path, *overrides).settings
    plan = make_plan(settings.model.diffusion, settings.evaluation)
    start = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(5))
    oracle = Oracle(start, base_arrays(settings.model.diffusion))
    found = sample_implants(oracle, torch.zeros(2, 4, 3), 9, plan, generators(2))
    torch.testing.assert_close(found, start, atol=0.02, rtol=0)


def test_each_cloud_has_its_own_noise_whatever_is_sampled_beside_it(tmp_path: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(tmp_path)
    plan = make_plan(recipe.settings.model.diffusion, recipe.settings.evaluation)
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    known = torch.randn(1, 20, 3, generator=torch.Generator().manual_seed(0)).expand(3, -1, -1)
    together = sample_implants(model, known, 8, plan, generators(3))
    again = sample_implants(model, known, 8, plan, generators(3))
    assert torch.equal(together, again)
    assert not torch.allclose(together[0], together[1])
    alone = sample_implants(model, known[:1], 8, plan, generators(1, first=1))
    torch.testing.assert_close(alone[0], together[1], atol=1e-2, rtol=1e-2)


def test_known_points_are_never_changed(tmp_path: Path) -> None:
    settings = SMALL_PCDIFF.recipe(tmp_path).settings
    plan = make_plan(settings.model.diffusion, settings.evaluation)
    seen = []

    class Watching(Oracle):
        def __call__(self, x: Tensor, times: Tensor, geometry: Geometry) -> Tensor:
            seen.append((x[:, :, :4].clone(), times.tolist()))
            return super().__call__(x, times, geometry)

    known = torch.randn(1, 4, 3)
    oracle = Watching(torch.zeros(1, 9, 3), base_arrays(settings.model.diffusion))
    sample_implants(oracle, known, 9, plan, generators(1))
    assert [times for _, times in seen] == [[time] for time in plan.timesteps]
    assert all(torch.equal(part, known.transpose(1, 2)) for part, _ in seen)


def test_a_plan_is_random_where_noise_is_added() -> None:
    arrays_ = arrays()
    assert Plan(arrays_, [0], "fixedsmall", 0.0).is_random
    assert Plan(arrays_, [0], None, 0.5).is_random
    assert not Plan(arrays_, [0], None, 0.0).is_random


def test_too_little_room_for_neighbours_is_refused() -> None:
    refuse_overflow(1.0)
    with pytest.raises(
        ConfigError, match=r"1\.50 times as many neighbours as its pairs_per_center"
    ):
        refuse_overflow(1.5)
