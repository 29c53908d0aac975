"""Sample implants for skulls: the reverse process from noise, entirely on the device.

Letters: B clouds, S known points, K implant points. A reverse step has fixed shapes and no
synchronization, so on CUDA it is recorded once as a graph and replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from overt.distributed import is_main_process
from overt.errors import ConfigError
from overt.progress import each
from overt.recipes.pcdiff.config import DiffusionSettings, EvaluationSettings
from overt.recipes.pcdiff.denoiser import Denoiser, join_points
from overt.recipes.pcdiff.diffusion import (
    Arrays,
    SolverTable,
    box_around,
    ddim_step,
    ddpm_step,
    keep_inside,
    log_variance,
    make_arrays,
    make_betas,
    make_solver,
    predict_start,
    respace,
    solver_step,
)

logger = logging.getLogger(__name__)

SOLVERS = ("dpm_solver", "sa_solver")  # of second order
SOLVER_POWER = 2.0  # of these, where evaluation.step_power is 1


class Plan(NamedTuple):
    """The steps to take, from the noisiest down, and the sampler."""

    arrays: Arrays
    timesteps: list[int]
    variance: str | None  # of DDPM; None: another sampler
    eta: float
    solver: SolverTable | None = None  # of a solver of second order
    shared_noise: float = 0.0  # as in training
    box_margin: float | None = None

    @property
    def is_random(self) -> bool:
        return self.variance is not None or self.eta > 0


def base_arrays(settings: DiffusionSettings) -> Arrays:
    """The arrays of training."""
    betas = make_betas(settings.schedule, settings.beta_start, settings.beta_end, settings.steps)
    # float32 has to hold its inverse. Told by numpy: the tensors of a plan hold no values.
    if (1.0 - betas).prod() < 1.0 / np.finfo(np.float32).max:
        raise ConfigError(
            f"model.diffusion.beta_end={settings.beta_end} with model.diffusion.steps="
            f"{settings.steps}: the last steps leave a signal of 0, from which nothing can be "
            "sampled; lower one of them (published: 0.02 with 1000)"
        )
    return make_arrays(betas)


def make_plan(diffusion: DiffusionSettings, evaluation: EvaluationSettings) -> Plan:
    """Return the steps requested by the settings."""
    arrays = base_arrays(diffusion)
    shared, margin = diffusion.shared_noise, evaluation.box_margin
    if evaluation.sampler == "ddpm":
        _announce_all_steps(diffusion.steps)
        steps = list(range(diffusion.steps - 1, -1, -1))
        return Plan(arrays, steps, diffusion.variance, 0.0, None, shared, margin)
    if evaluation.sampler in SOLVERS:
        # The last steps change the signal-to-noise ratio most: a second-order solver needs them
        # closer together.
        power = SOLVER_POWER if evaluation.step_power == 1 else evaluation.step_power
        spaced = respace(arrays, evaluation.steps, power)
        eta = evaluation.eta
        corrects = evaluation.sampler == "sa_solver"
        solver = make_solver(spaced.arrays, spaced.timesteps, eta, corrects)
        return Plan(spaced.arrays, spaced.timesteps, None, eta, solver, shared, margin)
    spaced = respace(arrays, evaluation.steps, evaluation.step_power)
    return Plan(spaced.arrays, spaced.timesteps, None, evaluation.eta, None, shared, margin)


@cache
def _announce_all_steps(total: int) -> None:
    """Log once that some settings have no effect: recipes set them for other samplers."""
    if is_main_process():
        logger.warning(
            "evaluation.sampler=ddpm takes all %d steps of training; evaluation.steps, step_power "
            "and eta have no effect (use ddim, dpm_solver or sa_solver for fewer steps)",
            total,
        )


class ReverseStep:
    """One step of the reverse process in place: `x`, at `times`, with `noise`."""

    def __init__(self, model: Denoiser, known: Tensor, count: int, plan: Plan) -> None:
        device, batch = known.device, len(known)
        self.model, self.plan = model, plan
        self.arrays = plan.arrays.to(device)
        self.log_variances = (
            None if plan.variance is None else log_variance(self.arrays, plan.variance)
        )
        self.known = known.transpose(1, 2).contiguous()  # (B, 3, S)
        margin = plan.box_margin
        self.box = None if margin is None else box_around(self.known, margin)
        self.x = torch.zeros((batch, 3, count), device=device)
        self.noise = torch.zeros_like(self.x)
        self.solver = None if plan.solver is None else plan.solver.to(device)
        self.start = torch.zeros_like(self.x)  # x_0 as the step before predicted it
        self.times = torch.zeros(batch, dtype=torch.int64, device=device)
        # Peak usage of the room for neighbors; above 1 some were dropped.
        self.fullest = torch.zeros((), device=device)

    def __call__(self) -> None:
        cloud = join_points(self.known, self.x, self.model.extra_channels > 0)
        geometry = self.model.geometry(cloud[:, :3].transpose(1, 2))
        self.fullest.copy_(torch.maximum(self.fullest, geometry.fullest()))
        predicted = self.model(cloud, self.times, geometry)[:, :, self.known.shape[2] :]
        if self.box is not None:
            predicted = keep_inside(self.arrays, self.x, self.times, predicted, self.box)
        if self.solver is not None:
            start = predict_start(self.arrays, self.x, self.times, predicted)
            after = solver_step(self.solver, self.x, self.times, start, self.start, self.noise)
            self.start.copy_(start)
        elif self.log_variances is None:
            after = ddim_step(self.arrays, self.x, self.times, predicted, self.noise, self.plan.eta)
        else:
            after = ddpm_step(
                self.arrays, self.x, self.times, predicted, self.noise, self.log_variances
            )
        self.x.copy_(after)


@torch.no_grad()
def sample_implants(
    model: Denoiser,
    known: Tensor,  # (B, S, 3)
    count: int,
    plan: Plan,
    generators: Sequence[torch.Generator],  # one for each cloud, on its device
    cuda_graph: bool = False,
) -> Tensor:
    """Sample points (B, K, 3) that complete the clouds; each cloud has its own noise."""
    step = ReverseStep(model, known, count, plan)
    run: Callable[[], None] = step
    fixed = all(level.pairs_per_center is not None for level in model.plans)
    if cuda_graph and known.is_cuda and fixed:
        run = record(step)
        step.fullest.zero_()
        step.start.zero_()

    def draw(target: Tensor) -> None:
        for cloud, generator in zip(target, generators, strict=True):
            cloud.normal_(generator=generator)
            if plan.shared_noise > 0:
                common = torch.empty_like(cloud[:, :1]).normal_(generator=generator)  # (3, 1)
                cloud.add_(common, alpha=plan.shared_noise)

    draw(step.x)
    timesteps = torch.tensor(plan.timesteps, device=known.device)
    for time in each(list(timesteps), "sampling steps"):
        step.times.copy_(time.expand_as(step.times))
        if plan.is_random:
            draw(step.noise)
        run()
    refuse_overflow(float(step.fullest))
    return step.x.transpose(1, 2).contiguous()


def record(step: Callable[[], None]) -> Callable[[], None]:
    """A CUDA graph of the step; recording runs it a few times."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    # A cast weight cached by autocast would belong to the graph's memory.
    with torch.autocast(
        "cuda",
        torch.get_autocast_dtype("cuda"),
        enabled=torch.is_autocast_enabled("cuda"),
        cache_enabled=False,
    ):
        with torch.cuda.stream(stream):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return graph.replay


def refuse_overflow(fullest: float) -> None:
    """Raise an error if neighbors were dropped."""
    if fullest > 1:
        raise ConfigError(
            f"a level has {fullest:.2f} times as many neighbors as its pairs_per_center (in "
            "model.down) has room for; raise it by as much, or set it to null"
        )
