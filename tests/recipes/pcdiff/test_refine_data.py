"""overt/recipes/pcdiff/refine_data.py: bone, mirror image, points and implant are in one frame."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_recipes import SMALL_REFINE

from overt.data.rng import sample_rng
from overt.data.skulls.defects import cut_defect
from overt.data.skulls.lists import load_cloud, rotation_matrix
from overt.data.skulls.nrrd import read_nrrd, write_nrrd
from overt.data.skulls.prepare import save_cloud
from overt.data.skulls.shapes import HEAD_MM, make_skull
from overt.data.skulls.surfaces import scatter_on_surface, surface_triangles
from overt.errors import DataError
from overt.metrics.implants import dice
from overt.recipes.pcdiff.close_up import Cube
from overt.recipes.pcdiff.refine_config import ErrorSettings, RefineModelSettings
from overt.recipes.pcdiff.refine_data import (
    NOWHERE,
    TrainingWindows,
    Window,
    bone_in,
    kept_mirror,
    mirror_near,
    misplaced,
    unit_in_mm,
    window_of,
)

EXACT = tuple(f"data.errors.{key}=0" for key in ("shift_mm", "bend_mm", "noise_mm", "lost"))


def windows(folder: Path, *words: str) -> TrainingWindows:
    dataset = SMALL_REFINE.recipe(folder, *words).build_dataset()
    assert isinstance(dataset, TrainingWindows)
    return dataset


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), flipped=st.booleans())
def test_a_window_maps_there_and_back(seed: int, flipped: bool) -> None:
    rng = np.random.default_rng(seed)
    turn = rotation_matrix(rng.uniform(-3, 3, 3)) @ np.diag([-1.0 if flipped else 1.0, 1, 1])
    window = Window(Cube(rng.normal(0, 50, 3), rng.uniform(1, 200)), turn)
    points = rng.normal(0, 60, (20, 3))
    np.testing.assert_allclose(window.from_unit(window.to_unit(points)), points, atol=1e-9)
    inside = window.to_unit(window.cube.center + turn @ [0.0, 0.49 * window.cube.side, 0.0])
    np.testing.assert_allclose(inside, [0.5, 0.99, 0.5], atol=1e-9)


@pytest.mark.parametrize("augment", [False, True])
def test_exact_points_lie_on_the_implant_which_the_skull_misses(
    tmp_path: Path, augment: bool
) -> None:
    words = (f"data.augment={augment}".lower(), "data.rotation_degrees=30", "model.side=32")
    dataset = windows(tmp_path, *EXACT, *words, "model.spacing_mm=8.4")  # about a voxel
    for index in range(len(dataset)):
        sample, again = (dataset.sample(index, sample_rng(0, 0, index)) for _ in range(2))
        assert (sample.skull == again.skull).all()
        assert (sample.points == again.points).all()
        assert not (sample.skull & sample.implant).any()
        assert sample.implant.any()
        nodes = np.clip(np.round(sample.points.numpy() * 32).astype(int), 1, 30)
        implant, near = sample.implant.numpy(), np.zeros(len(nodes), dtype=bool)
        for step in np.ndindex(3, 3, 3):
            near |= implant[tuple((nodes + step - 1).T)]
        assert near.mean() > 0.95


def test_bone_that_the_implant_overlaps_stays_bone(tmp_path: Path) -> None:
    dataset = windows(tmp_path)
    before = dataset.sample(0, sample_rng(0, 0, 0))
    implant, skull = (read_nrrd(dataset.items[0].volume(part)) for part in ("implant", "skull"))
    overlapping = implant.with_values(implant.mask | skull.mask)
    write_nrrd(dataset.items[0].volume("implant"), overlapping)
    after = dataset.sample(0, sample_rng(0, 0, 0))
    assert before.skull.any()
    for name in ("skull", "mirrored", "implant"):
        assert (getattr(after, name) == getattr(before, name)).all(), name


def test_the_mirror_image_closes_a_defect_at_the_side() -> None:
    side = 64
    skull = make_skull(np.random.default_rng(5), side)
    skull = skull | skull[::-1]
    affine = np.diag([HEAD_MM / side] * 3 + [1.0])
    implant = cut_defect(skull, affine, "parietotemporal", np.random.default_rng(0))
    rng = np.random.default_rng(1)
    clouds = [
        scatter_on_surface(surface_triangles(mask), 4000, rng)
        for mask in (skull & ~implant, implant)
    ]
    unit_mm = HEAD_MM / side
    # Points of the surface are in voxels here: both maps are the identity.
    assert unit_in_mm(lambda points: points, (unit_mm,) * 3) == pytest.approx(unit_mm)
    model = RefineModelSettings(width=8, levels=1, side=48, spacing_mm=3.2, mirrored=True)
    window = window_of(clouds[1][None], model, unit_mm)
    mirror = mirror_near(*clouds, unit_mm)
    bone, image = bone_in(window, skull & ~implant, lambda points: points, mirror, 48)
    truth, _ = bone_in(window, implant, lambda points: points, None, 48)
    assert dice(image & ~bone, truth) > 0.5
    assert (image & truth).sum() > 0.75 * truth.sum()
    empty = bone_in(window, skull, lambda points: points, None, 48)[1]
    assert not empty.any()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), unit_mm=st.floats(0.3, 3))
def test_points_are_moved_by_no_more_than_the_settings_say(seed: int, unit_mm: float) -> None:
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, 100, (500, 3))
    still = ErrorSettings(sampled=0, shift_mm=0, bend_mm=0, noise_mm=0, lost=0, scale=0)
    np.testing.assert_allclose(misplaced(points, still, unit_mm, rng), points)
    bent = ErrorSettings(sampled=0, shift_mm=0, bend_mm=4, noise_mm=0, lost=0, scale=0)
    moves = np.linalg.norm(misplaced(points, bent, unit_mm, rng) - points, axis=1) * unit_mm
    assert moves.max() <= 4 * np.sqrt(3) + 1e-6
    noisy = ErrorSettings(sampled=0, shift_mm=0, bend_mm=0, noise_mm=2, lost=0, scale=0)
    moves = (misplaced(points, noisy, unit_mm, rng) - points) * unit_mm
    assert moves.std() < 2.2


def test_lost_points_are_nowhere_and_sampled_ones_come_from_the_model(tmp_path: Path) -> None:
    lost = windows(tmp_path, "data.errors.lost=1").sample(0, sample_rng(0, 0, 0))
    assert (lost.points == NOWHERE).all()
    words = (*EXACT, "data.errors.sampled=1", "data.errors.scale=0", "data.augment=false")
    # Before training, not when the first of them is needed.
    with pytest.raises(DataError, match=r"5 of 5 training skulls .* `overt data implants"):
        windows(tmp_path, *words)
    for other in windows(tmp_path).items:
        save_cloud(other.samples, np.asarray(load_cloud(other.implant))[None, :64])
    dataset = windows(tmp_path, *words)
    item = dataset.items[0]
    exact = np.asarray(load_cloud(item.implant))[:64]
    save_cloud(item.samples, np.stack([exact + 3]))
    sample = dataset.sample(0, sample_rng(0, 0, 0))
    # The window follows the points, so they stay in its middle and the bone moves.
    middle = (sample.points.amin(0) + sample.points.amax(0)) / 2
    np.testing.assert_allclose(middle, 0.5, atol=0.05)
    side = 16 * 10.0 / (HEAD_MM / 24)  # of the window, in voxels
    steps = np.diff(sample.points.numpy(), axis=0) * side
    np.testing.assert_allclose(steps, np.diff(exact, axis=0), atol=1e-3)
    save_cloud(item.samples, exact)
    with pytest.raises(DataError, match=r"\(64, 3\); expected floats of shape \(implants"):
        dataset.sample(0, sample_rng(0, 0, 0))
    save_cloud(item.samples, np.full((1, 64, 3), np.nan))
    with pytest.raises(DataError, match="not finite"):
        dataset.sample(0, sample_rng(0, 0, 0))
    save_cloud(item.samples, np.stack([exact[:40]]))  # a model with another number of points
    assert dataset.sample(0, sample_rng(0, 0, 0)).points.shape == (64, 3)
    item.samples.write_text("no array")
    for read in (lambda: dataset.sample(0, sample_rng(0, 0, 0)), lambda: windows(tmp_path, *words)):
        with pytest.raises(DataError, match="not a readable array"):
            read()


def test_a_mirror_is_found_once_and_again_for_a_new_cloud(tmp_path: Path) -> None:
    item = windows(tmp_path).items[0]
    first = kept_mirror(item, 8.0)
    assert np.linalg.det(first[:3, :3]) == pytest.approx(-1)
    save_cloud(item.mirror, np.eye(4))
    np.testing.assert_array_equal(kept_mirror(item, 8.0), np.eye(4))  # from the file
    for damaged in (b"no array", b""):
        item.mirror.write_bytes(damaged)
        np.testing.assert_allclose(kept_mirror(item, 8.0), first, atol=1e-4)
    save_cloud(item.mirror, np.eye(4))
    later = item.mirror.stat().st_mtime_ns + 10**9
    os.utime(item.skull, ns=(later, later))
    np.testing.assert_allclose(kept_mirror(item, 8.0), first, atol=1e-4)
