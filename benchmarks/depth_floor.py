"""How well the joints of a person tell its distance: a floor under the error of DepthNet.

    python benchmarks/depth_floor.py                      crops of 128 pixels
    python benchmarks/depth_floor.py --crop 518           as the published DepthNet sees them

The people are those of synthetic test sets. Each of the 22 body joints in the picture is seen with
an error of some pixels of the crop; focal length and place of the person are unknown. Once shape
and pose are known exactly, and once they are known as the generator samples them (a normal
distribution with its covariance). Joints are linearized about the truth, so what is printed ignores
that different poses can look alike; shading and outlines, which tell more than joints, are ignored
as well. The error is that of the best estimate, |estimate - depth| / depth.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from command import guarded, positive
from torch import Tensor

from overt.data.people.crops import box_square
from overt.data.people.poses import draw_pose
from overt.data.people.scenes import (
    CLOSE_M,
    FAR_M,
    PeopleOptions,
    PeopleTensors,
    boxes,
    draw_rows,
    see,
)
from overt.geometry.body import BODY_JOINTS, SHAPE_NUMBERS, BodyModel
from overt.geometry.body_files import load_body
from overt.geometry.rotation import axis_angle_to_matrix

# The unknown numbers: shape, root rotation, body pose, camera (log focal length, log depth, x, y).
ROOT = SHAPE_NUMBERS
POSE = ROOT + 3
CAMERA = POSE + 3 * (BODY_JOINTS - 1)
LOG_DEPTH, COUNT = CAMERA + 1, CAMERA + 4
KNOWN, UNKNOWN = 1e8, 1e-6  # inverse variances
TURN = 0.5  # of the root's rotation, radians^-2
FOCAL = 0.25  # of the log focal length
LIMITS_M = (CLOSE_M[0], 0.7, 1.0, 1.5, FAR_M[0], 3.0, 5.0, FAR_M[1])
POSES, GUESSES, DRAWS = 3000, 25, 4000


class Seen(NamedTuple):
    """A person's depth, and how its visible joints change with the unknown numbers."""

    depth: float  # meters
    slopes: Tensor  # (2 J, COUNT), pixels of the crop


def project_joints(numbers: Tensor, hands: Tensor, model: BodyModel) -> Tensor:
    """Return the body joints (22, 2) in pixels from the middle of the picture."""
    shape, root, body, camera = numbers.tensor_split((ROOT, POSE, CAMERA))
    pose = torch.cat([root[None], body.view(-1, 3), hands])
    joints = model.joints(shape[None], axis_angle_to_matrix(pose)[None])[0, :BODY_JOINTS]
    focal, depth = camera[0].exp(), camera[1].exp()
    joints = joints - joints[0]
    # The place is that of the pelvis in the picture, so it says nothing about the depth.
    return (focal * joints[:, :2] + depth * camera[2:]) / (joints[:, 2:] + depth)


def look(model: BodyModel, options: PeopleOptions, count: int, crop: int) -> list[Seen]:
    """Return `count` people of a test set as their crops show them."""
    people, scene, _ = draw_rows(0, count, model, options)
    tensors = PeopleTensors.of(people, torch.device("cpu"))
    pixels, _ = see(scene, scene.vertices, orthographic=False)
    squares = [box_square(box.numpy()) for box in boxes(pixels, options)]
    precise = deepcopy(model).double()
    seen = []
    for row, (_, side) in enumerate(squares):
        pose, depth = tensors.pose[row].double(), scene.joints[row, 0, 2].double()
        camera = torch.stack([scene.matrix[row, 0, 0].double().log(), depth.log()])
        place = tensors.pelvis_xy[row].double() * options.size
        body = pose[:BODY_JOINTS].flatten()
        numbers = torch.cat([tensors.shape[row].double(), body, camera, place])

        def joints_of(numbers: Tensor, hands: Tensor = pose[BODY_JOINTS:]) -> Tensor:
            return project_joints(numbers, hands, precise)

        inside = (joints_of(numbers).abs() <= options.size / 2).all(1)
        slopes = torch.func.jacfwd(joints_of)(numbers)[inside]
        seen.append(Seen(float(depth), slopes.reshape(-1, COUNT) * (crop / side)))
    return seen


def prior(model: BodyModel, depths: Sequence[float], *, known: bool) -> Tensor:
    """Return the inverse covariance (COUNT, COUNT) of what is known without a picture."""
    inverse = torch.zeros(COUNT, COUNT, dtype=torch.float64)
    inverse.fill_diagonal_(UNKNOWN)
    if known:
        inverse.diagonal()[:CAMERA] = KNOWN
    else:
        rng = np.random.default_rng(0)
        rest = model.rest_places[:BODY_JOINTS].double().numpy()
        poses = np.stack([draw_pose(rng, rest)[0].ravel() for _ in range(POSES)])
        covariance = np.cov(poses.T) + 1e-4 * np.eye(CAMERA - POSE)
        inverse.diagonal()[:ROOT] = 1.0
        inverse.diagonal()[ROOT:POSE] = TURN
        inverse[POSE:CAMERA, POSE:CAMERA] = torch.from_numpy(np.linalg.inv(covariance))
    inverse[CAMERA, CAMERA] = FOCAL
    inverse[LOG_DEPTH, LOG_DEPTH] = 1 / float(np.var(np.log(depths)))
    return inverse


def deviation(person: Seen, inverse: Tensor, pixels: float) -> float:
    """Return the standard deviation of the log depth, given joints with this error."""
    information = person.slopes.T @ person.slopes / pixels**2 + inverse
    return float(torch.linalg.inv(information)[LOG_DEPTH, LOG_DEPTH].sqrt())


def relative_error(deviations: Sequence[float]) -> list[float]:
    """Return the smallest mean of |guess - depth| / depth of depths with these deviations."""
    normal = np.random.default_rng(1).standard_normal(DRAWS)

    def best(sigma: float) -> float:
        depths = np.exp(sigma * normal)
        guesses = np.exp(np.linspace(-2 * sigma**2, 0, GUESSES))
        return float(np.abs(guesses[:, None] / depths - 1).mean(1).min())

    grid = np.linspace(0, max(deviations), 50)
    errors: list[float] = np.interp(deviations, grid, [best(sigma) for sigma in grid]).tolist()
    return errors


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--body", default="anny", help="anny, or a file of `overt data anny-body`")
    parser.add_argument("--people", type=positive, default=400)
    parser.add_argument("--crop", type=int, default=128, help="pixels of a crop's side")
    parser.add_argument("--pixels", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    model = BodyModel(load_body(options.body, "--body"))
    scenes = PeopleOptions(size=128, seed=options.seed, body=options.body)
    seen = look(model, scenes, options.people, options.crop)
    depths = np.array([person.depth for person in seen])
    columns: dict[str, np.ndarray] = {}
    for known, pose in ((True, "pose known"), (False, "pose as sampled")):
        inverse = prior(model, depths.tolist(), known=known)
        for pixels in options.pixels:
            errors = relative_error([deviation(person, inverse, pixels) for person in seen])
            columns[f"{pose}, {pixels:g} px"] = np.array(errors)
    print(f"| depth, m | people | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 2)}")
    for low, high in [*itertools.pairwise(LIMITS_M), (LIMITS_M[0], LIMITS_M[-1])]:
        inside = (depths >= low) & (depths < high)
        if inside.any():
            cells = [f"{errors[inside].mean():.3f}" for errors in columns.values()]
            print(f"| {low:g} to {high:g} | {inside.sum()} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
