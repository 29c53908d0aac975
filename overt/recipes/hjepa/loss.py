"""The losses: distance of prediction and target on every level, and terms against collapse.

Distances are sums over this micro-batch divided by counts of the global batch. The other terms mix
samples: they are computed from sums over all ranks, with gradients, for each micro-batch.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_reduce
from torch.utils.checkpoint import checkpoint

from overt.distributed import all_reduce_sum, get_rank, get_world_size
from overt.ops.float64 import sum_dtype

SLICES_AT_ONCE = 64


def distance(
    prediction: Tensor, target: Tensor, kind: str, delta: float = 1.0, normalize: bool = False
) -> Tensor:
    """Return the loss of each token, (...), from (..., D): the mean over its features.

    `kind` is mse, smoothl1 or huber (with `delta`); `normalize` compares directions only.
    """
    prediction, target = prediction.float(), target.float()
    if normalize:
        prediction = F.normalize(prediction, dim=-1, eps=1e-8)
        target = F.normalize(target, dim=-1, eps=1e-8)
    match kind:
        case "mse":
            element_loss = F.mse_loss(prediction, target, reduction="none")
        case "smoothl1":
            element_loss = F.smooth_l1_loss(prediction, target, reduction="none")
        case "huber":
            element_loss = F.huber_loss(prediction, target, reduction="none", delta=delta)
        case _:
            raise ValueError(f"kind={kind!r}; allowed: mse, smoothl1 and huber")
    return element_loss.mean(-1)


def level_losses(
    predictions: list[Tensor],
    targets: list[Tensor],
    valid: list[Tensor],
    counts: Tensor,  # (L,) tokens that count on each level, of the global batch
    kind: str,
    delta: float = 1.0,
    normalize: bool = False,
) -> list[Tensor]:
    """Return this micro-batch's contribution to the mean distance over valid tokens, by level."""
    return [
        (distance(prediction, target, kind, delta, normalize) * counted).sum() / count.clamp(min=1)
        for prediction, target, counted, count in zip(
            predictions, targets, valid, counts, strict=True
        )
    ]


# --- terms that mix samples ----------------------------------------------------------------------


def sum_everywhere(value: Tensor) -> Tensor:
    """Sum over all ranks; gradients reach the value of each."""
    return all_reduce(value) if dist.is_initialized() else value  # type: ignore[no-untyped-call]


def spread(rows: Tensor, eps: float = 1e-4) -> tuple[Tensor, Tensor]:
    """Return VICReg's variance and covariance terms of the rows (n, D) of all ranks."""
    rows = rows.float()
    count = all_reduce_sum(rows.new_full((), float(len(rows))))
    centred = rows - sum_everywhere(rows.sum(0)) / count
    covariance = sum_everywhere(centred.T @ centred) / (count - 1)
    variance = covariance.diagonal()
    width = rows.shape[1]
    # Not the difference of two sums: with many rows the diagonal's would hide the rest.
    off_diagonal = (covariance - variance.diag()).square().sum()
    deviation = (variance + eps).sqrt()
    return F.relu(1.0 - deviation).mean(), off_diagonal / (width * (width - 1))


def sigreg(rows: Tensor, slices: Tensor, standardize: bool = False) -> Tensor:
    """Return the distance of the rows (n, D) of all ranks from a standard normal distribution.

    The mean over the directions `slices` (S, D) of the Epps-Pulley distance between characteristic
    functions. `standardize` removes mean and scale first, which the reference does and LeJEPA
    advises against.
    """
    rows = rows.float()
    count = all_reduce_sum(rows.new_full((), float(len(rows))))
    parts = [
        checkpoint(
            _slice_distances,
            *(rows, chunk, count, standardize),
            use_reentrant=False,
            preserve_rng_state=False,  # nothing is drawn; to ask for the state is to wait
        )
        for chunk in torch.split(slices.to(rows.dtype), SLICES_AT_ONCE)
    ]
    return torch.cat(parts).mean()


def _slice_distances(rows: Tensor, slices: Tensor, count: Tensor, standardize: bool) -> Tensor:
    values = rows @ slices.T  # (n, S)
    if standardize:
        values = values - sum_everywhere(values.sum(0)) / count
        deviation = (sum_everywhere(values.square().sum(0)) / (count - 1)).sqrt()
        values = values / (deviation + 1e-6)
    points = torch.linspace(0.2, 4.0, 32, dtype=rows.dtype, device=rows.device)
    angles = values[..., None] * points  # (n, S, 32)
    sums = torch.stack([angles.cos().sum(0), angles.sin().sum(0)])
    cosine, sine = sum_everywhere(sums) / count  # (S, 32)
    normal = torch.exp(-points.square() / 2)  # its characteristic function, and the weight
    error = (cosine - normal).square() + sine.square()
    return torch.trapezoid(error * normal, points)


def sigreg_by_points(rows: Tensor, slices: Tensor, standardize: bool = False) -> Tensor:
    """Return the same distance by kernels: between rows, with 17 points of a normal, and these.

    The reference's other test, for comparison: it needs rows x rows numbers for each direction.
    """
    rows = gather_rows(rows.float())
    levels = torch.linspace(0.01, 0.99, 17, device=rows.device)
    points = torch.special.ndtri(levels)[None]  # (1, 17)
    within = _kernel_mean(points, points)
    distances = []
    for direction in slices.to(rows.dtype):
        values = (rows @ direction)[None]  # (1, n)
        if standardize:
            values = (values - values.mean()) / (values.std() + 1e-6)
        distances.append(_kernel_mean(values, values) - 2 * _kernel_mean(values, points) + within)
    return torch.stack(distances).mean().to(rows.dtype)


def _kernel_mean(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean of exp(-(x - y)^2 / 2) over all pairs.

    In float64: the distance is a small difference of such means.
    """
    kernel = torch.exp(-(first.T - second).square() / 2)
    return kernel.mean(dtype=sum_dtype(kernel.device))


def random_slices(count: int, width: int, seed: int, device: torch.device) -> Tensor:
    """Return unit vectors (count, width) that follow from the seed: the same on every rank."""
    generator = torch.Generator(device).manual_seed(seed)
    vectors = torch.randn(count, width, generator=generator, device=device)
    return F.normalize(vectors, dim=1)


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows (n, D) of all ranks in rank order; gradients reach their owner."""
    if not dist.is_initialized():
        return rows
    sizes = torch.zeros(get_world_size(), dtype=torch.int64, device=rows.device)
    sizes[get_rank()] = len(rows)
    lengths = all_reduce_sum(sizes).tolist()  # waits for the device
    begin = sum(lengths[: get_rank()])
    padding = (0, 0, begin, sum(lengths) - begin - len(rows))
    return sum_everywhere(F.pad(rows, padding))


def contrastive(first: Tensor, second: Tensor, temperature: float = 0.1) -> dict[str, Tensor]:
    """Return NT-Xent between two views (n, D) of the samples of all ranks."""
    views = torch.cat([gather_rows(first.float()), gather_rows(second.float())])
    views = F.normalize(views, dim=1)
    count = len(views) // 2
    logits = views @ views.T / temperature  # (2 n, 2 n)
    positive = torch.arange(2 * count, device=views.device).roll(count)
    itself = torch.eye(2 * count, dtype=torch.bool, device=views.device)
    logits = logits.masked_fill(itself, float("-inf"))
    right = (logits.argmax(1) == positive).float().mean()
    similarity = logits.gather(1, positive[:, None]).mean()
    return {
        "loss": F.cross_entropy(logits, positive),
        "accuracy": right,
        "positive_similarity": similarity.detach(),
    }
