"""overt/geometry/symmetry.py: the other side fills a defect, and only where it can."""

import numpy as np
import pytest

from overt.data.skulls.defects import cut_defect
from overt.data.skulls.shapes import HEAD_MM, make_skull
from overt.errors import DataError
from overt.geometry import symmetry
from overt.metrics.implants import dice

SIDE = 64
AFFINE = np.diag([HEAD_MM / SIDE] * 3 + [1.0])


def test_a_defect_at_the_side_is_filled_and_one_across_the_middle_is_not() -> None:
    skull = make_skull(np.random.default_rng(5), SIDE)
    skull = skull | skull[::-1]  # symmetric
    at_side = cut_defect(skull, AFFINE, "parietotemporal", np.random.default_rng(0))
    filled = symmetry.mirrored_implant(skull & ~at_side, AFFINE)
    assert filled.mismatch_mm < 1.0
    assert dice(filled.implant, at_side) > 0.8
    assert not (filled.implant & skull & ~at_side).any()
    middle = cut_defect(skull, AFFINE, "bilateral", np.random.default_rng(0))
    assert dice(symmetry.mirrored_implant(skull & ~middle, AFFINE).implant, middle) < 0.4


def test_a_speck_has_no_plane_of_symmetry() -> None:
    with pytest.raises(DataError, match="fewer than 100"):
        symmetry.find_mirror(np.ones((2, 2, 2), dtype=bool), np.eye(4))
