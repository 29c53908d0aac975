"""Convert SMPL labels to SMPL-X: each posed mesh is transferred, then fitted.

SMPL's posed vertices are mapped to those of SMPL-X by a published sparse matrix; pose, shape, hands
and translation are then fitted by least squares over the vertices, many people at a time. Letters:
B people, V vertices of SMPL-X.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.people.human_data import (
    SMPL_SHAPES,
    HumanData,
    labeled_rows,
    non_finite_rows,
    require_directions,
    write_human_data,
)
from overt.data.people.plausible import implausible_rows
from overt.errors import DataError
from overt.files.atomic import new_file
from overt.files.bounds import open_arrays
from overt.geometry.body import BODY_JOINTS, HAND_JOINTS, SHAPE_NUMBERS, SMPL_JOINTS, BodyModel
from overt.geometry.body_files import load_body
from overt.geometry.body_transfer import VertexTransfer, load_transfer
from overt.geometry.rotation import axis_angle_to_matrix, matrix_to_axis_angle
from overt.progress import report

logger = logging.getLogger(__name__)

FACE_JOINTS = 3  # jaw and eyes: at rest
PARTS_SUFFIX = ".parts"
POOR_MM = 20.0  # a mean vertex error above this is worth a look
HISTORY = 20  # of L-BFGS
STOP_AT = 1e-9  # change of the energy, in square meters
SOURCE_COLUMNS = tuple(f"smpl/{name}" for name in SMPL_SHAPES)


@dataclass(frozen=True)
class FitOptions:
    """The files of both bodies, and options of the fit."""

    smpl: str  # SMPL_NEUTRAL.pkl or .npz
    smplx: str  # SMPLX_NEUTRAL.npz
    transfer: str  # smpl2smplx_deftrafo_setup.pkl, or what `overt data body-transfer` made of it
    # .npy with the vertices of SMPL-X that count, smplx_mask_ids.npy; None: all
    vertices: str | None = None
    batch: int = 64
    iterations: int = 60


class Fitted(NamedTuple):
    """Parameters of SMPL-X; hands are absolute, nothing is added to them."""

    pose: Tensor  # (B, 22, 3) axis-angle
    hands: Tensor  # (B, 30, 3)
    shape: Tensor  # (B, 10)
    translation: Tensor  # (B, 3)
    error: Tensor  # (B,) meters, mean distance of the vertices


@torch.inference_mode(False)
@torch.enable_grad()
def fit_bodies(
    body: BodyModel,
    targets: Tensor,  # (B, V, 3)
    pose: Tensor,  # (B, 22, 3) where to begin: the pose of SMPL, which has the same joints
    iterations: int,
    counted: Tensor | None = None,  # (C,) vertices
) -> Fitted:
    """Fit pose and shape to target vertices.

    For a given pose, shape and translation have a closed form; pose and hands are found by L-BFGS.
    """
    people, device = len(targets), targets.device
    pose = pose.clone().requires_grad_()
    # SMPL's hands are nearly flat, and so are those of SMPL-X without rotations.
    hands = torch.zeros(people, 2 * HAND_JOINTS, 3, device=device, requires_grad=True)
    shape = torch.zeros(people, SHAPE_NUMBERS, device=device, requires_grad=True)
    translation = torch.zeros(people, 3, device=device, requires_grad=True)
    face = torch.eye(3, device=device).expand(people, FACE_JOINTS, 3, 3)

    def vertices(chosen: Tensor) -> Tensor:  # (B, C, 3) of bodies of this shape
        turns = axis_angle_to_matrix(torch.cat([pose, hands], dim=1))
        turns = torch.cat([turns[:, :BODY_JOINTS], face, turns[:, BODY_JOINTS:]], dim=1)
        all_vertices: Tensor = body(chosen, turns).vertices
        return all_vertices if counted is None else all_vertices.index_select(1, counted)

    target_vertices = targets if counted is None else targets[:, counted]

    def distances() -> Tensor:  # (B, C, 3)
        return vertices(shape) + translation[:, None] - target_vertices

    for variables in ([pose, translation], [pose, hands, translation], [pose, hands, shape]):
        with torch.no_grad():
            new_shape, new_translation = _best_shape(vertices, target_vertices)
            shape.copy_(new_shape)
            translation.copy_(new_translation)
        optimizer = torch.optim.LBFGS(
            variables, max_iter=iterations, history_size=HISTORY, line_search_fn="strong_wolfe",
            tolerance_change=STOP_AT,
        )  # fmt: skip

        def energy(optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            # Summed over people, so that gradients of different people are independent.
            value = distances().square().sum(-1).mean(-1).sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        optimizer.step(energy)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        error = distances().norm(dim=-1).mean(-1)
        # Rotations of more than half a turn are replaced by the shorter one.
        short = matrix_to_axis_angle(axis_angle_to_matrix(torch.cat([pose, hands], dim=1)))
    return Fitted(
        short[:, :BODY_JOINTS], short[:, BODY_JOINTS:], shape.detach(), translation.detach(), error
    )


def _best_shape(
    vertices: Callable[[Tensor], Tensor], targets: Tensor
) -> tuple[Tensor, Tensor]:  # (B, S), (B, 3)
    """Solve for shape and translation by least squares: vertices are linear in both."""
    people = len(targets)
    none = torch.zeros(people, SHAPE_NUMBERS, device=targets.device)
    mean_body = vertices(none)
    columns = []
    for index in range(SHAPE_NUMBERS):
        unit = none.clone()
        unit[:, index] = 1.0
        columns.append((vertices(unit) - mean_body).flatten(1))
    for axis in range(3):
        column = torch.zeros_like(mean_body)
        column[..., axis] = 1.0
        columns.append(column.flatten(1))
    matrix = torch.stack(columns, dim=-1).double()  # (B, 3 C, S + 3)
    normal = matrix.mT @ matrix
    # A direction that moves no selected vertex stays at zero.
    damping = 1e-9 * normal.diagonal(dim1=1, dim2=2).amax(-1)[:, None, None]
    normal = normal + damping * torch.eye(normal.shape[-1], device=targets.device)
    right = matrix.mT @ (targets - mean_body).flatten(1).double()[..., None]
    solved = torch.linalg.solve(normal, right)[..., 0].to(targets.dtype)
    return solved[:, :SHAPE_NUMBERS], solved[:, SHAPE_NUMBERS:]


class Converter:
    """Converts labels with both bodies and the transfer between them, on a device."""

    def __init__(self, options: FitOptions, device: torch.device) -> None:
        smpl, smplx = load_body(options.smpl, "--smpl"), load_body(options.smplx, "--smplx")
        if smpl.joint_count != SMPL_JOINTS or smplx.joint_count <= SMPL_JOINTS:
            raise DataError(
                f"--smpl {options.smpl} has {smpl.joint_count} joints and --smplx {options.smplx} "
                f"{smplx.joint_count}; SMPL has {SMPL_JOINTS} and SMPL-X 55"
            )
        counts = (len(smpl.v_template), len(smplx.v_template))
        transfer = load_transfer(options.transfer, "--transfer", *counts)
        self.smpl, self.smplx = BodyModel(smpl).to(device), BodyModel(smplx).to(device)
        self.transfer = VertexTransfer(transfer).to(device)
        self.options, self.device = options, device
        self.counted = None
        if options.vertices is not None:
            self.counted = _read_counted(Path(options.vertices), counts[1]).to(device)

    def convert(self, data: HumanData, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
        """Return the SMPL-X columns of some rows, and the fitting errors."""
        require_directions(data, "smpl", self.smpl.shape_numbers, f"--smpl {self.options.smpl}")

        def take(name: str) -> Tensor:
            return torch.tensor(np.array(data.columns[f"smpl/{name}"][rows]), device=self.device)

        root, body, shape = take("global_orient"), take("body_pose"), take("betas")
        pose = torch.cat([root[:, None], body], dim=1)  # (B, 24, 3)
        with torch.no_grad():
            mesh = self.smpl(shape, axis_angle_to_matrix(pose)).vertices
            targets = self.transfer(mesh + take("transl")[:, None])
        start, iterations = pose[:, :BODY_JOINTS], self.options.iterations
        fitted = fit_bodies(self.smplx, targets, start, iterations, self.counted)
        columns = {
            "smplx/global_orient": fitted.pose[:, 0],
            "smplx/body_pose": fitted.pose[:, 1:],
            "smplx/betas": fitted.shape,
            "smplx/transl": fitted.translation,
            "smplx/left_hand_pose": fitted.hands[:, :HAND_JOINTS],
            "smplx/right_hand_pose": fitted.hands[:, HAND_JOINTS:],
            "error_mm": 1000 * fitted.error,
        }
        return {name: value.float().cpu().numpy() for name, value in columns.items()}


def _read_counted(path: Path, vertices: int) -> Tensor:
    try:
        numbers = open_arrays(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"--vertices {path}: not a readable .npy file ({error})") from None
    if numbers.dtype == bool and numbers.shape == (vertices,):
        numbers = np.nonzero(numbers)[0]
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not len(numbers):
        raise DataError(f"--vertices {path}: expected vertex indices, (C,) integers")
    if numbers.min() < 0 or numbers.max() >= vertices:
        raise DataError(f"--vertices {path}: names vertices beyond the body's {vertices}")
    return torch.from_numpy(numbers.astype(np.int64))


def convert_labels(
    source: Path,
    out: Path,
    options: FitOptions,
    device: torch.device,
) -> np.ma.MaskedArray[Any, Any]:
    """Write SOURCE's annotations with SMPL-X labels to OUT; return errors (N,) in mm.

    Rows without a label (has_smpl=0) are not fitted: their labels in OUT are NaN, their errors are
    masked. Fitted rows are kept in OUT.parts until all are done: an interrupted call resumes there.
    Parts of other labels, files or options are fitted again.
    """
    if out.resolve() == source.resolve():
        raise DataError(f"{out}: name another file; the labels of SMPL stay as they are")
    data = HumanData.load(source)
    data.require(SOURCE_COLUMNS)
    is_labeled = labeled_rows(data)
    _check_labels(data, is_labeled)
    folder = out.with_name(out.name + PARTS_SUFFIX)
    converter = Converter(options, device)
    folder.mkdir(parents=True, exist_ok=True)
    parts, mark = [], _mark_of(source, options)
    for first in range(0, len(data), options.batch):
        rows = np.arange(first, min(first + options.batch, len(data)))
        fitted_rows = rows[is_labeled[rows]]
        last = first + len(rows)
        path = folder / f"{mark}_{first:08d}_{last:08d}.npz"
        part = _read_part(path)
        if part is None:
            part = converter.convert(data, fitted_rows) if len(fitted_rows) else {}
            _write_part(path, part)
        parts.append(part)
        report("fitting people", last, len(data))
    fitted = [part for part in parts if part]  # a batch without any label has no columns
    joined = {
        name: _all_rows(np.concatenate([part[name] for part in fitted]), is_labeled)
        for name in fitted[0]
    }
    errors = np.ma.masked_array(joined.pop("error_mm"), mask=~is_labeled)
    write_human_data(out, {**data.columns, **joined}, **_single(data))
    for path in folder.glob("*.npz"):
        path.unlink()
    folder.rmdir()
    return errors


def _mark_of(source: Path, options: FitOptions) -> str:
    """Return what tells parts of one fit from those of another: its files and iterations."""
    given: list[object] = [options.iterations]
    for name in (source, options.smpl, options.smplx, options.transfer, options.vertices):
        file = Path(name or "")
        if not file.is_file():  # none, or a body by name
            given.append(name)
            continue
        state = file.stat()
        given += [str(file.resolve()), state.st_size, state.st_mtime_ns]
    return hashlib.sha256(json.dumps(given).encode()).hexdigest()[:12]


def _read_part(path: Path) -> dict[str, NDArray[np.float32]] | None:
    """Return the rows that an interrupted call has fitted."""
    if not path.is_file():
        return None
    with open_arrays(path) as part:
        return {name.replace("smplx.", "smplx/"): part[name] for name in part.files}


def _write_part(path: Path, part: dict[str, NDArray[np.float32]]) -> None:
    arrays: dict[str, Any] = {name.replace("/", "."): value for name, value in part.items()}
    with new_file(path) as hidden, hidden.open("wb") as file:
        np.savez(file, **arrays)


def _check_labels(data: HumanData, is_labeled: NDArray[np.bool_]) -> None:
    """Reject rows that cannot be fitted: one of them would spoil all people of its batch."""
    count = int(is_labeled.sum())
    if count == 0:
        raise DataError(
            f"{data.path}: has_smpl is 0 in all {len(data)} rows: no person has a label"
        )
    for name in SOURCE_COLUMNS:
        bad = [row for row in non_finite_rows(data, name).tolist() if is_labeled[row]]
        if bad:
            raise DataError(
                f"{data.path}: {name} is non-finite in {len(bad)} of {count} labeled rows, first "
                f"in row {bad[0]} ({data.columns['image_path'][bad[0]]}). Fix these rows, or set "
                "their has_smpl to 0"
            )
        wrong = implausible_rows(data, name)
        bad = [row for row in wrong if is_labeled[row]]
        if bad:
            raise DataError(
                f"{data.path}: {len(bad)} of {count} labeled rows are of no person; row {bad[0]} "
                f"({data.columns['image_path'][bad[0]]}) {wrong[bad[0]]}. Fix these rows, or set "
                "their has_smpl to 0"
            )
    if count < len(data):
        logger.warning(
            "%s: %d of %d rows have no label (has_smpl) and are not fitted",
            data.path, len(data) - count, len(data),
        )  # fmt: skip


def _all_rows(
    fitted: NDArray[np.float32], is_labeled: NDArray[np.bool_]
) -> NDArray[np.float32]:  # (F, ...) to (N, ...)
    """Return the rows of a whole file: NaN, which every reader refuses, where none was fitted."""
    rows = np.full((len(is_labeled), *fitted.shape[1:]), np.nan, np.float32)
    rows[is_labeled] = fitted
    return rows


def _single(data: HumanData) -> dict[str, Any]:
    """Return what the file states about its keypoints, which stay compressed."""
    header = data.header
    single: dict[str, Any] = {}
    if header.convention is not None:
        single["keypoints2d_convention"] = header.convention
    if len(header.kept) != header.width:
        mask = np.zeros(header.width, np.uint8)
        mask[list(header.kept)] = 1
        single |= {"keypoints2d_mask": mask, "__keypoints_compressed__": True}
    return single
