"""CoTracker3's predictor: scales, support points, batched queries, both directions of time."""

from typing import Any

import pytest
import torch
from small_recipes import small_tracker, tracker_inputs
from torch import Tensor
from torch.nn import functional as F

from overt.errors import ConfigError, DataError
from overt.geometry.grid import point_grid
from overt.recipes.cotracker3 import predictor
from overt.recipes.cotracker3.model import CoTracker3Offline
from overt.recipes.cotracker3.online import CoTracker3Online
from overt.recipes.cotracker3.predictor import FRAMES_RESIZED, Prediction, Predictor

SIZE = (48, 64)  # of the resized video, height and width; the given one has 32 x 40


def assert_same(actual: Prediction, expected: Prediction) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def scale_xy() -> Tensor:
    return torch.tensor([(SIZE[1] - 1) / 39, (SIZE[0] - 1) / 31])


def resized(video: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    frames = F.interpolate(
        video.flatten(0, 1).float(), SIZE, mode="bilinear", align_corners=True
    ).unflatten(0, video.shape[:2])
    return frames, torch.cat([queries[..., :1], queries[..., 1:] * scale_xy()], dim=-1)


def test_without_resizing_and_support_points_it_is_the_model() -> None:
    model, (video, queries) = small_tracker(CoTracker3Offline), tracker_inputs()
    prediction = Predictor(model, resolution=(32, 40), iters=2, grid_size=0)(video, queries)
    assert_same(prediction, Prediction(*model(video, queries, iters=2)[:3]))


def test_joint_mode_adds_a_grid_in_the_first_frame_and_drops_it() -> None:
    model, (video, queries) = small_tracker(CoTracker3Offline), tracker_inputs()
    predictor = Predictor(model, SIZE, iters=2, grid_size=3)
    frames, scaled = resized(video, queries)
    grid = F.pad(point_grid(3, SIZE), (1, 0)).expand(2, -1, -1)
    tracks = model(frames, torch.cat([scaled, grid], dim=1), iters=2)
    tracks_xy, visibility, confidence = (part[:, :, :5] for part in tracks[:3])
    expected = Prediction(tracks_xy / scale_xy(), visibility, confidence)
    assert_same(predictor(video, queries), expected)


@pytest.mark.parametrize("manner", [{}, {"single_point": True}, {"points_per_chunk": 2}])
def test_a_second_pass_of_the_same_size_goes_on_with_the_first(manner: dict[str, Any]) -> None:
    model, (video, queries) = small_tracker(CoTracker3Offline), tracker_inputs()
    once = Predictor(model, SIZE, iters=3, **manner)(video, queries)
    twice = Predictor(model, SIZE, iters=1, fine_resolution=SIZE, fine_iters=2, **manner)
    assert_same(twice(video, queries), once)


def test_a_second_pass_begins_with_the_tracks_of_the_first_in_its_own_pixels() -> None:
    model, (video, queries) = small_tracker(CoTracker3Offline), tracker_inputs()
    frames, scaled = resized(video, queries)  # to SIZE, from 32 x 40
    first = model.estimates(model.encode(video), queries, 2)[-1]
    start = first._replace(tracks_xy=first.tracks_xy * scale_xy())
    expected = model.estimates(model.encode(frames), scaled, 1, start)[-1]
    predict = Predictor(
        model, (32, 40), iters=2, grid_size=0, fine_resolution=SIZE, fine_iters=1
    )  # fmt: skip
    prediction = predict(video, queries)
    torch.testing.assert_close(
        prediction.tracks_xy, expected.tracks_xy / scale_xy(), atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        prediction.visibility, expected.visibility.sigmoid(), atol=1e-4, rtol=0
    )


def test_the_online_model_has_one_pass() -> None:
    with pytest.raises(ConfigError, match=r"fine_resolution=\(48, 64\).*online"):
        Predictor(small_tracker(CoTracker3Online), SIZE, fine_resolution=SIZE)


def test_random_support_points_change_the_result_always_alike() -> None:
    model, (video, queries) = small_tracker(CoTracker3Offline), tracker_inputs()
    predictor = Predictor(model, SIZE, iters=2, grid_size=0, random_points=20)
    one = predictor(video, queries)
    assert_same(predictor(video, queries), one)
    alone = Predictor(model, SIZE, iters=2, grid_size=0)(video, queries)
    assert (alone.tracks_xy - one.tracks_xy).abs().max() > 1e-3


@pytest.mark.parametrize("queries_per_batch", [1, 3, 100])
def test_single_points_in_batches_equal_one_run_per_query(queries_per_batch: int) -> None:
    model, (video, queries) = small_tracker(CoTracker3Offline), tracker_inputs()
    predictor = Predictor(
        model,
        SIZE,
        iters=2,
        grid_size=2,
        single_point=True,
        local_grid_size=3,
        queries_per_batch=queries_per_batch,
    )
    encoded: list[int] = []
    hook = model.fnet.register_forward_hook(lambda module, x, maps: encoded.append(len(maps)))
    together = predictor(video, queries)
    assert sum(encoded) == video.shape[0] * video.shape[1]  # every frame once
    hook.remove()

    frames, scaled = resized(video, queries)
    for b in range(2):
        for n in range(5):
            query = scaled[b, n : n + 1]
            centre = (query[0, 2].item(), query[0, 1].item())
            places = [point_grid(3, (50.0, 50.0), centre), point_grid(2, SIZE)]
            points = torch.cat([query, F.pad(torch.cat(places), (1, 0))])
            tracks = model(frames[b : b + 1], points[None], iters=2)
            tracks_xy, visibility, confidence = (part[0, :, 0] for part in tracks[:3])
            alone = Prediction(tracks_xy / scale_xy(), visibility, confidence)
            assert_same(Prediction(*(part[b, :, n] for part in together)), alone)


def test_online_models_are_streamed_without_support_points() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=10)
    frames, scaled = resized(video, queries)
    tracks_xy, visibility, confidence, _ = model(frames, scaled, iters=2)
    expected = Prediction(tracks_xy / scale_xy(), visibility, confidence)
    assert_same(Predictor(model, SIZE, iters=2)(video, queries), expected)
    assert model.stream.shared is None


MODELS = [(CoTracker3Offline, {}), (CoTracker3Online, {"backward_tracking": True})]


@pytest.mark.parametrize(("kind", "manner"), MODELS)
def test_frames_are_resized_a_few_at_a_time_with_the_same_result(
    kind: type[CoTracker3Offline] | type[CoTracker3Online],
    manner: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long video of large frames never lies in memory as numbers with 32 bits."""
    model, (video, queries) = small_tracker(kind), tracker_inputs(frames=37)
    predict = Predictor(model, SIZE, iters=2, **manner)
    frames, _ = resized(video, queries)
    monkeypatch.setattr(Predictor, "resized", lambda self, part, *_: frames_of(part))

    def frames_of(part: Tensor) -> Tensor:  # what was resized in one go
        return torch.unflatten(
            F.interpolate(part.flatten(0, 1).float(), SIZE, mode="bilinear", align_corners=True),
            0,
            part.shape[:2],
        )

    whole = predict(video, queries)
    monkeypatch.undo()
    sizes: list[int] = []
    usual = F.interpolate

    def noted(images: Tensor, *rest: Any, **more: Any) -> Tensor:
        if images.shape[-2:] == video.shape[-2:]:
            sizes.append(len(images))
        return usual(images, *rest, **more)

    monkeypatch.setattr(predictor.F, "interpolate", noted)
    found = predict(video, queries)
    assert torch.equal(predict.resized(video, video.device, SIZE), frames)
    assert max(sizes) <= len(video) * FRAMES_RESIZED
    assert FRAMES_RESIZED < 37
    for one, other in zip(found, whole, strict=True):
        assert torch.equal(one, other)


def test_the_online_model_is_given_a_window_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the video, no more than a window of it is resized and held."""
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=37)
    asked: list[int] = []
    usual = Predictor.resized

    def noted(self: Predictor, part: Tensor, *rest: Any) -> Tensor:
        asked.append(part.shape[1])
        return usual(self, part, *rest)

    monkeypatch.setattr(Predictor, "resized", noted)
    Predictor(model, SIZE, iters=2)(video, queries)
    assert max(asked) <= model.window_len
    assert sum(asked) == 37  # every frame once


def test_before_its_query_a_point_is_tracked_on_the_reversed_video() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=10)
    forward = Predictor(model, SIZE, iters=2)
    turned = queries.clone()
    turned[..., 0] = 9 - turned[..., 0]
    backward = Prediction(*(part.flip(1) for part in forward(video.flip(1), turned)))
    onward = forward(video, queries)
    both = Predictor(model, SIZE, iters=2, backward_tracking=True)(video, queries)
    before = 0
    for b in range(2):
        for n in range(5):
            t = int(queries[b, n, 0])
            before += t
            for part, early, late in zip(both, backward, onward, strict=True):
                assert torch.equal(part[b, :t, n], early[b, :t, n])
                assert torch.equal(part[b, t:, n], late[b, t:, n])
    assert before > 0


def test_pinned_queries_are_where_they_were_asked_for() -> None:
    model, (video, queries) = small_tracker(CoTracker3Offline), tracker_inputs()
    free = Predictor(model, SIZE, iters=2)(video, queries)
    pinned = Predictor(model, SIZE, iters=2, pin_queries=True)(video, queries)
    for b in range(2):
        for n in range(5):
            t = int(queries[b, n, 0])
            assert torch.equal(pinned.tracks_xy[b, t, n], queries[b, n, 1:])
            assert pinned.score[b, t, n] == 1
            others = [frame for frame in range(6) if frame != t]
            assert torch.equal(pinned.tracks_xy[b, others, n], free.tracks_xy[b, others, n])
            assert torch.equal(pinned.score[b, others, n], free.score[b, others, n])


def test_a_point_is_visible_above_the_threshold() -> None:
    prediction = Prediction(
        torch.zeros(1, 1, 3, 2), torch.tensor([[[0.95, 0.8, 0.8]]]), torch.tensor([[[0.5, 0.8, 1]]])
    )
    assert prediction.visible().tolist() == [[[False, True, True]]]
    assert prediction.visible(0.7).tolist() == [[[False, False, True]]]
    assert prediction.visible(0.9, with_confidence=False).tolist() == [[[True, False, False]]]


@pytest.mark.parametrize(
    "query", [(6, 3, 3), (-1, 3, 3), (0, 42, 3), (0, 3, -2), (0, 3, 33), (0, float("nan"), 3)]
)
def test_queries_outside_the_video_are_refused(query: tuple[float, float, float]) -> None:
    video, queries = tracker_inputs()
    queries[1, 4] = torch.tensor(query)
    with pytest.raises(DataError, match=r"1 of 10 queries.*query 4.*frame 0 to 5, x 0 to 39"):
        Predictor(small_tracker(CoTracker3Offline))(video, queries)


@pytest.mark.parametrize("single_point", [False, True])
@pytest.mark.parametrize("kind", [CoTracker3Offline, CoTracker3Online])
def test_no_queries_give_no_tracks(
    kind: type[CoTracker3Offline] | type[CoTracker3Online], single_point: bool
) -> None:
    video, queries = tracker_inputs()
    predict = Predictor(
        small_tracker(kind), SIZE, iters=2, single_point=single_point, pin_queries=True
    )
    found = predict(video, queries[:, :0])
    assert found.tracks_xy.shape == (2, 6, 0, 2)
    assert found.visibility.shape == found.confidence.shape == (2, 6, 0)
    with pytest.raises(DataError, match="0 queries"):
        small_tracker(kind)(video, queries[:, :0])


@pytest.mark.parametrize("kind", [CoTracker3Offline, CoTracker3Online])
def test_a_video_without_frames_is_refused(
    kind: type[CoTracker3Offline] | type[CoTracker3Online],
) -> None:
    video, queries = tracker_inputs()
    for track in (small_tracker(kind), Predictor(small_tracker(kind), SIZE)):
        with pytest.raises(DataError, match="0 frames"):
            track(video[:, :0], queries)
        with pytest.raises(DataError, match="0 frames"):
            track(video[:, :0], queries[:, :0])


def test_batches_of_no_query_are_refused() -> None:
    with pytest.raises(ConfigError, match="queries_per_batch=0"):
        Predictor(small_tracker(CoTracker3Offline), queries_per_batch=0)
