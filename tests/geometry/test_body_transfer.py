"""overt/geometry/body_transfer.py: published transfer files at their real sizes, read as data."""

import contextlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from overt.errors import DataError
from overt.geometry.body_transfer import VertexTransfer, convert_transfer, load_transfer

SMPL, SMPLX = 6890, 10475


def barycentric(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three vertices of the source and their weights, for each vertex of SMPL."""
    random = np.random.default_rng(seed)
    weight = random.dirichlet((1, 1, 1), SMPL)
    return random.integers(0, SMPLX, (SMPL, 3)), weight


def published(kind: str, width: int = 2 * SMPLX) -> Any:
    """The matrix as the file has it: a second half that multiplies normals."""
    sparse = pytest.importorskip("scipy.sparse")
    index, weight = barycentric()
    rows = np.repeat(np.arange(SMPL), 3)
    values, columns = weight.ravel(), index.ravel()
    if width > SMPLX:
        rows = np.concatenate([rows, np.arange(SMPL)])
        columns = np.concatenate([columns, SMPLX + index[:, 0]])
        values = np.concatenate([values, np.full(SMPL, 0.5)])
    made = sparse.coo_matrix((values, (rows, columns)), shape=(SMPL, width))
    return made if kind == "coo" else getattr(made, f"to{kind}")()


@pytest.mark.parametrize("kind", ["csc", "csr", "coo"])
def test_a_published_file_takes_smplx_to_smpl(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "smplx2smpl_deftrafo_setup.pkl"
    path.write_bytes(pickle.dumps({"mtx": published(kind), "valid": np.arange(3)}))
    convert_transfer(path, tmp_path / "smplx2smpl.npz")
    assert (tmp_path / "smplx2smpl.npz").stat().st_size < 500_000
    vertices = torch.randn(2, SMPLX, 3)
    index, weight = barycentric()
    expected = np.einsum("tk,btkc->btc", weight, vertices.numpy()[:, index])
    for file in (path, tmp_path / "smplx2smpl.npz"):
        transfer = VertexTransfer(load_transfer(str(file), "model.body.transfer", SMPLX, SMPL))
        np.testing.assert_allclose(transfer(vertices).numpy(), expected, atol=1e-5)
        one = transfer(vertices[1])
        np.testing.assert_allclose(one.numpy(), expected[1], atol=1e-5)
    if kind == "csr":
        sparse = pytest.importorskip("scipy.sparse")
        same = sparse.load_npz(tmp_path / "smplx2smpl.npz")
        np.testing.assert_allclose((same @ vertices[0].numpy()), expected[0], atol=1e-5)


def test_a_file_with_a_matrix_is_used_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"matrix": published("csr", SMPLX)}))
    assert load_transfer(str(path), "k", SMPLX, SMPL).sources == SMPLX


def test_what_is_no_transfer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    with pytest.raises(DataError, match=r"k=nowhere\.npz: .*overt data body-transfer"):
        load_transfer("nowhere.npz", "k", SMPLX, SMPL)
    path.write_bytes(pickle.dumps({"other": np.zeros(3)}))
    with pytest.raises(DataError, match="holds other, but a transfer has mtx or matrix"):
        load_transfer(str(path), "k", SMPLX, SMPL)
    path.write_bytes(pickle.dumps({"mtx": published("csc")}))
    with pytest.raises(DataError, match="takes 10475 vertices to 6890, expected 6890"):
        load_transfer(str(path), "k", SMPL, SMPLX)
    path.write_bytes(pickle.dumps({"matrix": np.ones((17, 100))}))
    with pytest.raises(DataError, match=r"made of 100 others.*joint regressor"):
        load_transfer(str(path), "k", 100, 17)
    (tmp_path / "b.npz").write_bytes(b"PK no archive")
    with pytest.raises(DataError, match="not a readable transfer"):
        load_transfer(str(tmp_path / "b.npz"), "k", SMPLX, SMPL)
    with pytest.raises(DataError, match=r"is written as \.npz"):
        convert_transfer(path, tmp_path / "b.npy")


def test_a_damaged_file_is_refused_in_words(tmp_path: Path) -> None:
    """Any flipped byte: the same transfer, or a refusal."""
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"matrix": np.eye(5, 4) + np.eye(5, 4, 1)}))
    convert_transfer(path, tmp_path / "a.npz")
    whole = (tmp_path / "a.npz").read_bytes()
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        (tmp_path / "b.npz").write_bytes(bytes(damaged))
        with contextlib.suppress(DataError):
            load_transfer(str(tmp_path / "b.npz"), "k", 4, 5)
