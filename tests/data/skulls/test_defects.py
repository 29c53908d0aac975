"""overt/data/skulls/defects.py: what a defect takes out, and where."""

import numpy as np
import pytest

from overt.data.skulls import defects
from overt.data.skulls.shapes import HEAD_MM, make_skull
from overt.errors import DataError

SIDE = 48
AFFINE = np.diag([HEAD_MM / SIDE] * 3 + [1.0])


@pytest.fixture(scope="module")
def skull() -> np.ndarray:
    return make_skull(np.random.default_rng(0), SIDE)


@pytest.mark.parametrize("kind", defects.KINDS)
def test_a_defect_is_one_piece_of_the_vault(kind: str, skull: np.ndarray) -> None:
    for seed in range(3):
        implant = defects.cut_defect(skull, AFFINE, kind, np.random.default_rng(seed))
        assert not (implant & ~skull).any()
        assert 0.005 < implant.sum() / skull.sum() < 0.3
        x, y, _ = (np.argwhere(implant) * HEAD_MM / SIDE).T
        if kind == "bilateral":
            assert x.min() < HEAD_MM / 2 < x.max()
        if kind == "frontoorbital":
            assert y.mean() < 0.4 * HEAD_MM
        if kind == "parietotemporal":
            assert abs(x.mean() - HEAD_MM / 2) > 30


def test_the_same_defect_in_a_flipped_grid(skull: np.ndarray) -> None:
    """A scan whose rows grow to the front is the same patient."""
    flipped = AFFINE @ np.diag([1.0, -1.0, 1.0, 1.0])
    flipped[1, 3] = AFFINE[1, 1] * (SIDE - 1)
    there = defects.cut_defect(skull[:, ::-1], flipped, "random_1", np.random.default_rng(0))
    here = defects.cut_defect(skull, AFFINE, "random_1", np.random.default_rng(0))
    assert (there[:, ::-1] ^ here).sum() <= 0.01 * here.sum()  # order of voxels, rounding


def test_an_empty_volume_has_no_defect() -> None:
    with pytest.raises(DataError, match="empty volume"):
        defects.cut_defect(np.zeros((4, 4, 4), bool), AFFINE, "random_1", np.random.default_rng(0))
