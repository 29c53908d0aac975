"""overt/recipes/pcdiff/sampling.py: samplers lead an oracle to what it knows; known points stay."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_PCDIFF
from torch import Tensor

from overt.distributed import init_distributed
from overt.errors import ConfigError
from overt.metrics.point_clouds import cloud_scores
from overt.recipes.pcdiff import diffusion
from overt.recipes.pcdiff.denoiser import join_points
from overt.recipes.pcdiff.geometry import Geometry
from overt.recipes.pcdiff.sampling import (
    Plan,
    base_arrays,
    make_plan,
    sample_implants,
)

STEPS = 60


def arrays(schedule: str = "linear") -> diffusion.Arrays:
    return diffusion.make_arrays(diffusion.make_betas(schedule, 1e-3, 0.2, STEPS))


def test_a_schedule_that_leaves_no_signal_is_refused(tmp_path: Path) -> None:
    """Such as 0.2 for 0.02: it trained, and samples were divisions by zero, or NaN."""
    recipe = SMALL_PCDIFF.recipe(
        tmp_path, "model.diffusion.steps=1000", "model.diffusion.beta_end=0.2"
    )
    with pytest.raises(ConfigError, match=r"beta_end=0\.2 .*steps=1000: .* a signal of 0"):
        base_arrays(recipe.settings.model.diffusion)


class Oracle:
    """Knows the implant and so tells the noise exactly."""

    plans = ()
    extra_channels = 0

    def __init__(self, start: Tensor, known: diffusion.Arrays) -> None:
        self.start, self.known = start.transpose(1, 2), known

    def geometry(self, coords: Tensor) -> Geometry:
        return NoGeometry([])

    def __call__(self, x: Tensor, times: Tensor, geometry: Geometry) -> Tensor:
        implant = x[:, :, -self.start.shape[2] :]
        kept = diffusion.at(self.known.alphas_cumprod, times)
        noise = (implant - kept.sqrt() * self.start) / (1 - kept).sqrt()
        return torch.cat([torch.zeros_like(x[:, :, : -noise.shape[2]]), noise], dim=2)


class Gaussian(Oracle):
    """Tells the mean noise in clouds from a normal distribution about a start."""

    spread = 0.3

    def __call__(self, x: Tensor, times: Tensor, geometry: Geometry) -> Tensor:
        implant = x[:, :, -self.start.shape[2] :]
        kept = diffusion.at(self.known.alphas_cumprod, times)
        variance = kept * self.spread**2 + 1 - kept
        noise = (1 - kept).sqrt() * (implant - kept.sqrt() * self.start) / variance
        return torch.cat([torch.zeros_like(x[:, :, : -noise.shape[2]]), noise], dim=2)


class Surface(Oracle):
    """Tells the mean noise in clouds of points drawn from a surface, as those of implants are."""

    def __call__(self, x: Tensor, times: Tensor, geometry: Geometry) -> Tensor:
        kept = diffusion.at(self.known.alphas_cumprod, times)
        implant, surface = x[:, :, 5:].transpose(1, 2), kept.sqrt() * self.start.transpose(1, 2)
        weights = torch.softmax(-torch.cdist(implant, surface).square() / (2 - 2 * kept), dim=2)
        noise = (implant - weights @ surface) / (1 - kept).sqrt()
        return torch.cat([torch.zeros_like(x[:, :, :5]), noise.transpose(1, 2)], dim=2)


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
        ["evaluation.sampler=dpm_solver", "evaluation.steps=10"],
        ["evaluation.sampler=dpm_solver", "evaluation.steps=10", "evaluation.eta=1.0"],
        ["evaluation.sampler=sa_solver", "evaluation.steps=10"],
        ["evaluation.sampler=sa_solver", "evaluation.steps=10", "evaluation.eta=1.0"],
    ],
)
def test_an_oracle_is_led_to_what_it_knows(overrides: list[str], tmp_path: Path) -> None:
    settings = SMALL_PCDIFF.recipe(tmp_path, *overrides).settings
    plan = make_plan(settings.model.diffusion, settings.evaluation)
    start = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(5))
    oracle = Oracle(start, base_arrays(settings.model.diffusion))
    found = sample_implants(oracle, torch.zeros(2, 4, 3), 9, plan, generators(2))
    torch.testing.assert_close(found, start, atol=0.02, rtol=0)


@pytest.mark.parametrize("sampler", ["ddpm", "ddim", "dpm_solver", "sa_solver"])
def test_implants_stay_in_the_box_of_the_known_points(sampler: str, tmp_path: Path) -> None:
    words = [f"evaluation.sampler={sampler}", "evaluation.steps=20", "model.diffusion.steps=50"]
    words += ["model.diffusion.beta_end=0.3", "evaluation.box_margin=0.1"]
    settings = SMALL_PCDIFF.recipe(tmp_path, *words).settings
    plan = make_plan(settings.model.diffusion, settings.evaluation)
    start = 3 * torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(5))
    oracle = Oracle(start, base_arrays(settings.model.diffusion))
    known = torch.tensor([[[-1.0, -1, -1], [1, 1, 1]]]).expand(2, -1, -1)
    end = sample_implants(oracle, known, 9, plan, generators(2))  # type: ignore[arg-type]
    torch.testing.assert_close(end, start.clamp(-1.2, 1.2), atol=0.02, rtol=0)


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


def test_ddim_takes_denser_steps_where_little_noise_is_left(tmp_path: Path) -> None:
    def steps(power: float) -> list[int]:
        words = [
            f"evaluation.step_power={power}",
            "model.diffusion.steps=1000",
            "evaluation.steps=50",
        ]
        settings = SMALL_PCDIFF.recipe(tmp_path, *words).settings
        return make_plan(settings.model.diffusion, settings.evaluation).timesteps

    even, dense = steps(1.0), steps(2.0)
    assert (even[0], even[-1]) == (dense[0], dense[-1]) == (999, 0)
    assert sum(time < 100 for time in dense) > 2 * sum(time < 100 for time in even)
    gaps = -np.diff(dense)
    assert (np.diff(gaps) <= 1).all()  # up to rounding they shrink towards the end


@pytest.mark.parametrize("name", ["dpm_solver", "sa_solver"])
def test_solvers_take_the_step_power_or_their_own(name: str, tmp_path: Path) -> None:
    def steps(*words: str) -> list[int]:
        small = SMALL_PCDIFF.recipe(tmp_path, "evaluation.steps=10", *words).settings
        return make_plan(small.model.diffusion, small.evaluation).timesteps

    solver = f"evaluation.sampler={name}"
    assert steps(solver) == steps(solver, "evaluation.step_power=2")
    assert steps(solver) == steps("evaluation.step_power=2")  # those of ddim
    assert steps(solver, "evaluation.step_power=3") == steps("evaluation.step_power=3")
    assert steps(solver, "evaluation.step_power=3") != steps(solver)


def test_ddpm_says_once_which_settings_have_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["evaluation.sampler=ddpm", "evaluation.steps=10", "evaluation.eta=0.5"]
    settings = SMALL_PCDIFF.recipe(tmp_path, *words, "model.diffusion.steps=37").settings
    for _ in range(2):
        assert len(make_plan(settings.model.diffusion, settings.evaluation).timesteps) == 37
    (message,) = [record.getMessage() for record in caplog.records]
    assert "takes all 37 steps of training; evaluation.steps, step_power and eta" in message


@pytest.mark.parametrize("solver", ["dpm_solver", "sa_solver"])
def test_solvers_need_fewer_steps_than_ddim(solver: str, tmp_path: Path) -> None:
    """Of a normal distribution the end of the reverse process is known exactly."""
    start = torch.randn((2, 40, 3), generator=torch.Generator().manual_seed(1))
    known = torch.zeros((2, 5, 3))
    first = torch.stack([torch.randn((3, 40), generator=g) for g in generators(2)])

    def error(sampler: str, steps: int) -> float:
        words = [f"evaluation.sampler={sampler}", f"evaluation.steps={steps}", "evaluation.eta=0"]
        settings = SMALL_PCDIFF.recipe(tmp_path, *words).settings
        base = base_arrays(settings.model.diffusion)
        plan = make_plan(settings.model.diffusion, settings.evaluation)
        model = Gaussian(start, base)
        found = sample_implants(model, known, 40, plan, generators(2))  # type: ignore[arg-type]
        kept = base.alphas_cumprod[-1]
        width = (kept * model.spread**2 + 1 - kept).sqrt()
        offset = first.transpose(1, 2) - kept.sqrt() * start
        return float((found - start - model.spread / width * offset).abs().mean())

    assert error(solver, 20) < error("ddim", 50)
    assert error(solver, 40) < error(solver, 10)


@pytest.mark.parametrize("eta", [0, 1])
def test_solvers_reach_the_chamfer_distance_of_ddim_in_20_steps(eta: int, tmp_path: Path) -> None:
    """On two walls, with the diffusion of pcdiff_medium and a denoiser that knows the surface."""
    generator = torch.Generator().manual_seed(2)
    directions = torch.randn((6, 1000, 3), generator=generator)
    directions[..., 2] = directions[..., 2].abs() + 1
    radii = torch.where(torch.rand((6, 1000, 1), generator=generator) < 0.5, 2.4, 2.6)
    surface = radii * directions / directions.norm(dim=2, keepdim=True)
    truth = surface[:, torch.randperm(1000, generator=generator)[:250]]

    def chamfer(sampler: str, steps: int) -> float:
        words = [f"evaluation.sampler={sampler}", f"evaluation.steps={steps}"]
        words += [f"evaluation.eta={eta}", "evaluation.step_power=2"]
        words += ["model.diffusion.steps=1000", "model.diffusion.beta_end=0.02"]
        settings = SMALL_PCDIFF.recipe(tmp_path, *words, "model.diffusion.beta_start=1e-4").settings
        plan = make_plan(settings.model.diffusion, settings.evaluation)
        model = Surface(surface, base_arrays(settings.model.diffusion))
        found = sample_implants(model, torch.zeros((6, 5, 3)), 250, plan, generators(6))  # type: ignore[arg-type]
        pairs = zip(found, truth, strict=True)
        return float(np.mean([cloud_scores(a, b, 1.0)["chamfer"] for a, b in pairs]))

    expected = chamfer("ddim", 50)
    for solver in ("dpm_solver", "sa_solver"):
        assert chamfer(solver, 20) < 1.05 * expected, solver
        assert chamfer(solver, 4) > 1.1 * expected, solver  # the test can tell


def test_shared_noise_reaches_the_start_and_every_step() -> None:
    start = torch.zeros((64, 30, 3))
    known = arrays()

    def sampled(shared: float, eta: float) -> Tensor:
        spaced = diffusion.respace(known, 2)
        plan = Plan(spaced.arrays, spaced.timesteps[:1], None, eta, shared_noise=shared)
        generators = [torch.Generator().manual_seed(number) for number in range(64)]
        model = Oracle(start, spaced.arrays)
        return sample_implants(model, torch.zeros((64, 5, 3)), 30, plan, generators)  # type: ignore[arg-type]

    separate, shared = (sampled(value, 1.0).mean(dim=1).std() for value in (0.0, 1.0))
    assert float(shared) > 4 * float(separate)


def test_marked_points_are_told_from_the_skull_s(tmp_path: Path) -> None:
    joined = join_points(torch.zeros(2, 3, 4), torch.ones(2, 3, 2), marked=True)
    assert joined.shape == (2, 4, 6)
    assert joined[0, 3].tolist() == [0, 0, 0, 0, 1, 1]
    assert join_points(torch.zeros(2, 3, 4), torch.ones(2, 3, 2), marked=False).shape == (2, 3, 6)
    recipe = SMALL_PCDIFF.recipe(
        tmp_path, "model.marked_points=true", "model.diffusion.shared_noise=1.0"
    )
    recipe.build_dataset()
    torch.manual_seed(0)
    model = recipe.build_model()
    recipe.loss(model, recipe.example_batch(2), {"samples": torch.tensor(2)}, 0).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.inference_mode():
        scores = recipe.evaluate(model.eval(), init_distributed("cpu"))
    assert scores["val_loss"] > 0


@pytest.mark.parametrize("solver", ["dpm_solver", "sa_solver"])
def test_a_random_solver_comes_near_the_distribution(solver: str, tmp_path: Path) -> None:
    """Samples of a normal distribution keep its mean; twice the steps halve the error of width."""

    def error(steps: int) -> float:
        words = [
            f"evaluation.sampler={solver}",
            "evaluation.eta=1.0",
            "model.diffusion.steps=1000",
        ]
        words += ["model.diffusion.beta_start=1e-4", "model.diffusion.beta_end=0.02"]
        settings = SMALL_PCDIFF.recipe(tmp_path, *words, f"evaluation.steps={steps}").settings
        plan = make_plan(settings.model.diffusion, settings.evaluation)
        assert plan.is_random
        model = Gaussian(torch.zeros((1, 4000, 3)), base_arrays(settings.model.diffusion))
        known = torch.zeros((1, 5, 3))
        end = sample_implants(model, known, 4000, plan, generators(1))  # type: ignore[arg-type]
        assert end.mean().abs() < 0.02
        return abs(float(end.std()) / model.spread - 1)

    assert error(40) < 0.5 * error(20) < 0.08


def test_sa_solver_does_not_repeat_the_errors_of_a_network(tmp_path: Path) -> None:
    """With a network that is wrong at every step, in a new way each time."""

    class Wrong(Gaussian):
        spread = 0.03
        random = torch.Generator().manual_seed(4)

        def __call__(self, x: Tensor, times: Tensor, geometry: Geometry) -> Tensor:
            noise = super().__call__(x, times, geometry)
            kept = diffusion.at(self.known.alphas_cumprod, times)
            error = 0.03 * torch.randn(noise.shape, generator=self.random)
            return noise + (kept / (1 - kept)).sqrt() * error

    def scatter(sampler: str, steps: int) -> float:
        words = [f"evaluation.sampler={sampler}", f"evaluation.steps={steps}"]
        words += ["evaluation.eta=1", "evaluation.step_power=2", "model.diffusion.steps=1000"]
        words += ["model.diffusion.beta_start=1e-4", "model.diffusion.beta_end=0.02"]
        settings = SMALL_PCDIFF.recipe(tmp_path, *words).settings
        plan = make_plan(settings.model.diffusion, settings.evaluation)
        model = Wrong(torch.zeros((1, 2000, 3)), base_arrays(settings.model.diffusion))
        end = sample_implants(model, torch.zeros((1, 5, 3)), 2000, plan, generators(1))  # type: ignore[arg-type]
        return float(end.std())

    expected = scatter("ddim", 50)
    assert scatter("sa_solver", 20) < 1.1 * expected
    assert scatter("dpm_solver", 20) > 1.15 * expected  # the test can tell
