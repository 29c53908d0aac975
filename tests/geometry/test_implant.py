"""overt/geometry/implant.py: what is done to an implant before printing, and its measures."""

import numpy as np
import pytest
from scipy.ndimage import label
from scipy.spatial import KDTree

from overt.errors import DataError
from overt.geometry import implant as implants
from overt.geometry.isosurface import mask_surface

SPACING = (0.5, 0.5, 1.0)


def plate() -> np.ndarray:
    """A plate of 20 x 20 x 6 mm."""
    mask = np.zeros((60, 60, 16), dtype=bool)
    mask[10:50, 10:50, 5:11] = True
    return mask


def test_specks_parts_holes_and_clearance_are_treated_and_counted() -> None:
    rough = plate()
    rough[30, 30, 8] = False  # a hole inside
    rough[55, 1, 1] = True  # a speck
    rough[52:55, 55:58, 2:5] = True  # another part
    skull = np.zeros_like(rough)
    skull[:10] = True
    skull[10:12, 10:50, 5:11] = True  # overlaps the plate
    rough &= ~skull
    how = implants.Finishing(clearance_mm=1.0)
    finished, changed, _ = implants.finish(rough, skull, SPACING, how)
    expected = plate()
    expected[:14] = False  # two voxels of skull, two of clearance
    np.testing.assert_array_equal(finished, expected)
    assert changed["specks"] < 0
    assert changed["parts"] == -27
    assert changed["holes"] > 0
    assert changed["clearance"] < 0
    nothing = np.zeros_like(rough)
    assert not implants.finish(nothing, skull, SPACING).implant.any()


@pytest.mark.parametrize("clearance", [0.2, 0.5, 0.7, 1.3])
def test_the_clearance_is_between_the_surfaces(clearance: float) -> None:
    """It was between the centers of voxels: with less than a voxel nothing was taken away."""
    skull = np.zeros_like(plate())
    skull[:10], skull[:, :, :5] = True, True
    how = implants.Finishing(clearance_mm=clearance)
    kept = implants.finish(plate(), skull, SPACING, how).implant
    meshes = [mask_surface(mask)[0] * SPACING for mask in (kept, skull)]
    assert KDTree(meshes[1]).query(meshes[0])[0].min() >= clearance
    assert kept.sum() > plate().sum() / 2


@pytest.mark.parametrize("how", [{"hole_mm": 5.0}, {"min_wall_mm": 12.0}, {"smooth_mm": 1.0}])
def test_one_part_is_left_whatever_was_done(how: dict[str, float]) -> None:
    """What closes a hole or thickens a wall beyond bone is cut off by it."""
    mask, skull = plate(), np.zeros_like(plate())
    mask[25:35] = False
    mask[25:35, 10:50, 8] = True  # a bridge of one voxel
    skull[10:50, 10:50, 12:14] = True
    skull[24:36, 10:50, 3:5] = True
    finished = implants.finish(mask, skull, SPACING, implants.Finishing(**how))
    assert label(finished.implant)[1] == 1
    assert (
        implants.finish(
            mask, skull, SPACING, implants.Finishing(largest_part=False, **how)
        ).implant.sum()
        >= finished.implant.sum()
    )


def test_smoothing_that_would_take_the_implant_away_is_refused() -> None:
    with pytest.raises(DataError, match=r"smoothing by 6 mm would remove \d+ % of the implant"):
        implants.finish(plate(), np.zeros_like(plate()), SPACING, implants.Finishing(smooth_mm=6.0))


def test_parts_are_kept_where_asked() -> None:
    rough = plate()
    rough[52:55, 55:58, 2:5] = True
    how = implants.Finishing(largest_part=False)
    np.testing.assert_array_equal(
        implants.finish(rough, np.zeros_like(rough), SPACING, how).implant, rough
    )


def test_thin_walls_grow_to_the_least_thickness_and_thick_ones_stay() -> None:
    mask = np.zeros((60, 60, 24), dtype=bool)
    mask[10:50, 10:50, 8:16] = True  # 8 mm
    mask[20:40, 20:40, 11:] = False
    mask[20:40, 20:40, 8:10] = True  # 3 mm
    skull = np.zeros_like(mask)
    grown = implants.thicken(mask, skull, SPACING, 5.0)
    assert grown[30, 30].sum() == 5
    assert not (mask & ~grown).any()
    np.testing.assert_array_equal(grown[12:16], mask[12:16])
    np.testing.assert_array_equal(implants.thicken(plate(), skull[..., :16], SPACING, 5.0), plate())


@pytest.mark.parametrize("below", [True, False])
def test_clearance_leaves_no_wall_thinner_than_asked(below: bool) -> None:
    """It was cut after walls were made thicker, and bone below counted as a part of the wall."""
    mask = np.zeros((60, 60, 24), dtype=bool)
    mask[10:50, 10:50, 10:12] = True  # 2 mm, resting on bone or between two edges
    skull = np.zeros_like(mask)
    if below:
        skull[:, :, 6:10] = True
    else:
        skull[:10, :, 10:12], skull[50:, :, 10:12] = True, True
    how = implants.Finishing(clearance_mm=1.0, min_wall_mm=4.0)
    finished = implants.finish(mask, skull, SPACING, how)
    assert implants.gap_to(skull, SPACING)[finished.implant].min() >= 1.0
    thickness = finished.implant.sum(axis=2)[16:44, 16:44] * SPACING[2]
    assert thickness.min() >= 4.0
    assert finished.thin_voxels == 0


def test_walls_that_have_no_room_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    mask, skull = np.zeros((60, 60, 24), dtype=bool), np.zeros((60, 60, 24), dtype=bool)
    mask[10:50, 10:50, 10:14] = True
    skull[:, :, 6:10], skull[:, :30, 14:18] = True, True  # half of it is between two bones
    how = implants.Finishing(clearance_mm=1.0, min_wall_mm=4.0)
    finished = implants.finish(mask, skull, SPACING, how)
    implant = finished.implant
    assert implants.gap_to(skull, SPACING)[implant].min() >= 1.0
    assert (implant.sum(axis=2)[16:44, 36:44] >= 4).all()
    heights = implant.sum(axis=2)[:, :40]  # in mm; beyond, the plate ends at its edge
    assert finished.thin_voxels == pytest.approx(heights[heights < 4].sum(), rel=0.03)
    assert "walls thinner than 4 mm: a clearance of 1 mm leaves no room" in caplog.text


def test_a_thin_wall_is_counted_up_to_the_thick_part_it_is_on() -> None:
    """A wall's thickness around every ball that fits was not counted: 16 % of this fin."""
    mask = np.zeros((60, 40, 30), dtype=bool)
    mask[5:30, 5:35, 5:25] = True
    fin = np.zeros_like(mask)
    fin[30:55, 5:35, 13:17] = True  # 2 mm
    cubic = (0.5, 0.5, 0.5)
    both = mask | fin
    thin = implants.thin_walls(both, both, cubic, 1.5, edge=1.5)
    assert not (thin & ~fin).any()
    # The balls of the thick part reach 0.5 to 1 mm into the fin.
    np.testing.assert_array_equal(thin[32:55], fin[32:55])
    assert not implants.thin_walls(mask, mask, cubic, 1.5, edge=1.5).any()  # edges and corners


def test_smoothing_takes_bumps_away_and_keeps_the_rim() -> None:
    mask, skull = plate(), np.zeros((60, 60, 16), dtype=bool)
    skull[:10, :, 5:11] = True
    rough = mask.copy()
    rng = np.random.default_rng(0)
    bumps = rng.random((40, 40)) < 0.3
    rough[10:50, 10:50, 11] = bumps
    how = implants.Finishing(smooth_mm=1.0)
    smoothed = implants.finish(rough, skull, SPACING, how).implant
    inner = np.s_[18:46, 14:46]
    before, after = ((part ^ mask)[inner].sum() for part in (rough, smoothed))
    assert after < 0.1 * before
    rim = np.s_[10:15, 14:46]
    np.testing.assert_array_equal(smoothed[rim][:, :, 5:11], mask[rim][:, :, 5:11])
    assert not (smoothed & skull).any()


def test_holes_through_the_wall_are_closed_up_to_their_width() -> None:
    mask, skull = plate(), np.zeros((60, 60, 16), dtype=bool)
    holed = mask.copy()
    holed[20:24, 20:24] = False  # 2 mm
    holed[30:44, 30:44] = False  # 7 mm
    closed = implants.finish(holed, skull, SPACING, implants.Finishing(hole_mm=4.0)).implant
    # A ball that rolls over the hole dips into it a little.
    assert closed[20:24, 20:24, 6:10].all()
    assert not closed[34:40, 34:40].any()


@pytest.mark.parametrize("gap", [0, 3])
def test_the_rim_is_where_bone_is_nearest(gap: int) -> None:
    mask, skull = plate(), np.zeros((60, 60, 16), dtype=bool)
    skull[: 10 - gap, :, 5:11] = True
    vertices, faces = mask_surface(mask)
    rim = implants.rim_faces(vertices, faces, mask, skull, SPACING)
    side = vertices[np.unique(rim)]
    assert side[:, 0].max() <= 12  # 1 mm, the longer side of a voxel
    assert np.ptp(side[:, 1]) > 39  # all of the side that faces the bone
    assert np.ptp(side[:, 2]) > 5
    assert not len(implants.rim_faces(vertices, faces, mask, np.zeros_like(skull), SPACING))


def test_the_thickness_of_a_plate() -> None:
    mask = plate()
    vertices, faces = mask_surface(mask)
    steps = np.array(SPACING)
    measured = (vertices * steps, faces, mask, lambda p: p / steps)
    thickness = implants.wall_thickness(*measured, rim=faces[:0])
    top = (vertices[:, 2] > 10) & (np.abs(vertices[:, :2] - 29.5) < 15).all(axis=1)
    np.testing.assert_allclose(thickness[top], 6.0, atol=0.5)
    # Its edge, seen along the plate, was taken for a thick wall.
    skull = np.zeros_like(mask)
    skull[8:52, 8:52, 5:11] = True
    skull &= ~mask
    rim = implants.rim_faces(vertices, faces, mask, skull, SPACING)
    assert np.quantile(thickness, 0.95) > 15
    thickness = implants.wall_thickness(*measured, rim)
    np.testing.assert_allclose(np.quantile(thickness, (0.05, 0.95)), 6.0, atol=0.5)


def test_measures_are_in_millimeters() -> None:
    mask, skull = plate(), np.zeros((60, 60, 16), dtype=bool)
    skull[:8] = True
    found = implants.measures(mask, skull, SPACING)
    assert found["volume_cm3"] == pytest.approx(2.4)
    assert found["extent_k_mm"] == 6.0
    assert found["gap_to_skull_mm"] == pytest.approx(1.0)  # voxels 8 and 9 are between them
    skull[:10] = True
    assert implants.measures(mask, skull, SPACING)["gap_to_skull_mm"] == 0.0  # they touch
