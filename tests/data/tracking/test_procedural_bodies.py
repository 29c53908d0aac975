"""Boxes and limbs: faces share their edges, limbs their joints, and points stay on both."""

from itertools import combinations, pairwise

import pytest
import torch
from torch import Tensor

from overt.data.tracking.procedural import make_clips
from overt.data.tracking.procedural_bodies import FACES
from overt.data.tracking.procedural_scene import Scene, draw_scene
from overt.data.tracking.procedural_settings import ARTICULATED_LAYERS, SOLID_LAYERS
from overt.data.tracking.textures import load_textures
from overt.errors import ConfigError
from overt.ops.layers.plain import Layer
from tests.data.tracking.procedural_values import small_settings

SIZE, FRAMES, CLIPS = (48, 48), 6, 12
ALWAYS = {"layers": 8, "solids": 1.0, "articulated": 1.0}
PLAIN = {
    "lights": 0.0, "motion_blur": 0.0, "blur": 0.0, "noisy": 0.0, "compressed": 0.0, "gray": 0.0,
}  # fmt: skip


def numbers(count: int = CLIPS, seed: int = 0) -> Tensor:
    return torch.rand(count, 8192, generator=torch.Generator().manual_seed(seed))


def moving_scene() -> Scene:
    settings = small_settings(**ALWAYS, static_clips=0.0, static_things=0.0, static_camera=0.0)
    return draw_scene(numbers(), FRAMES, settings, 24.0)


def in_image(scene: Scene, layer: int, u: float, v: float) -> Tensor:
    """Return where a place of a layer is, (B, T, 2); u and v in halves of its sides."""
    fields = Layer(*scene.layers[:, :, layer])
    place = torch.stack([u / fields.inverse_x, v / fields.inverse_y, torch.ones_like(fields.m00)])
    x, y, depth = torch.einsum(
        "ijbt,jbt->ibt", scene.forward[:, :, layer].unflatten(0, (3, 3)), place
    )
    return torch.stack([x / depth, y / depth], -1)


def test_faces_of_a_box_share_their_edges() -> None:
    scene = moving_scene()
    layers = dict(zip(SOLID_LAYERS, FACES, strict=True))
    for first, second in combinations(SOLID_LAYERS, 2):
        shared = 3 - layers[first][0] - layers[second][0]  # the axis along the common edge
        for end in (-1.0, 1.0):
            corners = []
            for own, other in ((first, second), (second, first)):
                axis, sign = layers[other][:2]
                places = {shared: end, axis: sign}
                corners.append(in_image(scene, own, *(places[a] for a in layers[own][2:])))
            assert torch.allclose(*corners, atol=1e-4)


def test_a_box_rotates_and_looks_larger_where_it_is_near() -> None:
    scene = moving_scene()
    along = in_image(scene, 1, 1, 0) - in_image(scene, 1, -1, 0)
    across = in_image(scene, 1, 0, 1) - in_image(scene, 1, 0, -1)
    cosine = torch.cosine_similarity(along, across, dim=-1)
    assert (cosine.amax(1) - cosine.amin(1)).mean() > 0.05  # no rotation in the image does that
    edges = [
        (in_image(scene, 1, 1, v) - in_image(scene, 1, -1, v)).norm(dim=-1) for v in (-1.0, 1.0)
    ]
    assert ((edges[0] / edges[1]).log().abs() > 0.02).float().mean() > 0.5


def test_limbs_stay_on_their_joints() -> None:
    scene = moving_scene()
    for first, second in pairwise(ARTICULATED_LAYERS):
        assert torch.allclose(
            in_image(scene, first, 1, 0), in_image(scene, second, -1, 0), atol=1e-4
        )
    ends = [in_image(scene, layer, 1, 0) - in_image(scene, layer, 0, 0) for layer in (4, 5)]
    cosine = torch.cosine_similarity(*ends, dim=-1)
    assert (cosine.amax(1) - cosine.amin(1)).mean() > 0.1  # the joint bends


def test_points_on_them_keep_their_color() -> None:
    settings = small_settings(
        **ALWAYS, **PLAIN, present=0.0, foreground=1.0, texels_per_pixel=[0.2, 0.3],
        static_clips=0.0,
    )  # fmt: skip
    y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    texture = (128 + 100 * torch.sin(x / 5) * torch.cos(y / 6)).int() * 0x10101
    clip = make_clips(numbers(6), texture[None], settings, SIZE, FRAMES, 64)
    grid = clip.tracks / ((SIZE[0] - 1) / 2) - 1  # (B, T, N, 2)
    colors = torch.nn.functional.grid_sample(
        clip.video.flatten(0, 1).float(), grid.flatten(0, 1)[:, None], align_corners=True
    )[:, 0, 0].unflatten(0, (6, FRAMES))  # (B, T, N)
    seen = clip.visible
    mean = (colors * seen).sum(1) / seen.sum(1).clamp(min=1)
    difference = (colors - mean[:, None]).abs()[seen]
    assert seen.float().mean() > 0.3
    # Pixels at an edge are mixed with what lies behind.
    assert difference.quantile(0.9) < 12


def test_static_clips_stand_still() -> None:
    settings = small_settings(**ALWAYS, **PLAIN, static_clips=1.0)
    clip = make_clips(numbers(2), load_textures(None, 32, 3), settings, SIZE, FRAMES, 16)
    assert torch.allclose(clip.tracks, clip.tracks[:, :1].expand_as(clip.tracks), atol=1e-3)
    assert (clip.video == clip.video[:, :1]).all()


def test_only_chosen_clips_have_them() -> None:
    scene = draw_scene(numbers(400), 1, small_settings(**(ALWAYS | {"solids": 0.25})), 24.0)
    is_box = Layer(*scene.layers).is_box[..., 0]  # (B, L)
    # All three layers of a box are boxes; layers by themselves are with probability 0.3.
    assert is_box[:, 1:4].all(1).float().mean() == pytest.approx(0.25 + 0.75 * 0.027, abs=0.06)
    assert is_box[:, 4:7].all()


def test_too_few_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"solids=0.5 needs data.procedural.layers of at least 4"):
        small_settings(layers=3, solids=0.5)
    with pytest.raises(ConfigError, match=r"articulated=1.0 needs .* at least 7; there are 6"):
        small_settings(layers=6, articulated=1.0)
