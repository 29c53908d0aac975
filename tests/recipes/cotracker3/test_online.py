"""The online CoTracker3: windows, what they hand on, streams of chunks, short videos."""

from unittest.mock import Mock

import pytest
import torch
from small_recipes import small_tracker, tracker_inputs
from torch import Tensor

from overt.errors import ConfigError, DataError
from overt.recipes.cotracker3.model import Tracks
from overt.recipes.cotracker3.online import CoTracker3Online
from overt.recipes.cotracker3.windows import since_query, sliding_windows

S = 6  # the window of the small model


def stream(model: CoTracker3Online, video: Tensor, queries: Tensor) -> list[Tracks]:
    model.init_video_online_processing()
    return [
        model(video[:, span], queries, iters=2, is_online=True)
        for span in sliding_windows(video.shape[1], S)
    ]


def assert_same(actual: Tracks, expected: Tracks) -> None:
    for one, other in zip(actual[:3], expected[:3], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


# --- where windows lie ---------------------------------------------------------------------------


def test_an_odd_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="window_len=7"):
        small_tracker(CoTracker3Online, window_len=7)


# --- whole videos --------------------------------------------------------------------------------


def test_a_batch_of_two_equals_two_videos_alone() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=14)
    both = model(video, queries, iters=2, is_train=True)
    for b in range(2):
        alone = model(video[b : b + 1], queries[b : b + 1], iters=2, is_train=True)
        assert_same(alone, Tracks(*(part[b : b + 1] for part in both[:3]), None))
        assert torch.equal(alone.train_data.valid_mask, both.train_data.valid_mask[b : b + 1])


@pytest.mark.parametrize("frames", range(1, S + 1))
def test_a_short_video_is_one_whose_last_frame_lasts(frames: int) -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=frames)
    lasting = torch.cat([video, video[:, -1:].expand(-1, S - frames, -1, -1, -1)], dim=1)
    tracks, longer = model(video, queries, iters=2), model(lasting, queries, iters=2)
    assert_same(tracks, Tracks(*(part[:, :frames] for part in longer[:3]), None))
    assert (tracks.tracks_xy - queries[:, None, :, 1:]).abs().max() > 0.1


def test_nothing_is_known_of_frames_after_the_window() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=14)
    changed = video.clone()
    changed[:, S:] = 255 - changed[:, S:]
    assert (queries[..., 0] >= S).any()  # what these points look like must not leak either
    one, other = model(video, queries, iters=2), model(changed, queries, iters=2)
    for early, late in zip(one[:3], other[:3], strict=True):
        assert torch.equal(early[:, : S // 2], late[:, : S // 2])
    assert not torch.equal(one.tracks_xy[:, S:], other.tracks_xy[:, S:])


def test_a_point_starts_in_the_window_of_its_query_from_its_place() -> None:
    model, (video, _) = small_tracker(CoTracker3Online), tracker_inputs(batch=1, frames=12)
    # Windows start at frames 0, 3 and 6. The second carries over points queried before frame 6.
    queries = torch.tensor([[[0.0, 9, 9], [5, 19, 19], [6, 29, 19], [11, 30, 8]]])
    starts: list[tuple[Tensor, ...]] = []
    supports: list[Tensor] = []
    refine = model.refine

    def spy(pyramid, support, cells_xy, visibility, confidence, *rest):  # type: ignore[no-untyped-def]
        starts.append((cells_xy, visibility, confidence))
        supports.append(support)
        return refine(pyramid, support, cells_xy, visibility, confidence, *rest)

    model.refine = spy
    windows = model(video, queries, iters=2, is_train=True).train_data.windows
    expected = [[False] * 4, [True, True, False, False], [True, True, True, False]]
    for number, (cells_xy, visibility, confidence) in enumerate(starts):
        at_query = (cells_xy * model.stride == queries[..., None, 1:]).all(-1).all(-1)
        assert (~at_query[0]).tolist() == expected[number]
        assert visibility.any(-1)[0].tolist() == expected[number]
        if number:
            before = windows[number - 1][-1]
            held = before.tracks_xy[:, [3, 4, 5, 5, 5, 5], :2].transpose(1, 2)
            torch.testing.assert_close(cells_xy[:, :2] * model.stride, held)
            logits = before.confidence[:, [3, 4, 5, 5, 5, 5], :2].transpose(1, 2)
            assert torch.equal(confidence[:, :2], logits)
    appearance = [support.flatten(2).any(-1)[0].tolist() for support in supports]
    assert appearance == [[True, True, False, False], [True, True, True, False], [True] * 4]


def test_training_data_are_all_iterations_of_all_windows() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=11)
    tracks = model(video, queries, iters=3, is_train=True)
    windows, valid_mask = tracks.train_data
    spans = sliding_windows(11, S)
    assert [[e.tracks_xy.shape[1] for e in window] for window in windows] == [
        [span.stop - span.start] * 3 for span in spans
    ]
    assert torch.equal(valid_mask, since_query(queries[..., 0], 11).float())
    for span, later, window in zip(spans, [*spans[1:], slice(11, 11)], windows, strict=True):
        settled = later.start - span.start
        last = window[-1].tracks_xy[:, :settled]
        assert torch.equal(tracks.tracks_xy[:, span.start : later.start], last)
    assert model(video, queries).train_data is None


def test_gradient_flows_between_windows_through_logits_but_not_through_positions() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(batch=1, frames=9)
    queries[..., 0] = 0
    updates: list[Tensor] = []
    model.updateformer.register_forward_hook(lambda module, x, update: updates.append(update))
    _, second = model(video, queries, iters=1, is_train=True).train_data.windows
    (gradient,) = torch.autograd.grad(second[0].confidence.sum(), [updates[0]])
    assert not gradient[..., :2].any()
    assert gradient[..., 2].any()
    assert gradient[..., 3].any()


def test_every_parameter_gets_a_gradient() -> None:
    model = small_tracker(CoTracker3Online)
    tracks, visibility, confidence, _ = model(*tracker_inputs(frames=9), iters=2)
    (tracks.mean() + visibility.mean() + confidence.mean()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


# --- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 6, 7, 9, 11, 12, 14])
def test_a_stream_of_chunks_equals_the_whole_video(frames: int) -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=frames)
    chunks = stream(model, video, queries)
    assert_same(chunks[-1], model(video, queries, iters=2))
    spans = sliding_windows(frames, S)
    assert [chunk.tracks_xy.shape[1] for chunk in chunks] == [span.stop for span in spans]
    for span, chunk in zip(spans, chunks, strict=True):
        if (queries[..., 0] < span.stop).all():
            assert_same(chunk, model(video[:, : span.stop], queries, iters=2))


def test_a_stream_encodes_no_frame_twice_and_keeps_no_graph() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=14)
    encoded: list[int] = []
    model.fnet.register_forward_hook(lambda module, x, maps: encoded.append(len(maps)))
    last = stream(model, video, queries)[-1]
    assert sum(encoded) == video.shape[0] * video.shape[1]
    assert not last.tracks_xy.requires_grad


def test_a_new_stream_knows_nothing_of_the_old_one() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=10)
    first = stream(model, video, queries)[-1]
    stream(model, 255 - video[:, :7], queries[:, :3])
    assert torch.equal(stream(model, video, queries)[-1].tracks_xy, first.tracks_xy)


def test_a_whole_video_does_not_disturb_a_stream() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=9)
    expected = stream(model, video, queries)[-1]
    model.init_video_online_processing()
    model(video[:, :6], queries, iters=2, is_online=True)
    model(255 - video, queries, iters=2)
    last = model(video[:, 3:9], queries, iters=2, is_online=True)
    assert torch.equal(last.tracks_xy, expected.tracks_xy)


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_an_interrupted_chunk_can_be_given_again(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends a camera: what has been tracked must stay right."""
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=11)
    expected = stream(model, video, queries)[-1]
    model.init_video_online_processing()
    for number, span in enumerate(sliding_windows(11, S)):
        given = {"queries": queries, "iters": 2, "is_online": True}
        if number == chunk:
            with monkeypatch.context() as patch:
                patch.setattr(model, "window", Mock(side_effect=KeyboardInterrupt))
                with pytest.raises(KeyboardInterrupt):
                    model(video[:, span], **given)
        last = model(video[:, span], **given)
    assert torch.equal(last.tracks_xy, expected.tracks_xy)


def test_chunks_that_do_not_follow_are_refused() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs(frames=12)
    with pytest.raises(DataError, match="7 frames from frame 0 on: it must have 1 to 6"):
        model(video[:, :7], queries, is_online=True)
    model(video[:, :6], queries, is_online=True)
    with pytest.raises(DataError, match="3 frames from frame 3 on: it must have 4 to 6"):
        model(video[:, 3:6], queries, is_online=True)
    with pytest.raises(DataError, match="4 queries for each of 2 videos"):
        model(video[:, 3:9], queries[:, :4], is_online=True)
    model(video[:, 3:8], queries, is_online=True)
    with pytest.raises(DataError, match="init_video_online_processing"):
        model(video[:, 6:12], queries, is_online=True)


def test_a_chunk_of_other_frames_is_refused() -> None:
    model, (video, queries) = small_tracker(CoTracker3Online), tracker_inputs()
    chunk = video[:, :1].expand(-1, model.window_len, -1, -1, -1)
    was = rf"before they had \({', '.join(map(str, chunk[:, 0].shape))}\)"
    model(chunk, queries, iters=1, is_online=True)
    for other in (chunk[..., :-8], chunk[:1]):
        with pytest.raises(DataError, match=was):
            model(other, queries, iters=1, is_online=True)
