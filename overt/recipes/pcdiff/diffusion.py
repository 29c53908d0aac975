"""Gaussian diffusion of the implant's points: schedules, the forward process, one reverse step.

Letters: T steps, B clouds, K implant points. Arrays are computed in float64 where rounding matters,
then in float32, in the order of the published code, with which checkpoints were trained.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WARM = {"warm0.1": 0.1, "warm0.2": 0.2, "warm0.5": 0.5}
SCHEDULES = ("linear", *WARM, "cosine")


def make_betas(schedule: str, start: float, end: float, steps: int) -> NDArray[np.float64]:
    """Return the variances added by the steps, in float64."""
    if schedule == "linear":
        return np.linspace(start, end, steps)
    if schedule in WARM:
        betas = np.full(steps, end)
        warm = int(steps * WARM[schedule])
        betas[:warm] = np.linspace(start, end, warm)
        return betas
    assert schedule == "cosine", "the settings have refused others"
    points = np.arange(steps + 1) / steps
    alphas_cumprod = np.cos((points + 0.008) / 1.008 * np.pi / 2) ** 2
    alphas_cumprod = alphas_cumprod / alphas_cumprod[0]
    return np.asarray(
        np.clip(1 - alphas_cumprod[1:] / alphas_cumprod[:-1], 1e-6, 0.999), dtype=np.float64
    )


@dataclass(frozen=True)
class Arrays:
    """Coefficients of each step t, (T,) float32 each, with the names of the published code."""

    betas: Tensor
    alphas_cumprod: Tensor
    alphas_cumprod_prev: Tensor
    sqrt_alphas_cumprod: Tensor
    sqrt_one_minus_alphas_cumprod: Tensor
    log_one_minus_alphas_cumprod: Tensor
    sqrt_recip_alphas_cumprod: Tensor
    sqrt_recipm1_alphas_cumprod: Tensor
    posterior_variance: Tensor
    posterior_log_variance_clipped: Tensor
    posterior_mean_coef1: Tensor
    posterior_mean_coef2: Tensor

    def to(self, device: torch.device) -> Arrays:
        return Arrays(*(getattr(self, field.name).to(device) for field in fields(self)))


def make_arrays(betas: NDArray[np.float64], alphas: NDArray[np.float64] | None = None) -> Arrays:
    """Return the coefficients of a sequence of variances; `alphas` is 1 - betas, unless given."""
    alphas = 1.0 - betas if alphas is None else alphas
    beta, alpha, alpha_cumprod = (
        torch.from_numpy(values.astype(np.float32)) for values in (betas, alphas, alphas.cumprod())
    )
    before = torch.cat([alpha_cumprod.new_ones(1), alpha_cumprod[:-1]])
    variance = beta * (1.0 - before) / (1.0 - alpha_cumprod)
    return Arrays(
        betas=beta,
        alphas_cumprod=alpha_cumprod,
        alphas_cumprod_prev=before,
        sqrt_alphas_cumprod=alpha_cumprod.sqrt(),
        sqrt_one_minus_alphas_cumprod=(1.0 - alpha_cumprod).sqrt(),
        log_one_minus_alphas_cumprod=(1.0 - alpha_cumprod).log(),
        sqrt_recip_alphas_cumprod=(1.0 / alpha_cumprod).sqrt(),
        sqrt_recipm1_alphas_cumprod=(1.0 / alpha_cumprod - 1.0).sqrt(),
        posterior_variance=variance,
        posterior_log_variance_clipped=variance.clamp(min=1e-20).log(),
        posterior_mean_coef1=beta * before.sqrt() / (1.0 - alpha_cumprod),
        posterior_mean_coef2=(1.0 - before) * alpha.sqrt() / (1.0 - alpha_cumprod),
    )


class Respaced(NamedTuple):
    """Coefficients for fewer steps, still indexed by the original t."""

    arrays: Arrays
    timesteps: list[int]  # in the order of sampling, from the noisiest down


def respace(arrays: Arrays, steps: int, power: float = 1.0) -> Respaced:
    """Keep exactly `steps` of the T steps, including the first and the last.

    They are evenly spaced (DDIM); with a power of 2 they are denser where little noise is left, up
    to every one.
    """
    total = len(arrays.betas)
    # numpy rounds halves to even, as the published code does.
    spread = np.linspace(0, total - 1, steps)
    if power != 1.0:
        spread = (spread / (total - 1)) ** power * (total - 1)
    # Dense steps round to the same t; each takes the next free one, below those that follow.
    order = np.arange(steps)
    rounded = np.round(spread).astype(int)
    timesteps = np.maximum.accumulate(rounded - order) + order
    timesteps = np.minimum(timesteps, total - steps + order)
    cumulative = arrays.alphas_cumprod.numpy()
    betas = np.zeros(total, dtype=np.float32)
    kept = np.ones(total)
    before = np.float32(1.0)
    for step in timesteps:
        kept[step] = float(cumulative[step]) / float(before)
        betas[step] = np.float32(1.0) - cumulative[step] / before
        before = cumulative[step]
    # As in the published code, also where rounding a beta near 1 changes what is left by percents.
    # Only a beta that rounds to 1 would leave nothing, and samples would be non-finite (the cosine
    # schedule with few steps): there the ratio itself is taken.
    alphas = np.where(betas == 1.0, kept, 1.0 - betas.astype(np.float64))
    return Respaced(make_arrays(betas.astype(np.float64), alphas), timesteps[::-1].tolist())


def at(values: Tensor, times: Tensor) -> Tensor:
    """Return values at times (B,) as (B, 1, 1), to multiply clouds with."""
    return values.index_select(0, times)[:, None, None]


def add_noise(arrays: Arrays, clouds: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    """Return x_t of clouds (B, K, 3) or (B, 3, K)."""
    signal, strength = arrays.sqrt_alphas_cumprod, arrays.sqrt_one_minus_alphas_cumprod
    return at(signal, times) * clouds + at(strength, times) * noise


def predict_start(arrays: Arrays, x: Tensor, times: Tensor, noise: Tensor) -> Tensor:
    """Return x_0 from x_t and its noise, without clipping."""
    up, down = arrays.sqrt_recip_alphas_cumprod, arrays.sqrt_recipm1_alphas_cumprod
    return at(up, times) * x - at(down, times) * noise


class Box(NamedTuple):
    """Limits of x_0 along each axis, (B, 3, 1) each."""

    low: Tensor
    high: Tensor


def box_around(points: Tensor, margin: float) -> Box:
    """Return the bounding box of points (B, 3, S), enlarged by a fraction of its sides."""
    low, high = points.amin(2, keepdim=True), points.amax(2, keepdim=True)
    room = margin * (high - low)
    return Box(low - room, high + room)


def keep_inside(arrays: Arrays, x: Tensor, times: Tensor, noise: Tensor, box: Box) -> Tensor:
    """Return the noise of x_t, changed as little as possible so that x_0 is inside the box.

    At the noisiest steps an error in the noise is multiplied by 1 / sqrt(alphas_cumprod), above
    100: a sampler that follows it leaves the training distribution.
    """
    start = predict_start(arrays, x, times, noise).clamp(box.low, box.high)
    up, down = arrays.sqrt_recip_alphas_cumprod, arrays.sqrt_recipm1_alphas_cumprod
    return (at(up, times) * x - start) / at(down, times)


def posterior_mean(arrays: Arrays, start: Tensor, x: Tensor, times: Tensor) -> Tensor:
    """Return the mean of x_{t-1} given x_t and x_0."""
    first, second = arrays.posterior_mean_coef1, arrays.posterior_mean_coef2
    return at(first, times) * start + at(second, times) * x


def log_variance(arrays: Arrays, kind: str) -> Tensor:
    """Return reverse-step variances (T,): `fixedsmall` the posterior's, `fixedlarge` beta."""
    if kind == "fixedsmall":
        return arrays.posterior_log_variance_clipped
    assert kind == "fixedlarge", "the settings have refused others"
    return torch.cat([arrays.posterior_variance[1:2], arrays.betas[1:]]).log()


def ddpm_step(
    arrays: Arrays,
    x: Tensor,  # (B, 3, K) at times
    times: Tensor,  # (B,)
    predicted: Tensor,  # (B, 3, K) noise in x
    noise: Tensor,  # (B, 3, K) standard normal
    log_variances: Tensor,  # (T,)
) -> Tensor:
    """Take one step of the ancestral sampler, to t - 1; no noise is added at t = 0."""
    mean = posterior_mean(arrays, predict_start(arrays, x, times, predicted), x, times)
    moves = (times > 0).to(x.dtype)[:, None, None]
    return mean + moves * (0.5 * at(log_variances, times)).exp() * noise


def ddim_step(
    arrays: Arrays,  # respaced
    x: Tensor,  # (B, 3, K) at times
    times: Tensor,  # (B,)
    predicted: Tensor,  # (B, 3, K) noise in x
    noise: Tensor,  # (B, 3, K) standard normal; unused with eta 0
    eta: float,
) -> Tensor:
    """Take one step of DDIM, to the previous kept step."""
    start = predict_start(arrays, x, times, predicted)
    alpha_cumprod, before = at(arrays.alphas_cumprod, times), at(arrays.alphas_cumprod_prev, times)
    deviation = (
        eta * ((1 - before) / (1 - alpha_cumprod)).sqrt() * (1 - alpha_cumprod / before).sqrt()
    )
    direction = (1 - before - deviation**2).clamp(min=0).sqrt() * predicted
    return before.sqrt() * start + direction + deviation * noise


class SolverTable(NamedTuple):
    """Coefficients (T,) of a solver of second order, by t: DPM-Solver++ or SA-Solver."""

    kept: Tensor  # factor of x_t
    added: Tensor  # factor of x_0
    extrapolated: Tensor  # weight of the change of x_0 since the step before, for the next x_t
    corrected: Tensor  # factor of that change, for the x_t at which it was found
    noise: Tensor  # factor of new noise

    def to(self, device: torch.device) -> SolverTable:
        return SolverTable(*(values.to(device) for values in self))


def make_solver(
    arrays: Arrays, timesteps: list[int], eta: float = 0.0, corrects: bool = False
) -> SolverTable:
    """Return the coefficients for respaced arrays and their steps, from the noisiest down.

    With eta 0 it solves the probability-flow ODE, with eta 1 the reverse SDE. DPM-Solver++ (2M,
    arXiv:2211.01095) extrapolates x_0. SA-Solver (`corrects`; a predictor of first order and a
    corrector of second, arXiv:2309.05019) interpolates it instead: once x_0 is known at the end of
    a step, it repeats the step with the same noise. The first step has no predecessor and the last
    one ends without noise, so both are of first order.
    """
    total = len(arrays.betas)
    kept, added, extrapolated, corrected, noise = (np.zeros(total) for _ in range(5))
    alphas_cumprod = arrays.alphas_cumprod.double().numpy()
    after = arrays.alphas_cumprod_prev.double().numpy()
    before: float | None = None  # change of the log signal-to-noise ratio in the step before
    for time in timesteps:
        if before is not None and corrects:
            # The step before had x_0 constant; the weight of a linear change from 0 to 1.
            span = (1 + eta) * before
            corrected[time] = np.sqrt(alphas_cumprod[time]) * (1 + np.expm1(-span) / span)
        if after[time] >= 1.0 or time == timesteps[-1]:
            added[time] = 1.0
            break
        change = 0.5 * float(
            np.log(after[time] / (1 - after[time]))
            - np.log(alphas_cumprod[time] / (1 - alphas_cumprod[time]))
        )
        forgotten = np.exp(-eta * change)
        kept[time] = forgotten * np.sqrt((1 - after[time]) / (1 - alphas_cumprod[time]))
        added[time] = np.sqrt(after[time]) * -np.expm1(-(1 + eta) * change)
        noise[time] = np.sqrt((1 - after[time]) * (1 - forgotten**2))
        if before is not None and not corrects:
            extrapolated[time] = change / (2 * before)
        before = change
    columns = (kept, added, extrapolated, corrected, noise)
    return SolverTable(*(torch.from_numpy(values.astype(np.float32)) for values in columns))


def solver_step(
    table: SolverTable, x: Tensor, times: Tensor, start: Tensor, start_before: Tensor, noise: Tensor
) -> Tensor:
    """Take one step of a solver, given x_0 (B, 3, K) at this and the previous step."""
    change = start - start_before
    x = x + at(table.corrected, times) * change
    ahead = start + at(table.extrapolated, times) * change
    moved = at(table.kept, times) * x + at(table.added, times) * ahead
    return moved + at(table.noise, times) * noise


def squared_error(noise: Tensor, predicted: Tensor) -> Tensor:
    """Return the mean squared error of each cloud, (B,)."""
    return (noise - predicted).square().flatten(1).mean(1)


def min_snr_weight(arrays: Arrays, times: Tensor, gamma: float) -> Tensor:
    """Return min(SNR, gamma) / SNR at times (B,)."""
    alpha_cumprod = arrays.alphas_cumprod.index_select(0, times)
    ratio = alpha_cumprod / (1 - alpha_cumprod)
    return ratio.clamp(max=gamma) / ratio


def posterior_divergence(
    arrays: Arrays, start: Tensor, x: Tensor, times: Tensor, predicted: Tensor, kind: str
) -> Tensor:
    """Return the KL divergence in bits of the true reverse step from the predicted one, (B,).

    It is the mean over all coordinates. At t = 0 the true step has almost no variance; both then
    use the clipped variance, as in the published code.
    """
    true_mean = posterior_mean(arrays, start, x, times)
    mean = posterior_mean(arrays, predict_start(arrays, x, times, predicted), x, times)
    true_log = at(arrays.posterior_log_variance_clipped, times)
    log = at(log_variance(arrays, kind), times)
    divergence = 0.5 * (
        log - true_log - 1.0 + (true_log - log).exp() + (true_mean - mean).square() * (-log).exp()
    )
    return divergence.flatten(1).mean(1) / float(np.log(2.0))
