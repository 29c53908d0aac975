"""Speed of the camera solve: focal length and place of people by silhouettes.

    python benchmarks/camera.py                            16 people at 160 x 160 on CUDA
    python benchmarks/camera.py --device cpu --people 2    anywhere, to try the script

People of capsules with known cameras are drawn; their masks and noisy keypoints are what the solve
sees. Printed are seconds, and how far focal length and place are off before and after.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from command import guarded, need_device, positive

from overt.data.people.scenes import PeopleOptions, draw_rows
from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body
from overt.geometry.camera import project
from overt.geometry.rotation import axis_angle_to_matrix
from overt.geometry.silhouette import rasterize
from overt.recipes.blade.camera import (
    LIMB_JOINTS,
    Observation,
    Solution,
    SolveOptions,
    pelvis_relative,
    solve_camera,
)

GOAL_SECONDS = 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--people", type=positive, default=16)
    parser.add_argument("--size", type=positive, default=160)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--noise", type=float, default=1.5, help="of the keypoints, pixels")
    parser.add_argument("--rounds", type=positive, default=3)
    options = parser.parse_args()
    need_device(options.device)
    device = torch.device(options.device)
    model = BodyModel(capsule_body())
    capsules = PeopleOptions(options.size, seed=5, body="capsule")
    people, scene, _ = draw_rows(0, options.people, model, capsules)
    pose = np.stack([np.concatenate([one.root[None], one.body]) for one in people])
    rotations = axis_angle_to_matrix(torch.tensor(pose, dtype=torch.float32)).to(device)
    shape = torch.tensor(np.stack([one.shape for one in people]), dtype=torch.float32).to(device)
    model, pelvis, matrix = model.to(device), scene.joints[:, 0].to(device), scene.matrix.to(device)
    vertices, joints = pelvis_relative(model, shape, rotations)
    pixels, depth = project(vertices, pelvis, matrix)
    size = (options.size, options.size)
    mask = rasterize(pixels, depth, model.faces, size).mask.float()
    keypoints, _ = project(joints[:, LIMB_JOINTS, :], pelvis, matrix)
    good = ((keypoints >= 0) & (keypoints <= options.size - 1)).all(-1)
    noise = torch.randn(keypoints.shape, generator=torch.Generator().manual_seed(0)).to(device)
    seen = Observation(mask, keypoints + options.noise * noise, good, size)

    def solve(iterations: int) -> Solution:
        chosen = SolveOptions(iterations=iterations)
        return solve_camera(model, shape, rotations, pelvis[:, 2], seen, chosen)

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def errors(found: Solution) -> str:
        focal = (100 * (found.focal - matrix[:, 0, 0]).abs() / matrix[:, 0, 0]).median()
        place = (1000 * (found.translation - pelvis)[:, :2].norm(dim=1)).median()
        return f"focal length {focal:.2f} %, place {place:.1f} mm (medians)"

    solve(min(2, options.iterations))  # kernels are loaded
    times = []
    for _ in range(options.rounds):
        synchronize()
        began = time.perf_counter()
        found = solve(options.iterations)
        synchronize()
        times.append(time.perf_counter() - began)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(
        f"camera solve on {name}, torch {torch.__version__}: {options.people} people, "
        f"{options.size} x {options.size}, {options.iterations} iterations"
    )
    seconds = statistics.median(times)
    print(f"  {seconds:.3f} s, {1000 * seconds / max(options.iterations, 1):.2f} ms an iteration")
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
        print(
            f"  peak {peak:.2f} GiB (goal {GOAL_SECONDS:g} s for 16 people at 160 x 160, 100 times)"
        )
    print(f"  off at the start: {errors(solve(0))}")
    print(f"  off at the end:   {errors(found)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
