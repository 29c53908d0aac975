"""Crops of photographs: geometry, what is shown, film; labels stay those of the picture."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from overt.data.people.backdrops import Photographs
from overt.data.people.live import Drawn, Shots, Studio, draw_live
from overt.data.people.outfits import HAIR, SKIN, TOP
from overt.data.people.photograph import (
    SPILL,
    WIDEST,
    Photo,
    PhotographOptions,
    Photos,
    coarsened,
    compressed,
    develop,
    draw_photo,
    is_shown,
    lay,
    shown_rectangle,
    worn,
)
from overt.data.people.scenes import PeopleOptions, place_people
from overt.data.rng import sample_rng
from overt.geometry.body import BODY_JOINTS, BodyModel
from overt.geometry.body_capsule import capsule_body

SIZE, PEOPLE = 40, 12
OPTIONS = PeopleOptions(SIZE, framing="photograph", body="capsule.npz")
FRAMED = PhotographOptions(
    cut=0.5,
    margin=(1.0, 1.7),
    shift=0.1,
    whole=0.2,
    whole_margin=3.0,
    border=0.4,
    coarse=0.25,
    compressed=0.3,
)
FILM = (1.0, 1.0, 0.0, 0.0)  # changes nothing
WHOLE = (0.0, 0.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def model() -> BodyModel:
    return BodyModel(capsule_body())


def drawn_people(model: BodyModel, options: PhotographOptions, count: int = PEOPLE) -> Drawn:
    rest_joints = model.rest_places[:BODY_JOINTS].double().numpy()
    nothing = Photographs(None)
    people = [
        draw_live(sample_rng(4, 0, index), rest_joints, SIZE, nothing, options)
        for index in range(count)
    ]
    return Drawn.of(people)


def visible_boxes(model: BodyModel, drawn: Drawn) -> tuple[torch.Tensor, torch.Tensor]:
    """Return low and high corners (B, 2) of what the window shows of each person, in pixels."""
    scene = place_people(drawn.people, model, OPTIONS, move_back=True, photos=drawn.photos)
    image = scene.vertices @ scene.matrix.mT
    pixels = image[..., :2] / image[..., 2:]
    low, high = pixels.amin(1), pixels.amax(1)
    assert drawn.photos is not None
    window = drawn.photos.window
    return low + window[:, :2] * (high - low), low + window[:, 2:] * (high - low)


def test_the_visible_person_has_the_sampled_size_and_position(model: BodyModel) -> None:
    drawn = drawn_people(model, replace(FRAMED, cut=0.7, whole=0.0))
    low, high = visible_boxes(model, drawn)
    photos = drawn.photos
    assert photos is not None
    assert 0 < (photos.window != torch.tensor(WHOLE)).any(1).sum() < PEOPLE
    longer = (high - low).amax(1)
    margin = SIZE / longer
    is_free = margin > photos.margin - 1e-3  # others would need too large an angle of view
    assert is_free.sum() > PEOPLE // 2
    torch.testing.assert_close(margin[is_free], photos.margin[is_free], rtol=1e-3, atol=1e-3)
    assert (margin > 1 - 1e-3).all()
    shift = SIZE / 2 - (low + high) / 2
    limit = (0.5 + SPILL - 0.5 / margin)[:, None] * SIZE
    expected = (photos.shift * SIZE).clamp(-limit, limit)
    # The side is that of the centered person, who looks a little different in another position.
    assert (shift - expected).abs().max() < 0.06 * SIZE


def test_no_crop_has_a_larger_angle_of_view_than_cameras(model: BodyModel) -> None:
    drawn = drawn_people(model, replace(FRAMED, cut=0.0, whole=1.0, whole_margin=9.0))
    scene = place_people(drawn.people, model, OPTIONS, move_back=True, photos=drawn.photos)
    low, high = visible_boxes(model, drawn)
    fills = (high - low).amax(1) > 0.98 * SIZE  # people who are larger than that by themselves
    side = SIZE / scene.matrix[:, 0, 0]
    # The limit is that of the centered person; beside the middle near limbs look larger.
    assert (side[~fills] < 1.5 * WIDEST).all()
    assert (~fills).sum() > PEOPLE // 2
    # A crop that became smaller leaves less room for its shift.
    spill = torch.maximum(-low, high - SIZE).amax(1) / SIZE
    assert (spill < SPILL + 0.06).all()


def test_any_point_of_a_box_can_be_put_anywhere() -> None:
    generator = torch.Generator().manual_seed(0)
    vertices = torch.randn(5, 50, 3, generator=generator)
    divisor = vertices[..., 2] + 5
    fraction, target = torch.rand(5, 2, generator=generator), torch.rand(5, 2, generator=generator)
    shift, extent = lay(vertices, divisor, fraction, target)
    pixels = (vertices[..., :2] + shift[:, None]) / divisor[..., None]
    low = pixels.amin(1)
    torch.testing.assert_close(low + fraction * extent, target, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(extent, pixels.amax(1) - low)


def test_cut_people_end_in_black_and_hidden_joints_do_not_count(model: BodyModel) -> None:
    drawn = drawn_people(model, replace(FRAMED, cut=1.0, whole=0.0, border=0.0))
    shots: Shots = Studio(OPTIONS, model).shoot(drawn)
    low, high = visible_boxes(model, drawn)
    photos = drawn.photos
    assert photos is not None
    row = int((photos.window[:, 3] < 0.8).nonzero()[0])
    edge = int(high[row, 1])
    assert (shots.pictures[row, :, edge + 2 :] == 0).all()
    assert (shots.pictures[row, :, edge - 3 : edge] > 0).any()
    above = shots.joints[..., :2] >= low[:, None] - 1e-3
    below = shots.joints[..., :2] <= high[:, None] + 1e-3
    counted = shots.joints[..., 2] > 0
    assert not (counted & ~(above & below).all(-1)).any()
    assert counted.any(1).all()
    assert (~counted).any()


def test_edges_of_photographs() -> None:
    """A cut at the box, a bar at a fraction of the crop, whichever is further inside."""
    photo = Photo((0.5, 0.0, 1.0, 1.0), 1.2, (0.0, 0.0), (0.0, 0.1, 1.0, 0.9), FILM, (1.0, 1.0))
    pixels = torch.tensor([[[10.0, 0.0], [30.0, 40.0]]])
    edges = shown_rectangle(pixels, Photos.of([photo]), SIZE)
    torch.testing.assert_close(edges, torch.tensor([[20.0, 3.5, 39.5, 35.5]]))
    points = torch.tensor([[[25.0, 20.0], [15.0, 20.0], [25.0, 38.0]]])
    assert is_shown(points, edges).tolist() == [[True, False, False]]
    white = torch.full((1, 3, SIZE, SIZE), 255, dtype=torch.uint8)
    shown = develop(white, edges, Photos.of([photo]))[0, 0] > 0
    assert shown.sum() == 20 * 32
    assert shown[4:36, 20:].all()


def test_numbers_are_a_function_of_the_generator() -> None:
    options = FRAMED
    photos = [draw_photo(options, sample_rng(0, 0, index)) for index in range(300)]
    assert photos[:20] == [draw_photo(options, sample_rng(0, 0, index)) for index in range(20)]
    batch = Photos.of(photos)
    cut = (batch.window != torch.tensor(WHOLE)).any(1).float().mean()
    assert abs(cut - 0.5 * 0.8) < 0.1  # whole photographs are not cut by a window
    assert (batch.window[:, 2:] > batch.window[:, :2]).all()
    assert (batch.frame[:, 2:] > batch.frame[:, :2]).all()
    for column, fraction in ((2, options.coarse), (3, options.compressed)):
        assert abs((batch.film[:, column] > 0).float().mean() - fraction) < 0.1


def test_film() -> None:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(3, 3, SIZE, SIZE, generator=generator)
    level = torch.tensor([0.0, 1.0, 3.0]).view(3, 1, 1, 1)
    coarse = coarsened(pictures, level)
    assert torch.equal(coarse[0], pictures[0])
    deviations = coarse.std((1, 2, 3))
    assert deviations[0] > 1.5 * deviations[1] > 2 * deviations[2]
    levels = (255 * pictures).to(torch.uint8)
    film = [FILM, (1.0, 0.0, 0.0, 0.0), (0.5, 1.0, 0.0, 0.0)]
    photos = Photos.of([Photo(WHOLE, 1.0, (0.0, 0.0), WHOLE, each, (1.0, 1.0)) for each in film])
    edges = torch.tensor([[-0.5, -0.5, SIZE, SIZE]]).expand(3, 4)
    plain, gray, flat = develop(levels, edges, photos)
    assert torch.equal(plain, levels[0])
    assert (gray.int() - gray[:1].int()).abs().max() == 0
    assert flat.float().std() < 0.6 * levels[2].float().std()


@pytest.mark.parametrize("quality", [20, 50, 90])
def test_compression_is_that_of_jpeg(quality: int) -> None:
    """As Pillow compresses a smooth picture whose sides are not multiples of a block."""
    line = np.linspace(0, 3 * np.pi, 44)
    waves = np.stack([np.sin(line)[:, None] * np.cos(k * line) for k in (0.5, 1, 2)], axis=-1)
    pixels = (127 + 100 * waves).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=0)
    stored = np.asarray(Image.open(buffer)).astype(np.float32)
    steps = 50 / quality if quality < 50 else 2 - quality / 50
    picture = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    ours = 255 * compressed(picture, torch.full((1, 1, 1, 1), steps))[0].permute(1, 2, 0).numpy()
    inner = np.s_[:40, :40]  # blocks beyond the border are padded in other ways
    assert np.abs(ours - stored)[inner].mean() < 1.5


def test_clothes_are_looser_and_quieter(model: BodyModel) -> None:
    drawn = drawn_people(model, FRAMED, 4)
    photos = drawn.photos
    assert photos is not None
    looks = worn(drawn.looks, photos)
    for region in (SKIN, HAIR):
        assert torch.equal(looks.colors[:, region], drawn.looks.colors[:, region])
    spread = [each.colors[:, TOP].std(-1) for each in (looks, drawn.looks)]
    assert (spread[0] <= spread[1] + 1e-6).all()
    ratio = looks.thickness[:, TOP] / drawn.looks.thickness[:, TOP]
    torch.testing.assert_close(ratio, photos.cloth[:, 1])
    studio, plain = Studio(OPTIONS, model), photos._replace(cloth=torch.ones(4, 2))
    seen = [studio.shoot(drawn._replace(photos=each)) for each in (photos, plain)]
    assert not torch.equal(seen[0].pictures, seen[1].pictures)
    torch.testing.assert_close(seen[0].joints, seen[1].joints)
