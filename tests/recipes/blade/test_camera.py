"""The camera solve: finds the camera of a known person, from keypoints and from the silhouette."""

import numpy as np
import pytest
import torch

from overt.data.people.scenes import PeopleOptions, draw_rows
from overt.geometry.body import BodyModel
from overt.geometry.body_capsule import capsule_body
from overt.geometry.camera import project
from overt.geometry.rotation import axis_angle_to_matrix
from overt.geometry.silhouette import rasterize
from overt.recipes.blade import camera
from overt.recipes.blade.camera import (
    COARSE,
    FINE,
    FOCAL_LIMITS,
    LIMB_JOINTS,
    Blur,
    Observation,
    Solution,
    SolveOptions,
    keypoint_energy,
    look,
    pelvis_relative,
    solve_camera,
    solve_depth,
)

SIZE = 80


class Known:
    """Two people before known cameras, and what is seen of them."""

    def __init__(self, device: str = "cpu", noise: float = 1.0) -> None:
        self.model = BodyModel(capsule_body())
        options = PeopleOptions(SIZE, seed=5, body="capsule")
        people, scene, _ = draw_rows(4, 2, self.model, options)
        pose = np.stack([np.concatenate([one.root[None], one.body]) for one in people])
        self.rotations = axis_angle_to_matrix(torch.tensor(pose, dtype=torch.float32)).to(device)
        shape = torch.tensor(np.stack([one.shape for one in people]), dtype=torch.float32)
        self.shape, self.model = shape.to(device), self.model.to(device)
        self.pelvis, matrix = scene.joints[:, 0].to(device), scene.matrix.to(device)
        self.focal = matrix[:, 0, 0]
        vertices, joints = pelvis_relative(self.model, self.shape, self.rotations)
        pixels, depth = project(vertices, self.pelvis, matrix)
        mask = rasterize(pixels, depth, self.model.faces, (SIZE, SIZE)).mask.float()
        places, _ = project(joints[:, LIMB_JOINTS, :], self.pelvis, matrix)
        good = ((places >= 0) & (places <= SIZE - 1)).all(-1)
        shaken = noise * torch.randn(places.shape, generator=torch.Generator().manual_seed(0))
        self.seen = Observation(mask, places + shaken.to(device), good, (SIZE, SIZE))

    def solve(self, iterations: int, **options: bool) -> Solution:
        chosen = SolveOptions(iterations=iterations, **options)
        arguments = (self.model, self.shape, self.rotations, self.pelvis[:, 2])
        return solve_camera(*arguments, self.seen, chosen)

    def errors(self, found: Solution) -> tuple[float, float]:
        focal = ((found.focal - self.focal).abs() / self.focal).mean()
        return float(focal), float((found.translation - self.pelvis)[:, :2].norm(dim=1).mean())


def test_the_silhouette_mends_what_noisy_keypoints_leave() -> None:
    known = Known(noise=2.0)
    start, end = known.errors(known.solve(0)), known.errors(known.solve(30))
    assert end[0] < 0.6 * start[0]
    assert end[0] < 0.03
    assert end[1] < start[1] + 0.005


def test_a_single_keypoint_does_not_outweigh_the_silhouette() -> None:
    """As in a close-up. The camera was NaN, or at a limit: one keypoint has no extent."""
    known = Known(noise=0.0)
    one = torch.zeros_like(known.seen.good)
    one[:, 10] = True  # an ankle that both show
    assert known.seen.good[:, 10].all()
    known.seen = known.seen._replace(good=one)
    found = known.solve(30)
    assert ((found.focal > SIZE / 2) & (found.focal < 2 * SIZE)).all()
    assert found.translation.isfinite().all()
    assert found.soft_iou[0] > 0.3


def test_the_silhouette_improves_the_camera_of_people_beside_the_center() -> None:
    """The focal length moved them out of their masks, and was wrong by 29 percent."""
    known = Known(noise=0.0)
    size = (SIZE, 3 * SIZE)
    vertices, joints = pelvis_relative(known.model, known.shape, known.rotations)
    known.pelvis[:, 0] -= SIZE * known.pelvis[:, 2] / known.focal  # a picture to the side
    view = (known.pelvis, known.focal, size)
    mask = rasterize(*look(vertices, *view), known.model.faces, size).mask.float()
    places, _ = look(joints[:, LIMB_JOINTS, :], *view)
    shaken = places + 3 * torch.randn(places.shape, generator=torch.Generator().manual_seed(0))
    known.seen = Observation(mask, shaken, known.seen.good, size)
    start, end = known.errors(known.solve(0)), known.errors(known.solve(30))
    assert end[0] < min(0.03, start[0])
    assert end[1] < 0.05


def test_what_is_not_free_stays() -> None:
    known = Known()
    found = known.solve(3)
    torch.testing.assert_close(found.translation[:, 2], known.pelvis[:, 2])
    torch.testing.assert_close(found.rotations, known.rotations)
    free = known.solve(3, optimize_depth=True, optimize_pose=True)
    assert not torch.equal(free.translation[:, 2], known.pelvis[:, 2])
    assert not torch.equal(free.rotations, known.rotations)


def test_it_works_where_gradients_are_off() -> None:
    known = Known()
    with torch.inference_mode():
        inside = known.solve(2)
    torch.testing.assert_close(inside.focal, known.solve(2).focal)


def test_without_a_mask_the_keypoints_decide() -> None:
    known = Known(noise=0.0)
    known.seen = known.seen._replace(mask=None)
    found = known.solve(100)
    torch.testing.assert_close(found.focal, known.solve(0).focal)
    assert known.errors(found)[0] < 0.1
    assert found.soft_iou.isnan().all()


def test_a_known_focal_length_determines_the_depth() -> None:
    known = Known(noise=0.0)
    arguments = (known.model, known.shape, known.rotations, 1.7 * known.pelvis[:, 2])
    found = solve_depth(*arguments, known.seen, known.focal)
    torch.testing.assert_close(found.focal, known.focal)
    torch.testing.assert_close(found.translation, known.pelvis, rtol=0.03, atol=0.03)


def test_with_a_known_focal_length_the_silhouette_improves_the_depth() -> None:
    """A mask was ignored there, and so was a free pose."""
    known = Known(noise=2.0)
    arguments = (known.model, known.shape, known.rotations, 1.7 * known.pelvis[:, 2], known.seen)
    start, end = (
        solve_camera(*arguments, SolveOptions(iterations=count), known.focal) for count in (0, 30)
    )
    errors = [(found.translation - known.pelvis)[:, 2].abs().mean() for found in (start, end)]
    assert errors[1] < 0.5 * errors[0]
    torch.testing.assert_close(end.focal, known.focal)
    torch.testing.assert_close(end.rotations, known.rotations)
    free = SolveOptions(iterations=3, optimize_pose=True)
    assert not torch.equal(solve_camera(*arguments, free, known.focal).rotations, known.rotations)


def test_the_keypoint_term_is_zero_at_the_truth_only() -> None:
    known = Known(noise=0.0)
    vertices, joints = pelvis_relative(known.model, known.shape, known.rotations)
    nothing = torch.zeros(2)
    true = Solution(known.focal, known.pelvis, vertices, joints, known.rotations, nothing)
    assert keypoint_energy(true, known.seen).max() < 1e-5
    assert keypoint_energy(true._replace(focal=1.1 * known.focal), known.seen).min() > 1e-3
    pixels, depth = look(joints, known.pelvis, known.focal, (SIZE, SIZE))
    assert pixels.shape == (2, joints.shape[1], 2)
    torch.testing.assert_close(depth, joints[..., 2] + known.pelvis[:, 2:])


def test_the_blurred_overlap_is_best_at_the_mask_itself() -> None:
    mask = torch.zeros(1, 40, 40)
    mask[:, 10:30, 12:24] = 1.0
    for kind in ((17, 8.0, 0.25), (5, 3.0, 1.0)):
        blur = Blur(*kind, mask)
        itself, moved = blur.soft_iou(mask), blur.soft_iou(mask.roll(6, 2))
        assert moved < itself <= 1.0


@pytest.mark.parametrize("size", [(2, 3), (1, 48), (1, 1)])
def test_thin_masks_are_blurred_too(size: tuple[int, int]) -> None:
    mask = torch.ones(1, *size)
    for kind in (COARSE, FINE):
        assert 0 < float(Blur(*kind, mask).soft_iou(mask)) <= 1


def test_the_principal_point_need_not_be_the_middle() -> None:
    """A picture that is moved with its principal point has the same camera."""
    known = Known(noise=1.0)
    expected = known.solve(2)
    moved = torch.zeros(2, SIZE + 6, SIZE + 10)
    moved[:, 6:, 10:] = known.seen.mask
    known.seen = Observation(
        moved,
        known.seen.keypoints + torch.tensor([10.0, 6.0]),
        known.seen.good,
        (SIZE + 6, SIZE + 10),
        (SIZE / 2 + 10, SIZE / 2 + 6),
    )
    found = known.solve(2)
    # The start of the focal length and its step depend on the size of the picture.
    torch.testing.assert_close(found.focal, expected.focal, rtol=0.02, atol=0)
    torch.testing.assert_close(found.translation, expected.translation, rtol=0, atol=0.01)


def test_a_clamped_focal_length_leaves_the_person_on_the_keypoints() -> None:
    """Keypoints on a few hundredths of a pixel, off the middle, once gave kilometers."""
    known = Known(noise=0.0)
    small = 60 + 1e-3 * (known.seen.keypoints - 60)
    known.seen = Observation(None, small, torch.ones_like(known.seen.good), (SIZE, SIZE))
    found = known.solve(0)
    assert found.focal.tolist() == [FOCAL_LIMITS[0]] * 2
    limbs = found.joints[:, LIMB_JOINTS, :]
    depth = limbs[..., 2:] + found.translation[:, None, 2:]
    shift = ((small - SIZE / 2) * depth / FOCAL_LIMITS[0] - limbs[..., :2]).mean(1)
    torch.testing.assert_close(found.translation[:, :2], shift)
    assert found.translation.abs().max() < 100


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_finds_the_same_camera() -> None:
    there, here = Known("cuda"), Known()
    found, expected = there.solve(20), here.solve(20)
    torch.testing.assert_close(found.focal.cpu(), expected.focal, rtol=0.01, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("free", [False, True])
def test_replayed_iterations_are_those_that_were_recorded(
    free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Known("cuda")
    options = {"optimize_depth": free, "optimize_pose": free}
    replayed = known.solve(40, **options)
    monkeypatch.setattr(camera, "WARM_UP", 1000)  # nothing is recorded
    plain = known.solve(40, **options)
    torch.testing.assert_close(replayed.focal, plain.focal, rtol=0.005, atol=0)
    torch.testing.assert_close(replayed.soft_iou, plain.soft_iou, rtol=0.002, atol=0)
