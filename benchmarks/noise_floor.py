"""What noise loss can PCDiff reach at all, and what does it say about an implant's position?

    python benchmarks/noise_floor.py data/skulls_medium --points 1024

For the clouds of a folder in SkullBreak's layout and a schedule of noise: the loss of a denoiser
that knows the implant's surface (no network can do better: points are drawn at random on it), that
of one that knows center and spread alone, and how well the mean of the noisy points tells the
center at the noisiest step. No network is needed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from command import guarded

from overt.data.skulls.lists import Points, SkullList, load_cloud, training_cloud
from overt.recipes.pcdiff.data import draw_noise
from overt.recipes.pcdiff.diffusion import Arrays, make_arrays, make_betas

KNOWN = 4000  # points that the box of a skull is measured with
QUERIES = 128  # points of an implant that are denoised


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--points", type=int, default=1024, help="of an implant")
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--times", type=int, default=25, help="time steps, evenly spread")
    options = parser.parse_args()
    items = SkullList(options.root / "train.csv", "skullbreak").items
    chosen = np.linspace(0, len(items) - 1, min(options.cases, len(items))).round().astype(int)
    rng = np.random.default_rng(0)
    implants = []
    for index in chosen:
        clouds = [load_cloud(path) for path in (items[index].skull, items[index].implant)]
        known, implant = (np.asarray(rng.permutation(cloud)[:KNOWN]) for cloud in clouds)
        implants.append(training_cloud(known, implant, known_box=True).points[len(known) :])
    print(f"{len(implants)} implants; centers {spread_of_centers(implants):.2f} units from 0")
    print("beta_end  shared  surface known  center and spread known  error of the center at T")
    for last in (0.01, 0.02):
        arrays = make_arrays(make_betas("linear", 1e-4, last, 1000))
        for shared in (0.0, 1.0):
            surface, center = losses(implants, arrays, shared, options.times, rng)
            error = error_of_center(arrays, options.points, shared)
            print(f"{last:8g}  {shared:6g}  {surface:13.3f}  {center:23.3f}  {error:18.2f} units")
    return 0


def spread_of_centers(implants: list[Points]) -> float:
    return float(np.mean([np.linalg.norm(implant.mean(axis=0)) for implant in implants]))


def losses(
    implants: list[Points], arrays: Arrays, shared: float, times: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the least loss with the surface known, and with its center and covariance known.

    The shared part of the noise is taken as known: where the center is known, it is seen.
    """
    surface, center = [], []
    for number in range(times):
        time = (2 * number + 1) * len(arrays.betas) // (2 * times)
        signal = float(arrays.sqrt_alphas_cumprod[time])
        noise = float(arrays.sqrt_one_minus_alphas_cumprod[time])
        for implant in implants:
            points = torch.from_numpy(np.asarray(implant, dtype=np.float32))  # (P, 3)
            start = points[rng.integers(0, len(points), QUERIES)]
            noisy = signal * start + noise * draw_noise(rng, QUERIES, 0.0)
            squares = torch.cdist(noisy, signal * points) ** 2  # (QUERIES, P)
            weights = torch.softmax(-squares / (2 * noise**2), dim=1)
            error = ((start - weights @ points) ** 2).mean()
            surface.append(float(error) * (signal / noise) ** 2)
            variances = np.linalg.eigvalsh(np.cov(implant.T))
            fractions = signal**2 * variances / (signal**2 * variances + noise**2)
            center.append(float(fractions.mean()))
    return float(np.mean(surface)), float(np.mean(center))


def error_of_center(arrays: Arrays, points: int, shared: float) -> float:
    """Return the deviation, along an axis, of a center read from the mean of the noisiest cloud."""
    signal = float(arrays.sqrt_alphas_cumprod[-1])
    noise = float(arrays.sqrt_one_minus_alphas_cumprod[-1])
    return noise * float(np.sqrt(1 / points + shared**2)) / signal


if __name__ == "__main__":
    raise SystemExit(guarded(main))
