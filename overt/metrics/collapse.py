"""How much the features of different inputs differ: what falls when a representation collapses.

Effective rank is the exponential of the entropy of the singular values. These are never computed
from a wide matrix, but from a triangular one of its shorter side. Rows of several processes have a
common covariance instead, whose eigenvalues are the squares: it loses half of the digits, so that
singular values below 1e-7 of the largest are noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from overt.distributed import all_reduce_sum, get_world_size
from overt.ops.float64 import exact

TOKEN_NAMES = ("std", "std_min", "norm", "rank")


@torch.no_grad()
def token_statistics(tokens: Tensor) -> Tensor:
    """Spread of the tokens (n, D) of all processes around their mean, (4,), as in TOKEN_NAMES.

    Mean and least standard deviation of a feature (unbiased), mean length of a token, effective
    rank of the centered tokens. In float64: the square root magnifies rounding of zero eigenvalues,
    and that is where it matters.
    """
    rows = exact(tokens)
    first = torch.cat([rows.sum(0), rows.norm(dim=1).sum()[None], rows.new_tensor([len(rows)])])
    first = all_reduce_sum(first)
    count = first[-1]
    centred = rows - first[:-2] / count
    covariance = all_reduce_sum(centred.T @ centred) / (count - 1).clamp(min=1)
    deviation = covariance.diagonal().sqrt()
    size = first[-2] / count
    if get_world_size() == 1:
        singular = singular_values_of(centred) / (count - 1).clamp(min=1).sqrt()
    else:
        squares = eigenvalues_of(covariance)
        singular = squares.where(~(squares <= 0), 0.0).sqrt()  # NaN stays
    rank = rank_of(singular, floor=1e-12 * size)
    return torch.stack([deviation.mean(), deviation.min(), size, rank])


def singular_values_of(rows: Tensor) -> Tensor:
    """Of a matrix of any shape; NaN where it holds NaN or Inf, which LAPACK refuses."""
    finite = rows.isfinite().all()
    tall = rows if rows.shape[0] >= rows.shape[1] else rows.T
    triangle = torch.linalg.qr(torch.where(finite, tall, 0.0), mode="r").R
    return torch.where(finite, torch.linalg.svdvals(triangle), torch.nan)


def eigenvalues_of(matrix: Tensor) -> Tensor:
    """Of a symmetric matrix; NaN where it holds NaN or Inf, which LAPACK refuses."""
    finite = matrix.isfinite().all()
    eigenvalues: Tensor = torch.linalg.eigvalsh(torch.where(finite, matrix, 0.0))
    return torch.where(finite, eigenvalues, torch.nan)


def rank_of(singular: Tensor, floor: Tensor) -> Tensor:
    """The effective rank of a matrix with these singular values; those up to the floor are zero.

    Where all are, the rank is 1.
    """
    singular = singular.where(~(singular <= floor), 0.0)  # NaN stays
    fractions = singular / singular.sum().clamp(min=torch.finfo(singular.dtype).tiny)
    return torch.exp(-(fractions * torch.log(fractions + 1e-12)).sum())


@torch.no_grad()
def image_statistics(features: Tensor) -> Tensor:
    """The H-JEPA reference's numbers for features (B, ...), (3,): std, norm and effective rank.

    A row is a whole image; nothing is centered; the rank is that of the first 100 rows.
    """
    rows = exact(features).flatten(1)
    singular = singular_values_of(rows[:100])
    fractions = singular / singular.sum()
    rank = torch.exp(-(fractions * torch.log(fractions + 1e-8)).sum())
    return torch.stack([rows.std(), rows.norm(dim=1).mean(), rank])


@torch.no_grad()
def spectrum_scores(features: Tensor) -> dict[str, float]:
    """What the spectrum of features (n, D), one row for each image, tells without labels.

    `rankme` (arXiv:2210.02885) is the effective rank, 1 to D: the higher, the better in most runs.
    `alpha_req` (arXiv:2210.13583) is the exponent with which the eigenvalues of the covariance
    fall: near 1 is best, above it few directions hold everything.
    """
    rows = exact(features)
    if len(rows) < 2 or not rows.isfinite().all():
        return {"rankme": torch.nan, "alpha_req": torch.nan}
    squares = eigenvalues_of(rows.T @ rows).clamp(min=0)
    rank = rank_of(squares.sqrt(), floor=(squares.max() * 1e-13).sqrt())
    centered = rows - rows.mean(0)
    values = eigenvalues_of(centered.T @ centered).flip(0)
    values = values[values > values[0] * 1e-10][: len(rows) - 1]
    alpha = torch.tensor(torch.nan)
    if len(values) > 2:
        log_ranks = torch.arange(1, len(values) + 1, device=rows.device).double().log()
        slope = log_ranks - log_ranks.mean()
        alpha = -(slope * values.log()).sum() / slope.square().sum()
    return {"rankme": float(rank), "alpha_req": float(alpha)}


def reference_metrics(context: Tensor, target: Tensor) -> dict[str, float]:
    """`context_std`, `target_norm`, `target_eff_rank` and so on, as the reference defines them."""
    return {
        f"{name}_{kind}": value
        for name, features in (("context", context), ("target", target))
        for kind, value in zip(
            ("std", "norm", "eff_rank"), image_statistics(features).tolist(), strict=True
        )
    }
