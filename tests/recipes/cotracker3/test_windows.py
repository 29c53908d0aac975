"""overt/recipes/cotracker3/windows.py: windows cover the video."""

import pytest
import torch

from overt.recipes.cotracker3.windows import since_query, sliding_windows


@pytest.mark.parametrize("window_len", [2, 4, 16])
def test_windows_cover_the_video_and_each_brings_something_new(window_len: int) -> None:
    for frames in range(1, 5 * window_len):
        spans = sliding_windows(frames, window_len)
        assert [span.start for span in spans] == [n * window_len // 2 for n in range(len(spans))]
        assert all(span.stop - span.start == window_len for span in spans[:-1])
        assert spans[-1].stop == frames
        seen = [span.stop for span in spans]
        assert seen == sorted(set(seen))
        # The published count of windows, which is none for a short video.
        step = window_len // 2
        assert len(spans) == max((frames - window_len + step - 1) // step + 1, 1)


def test_points_are_followed_from_their_query_on() -> None:
    followed = since_query(torch.tensor([[0, 2]]), 3)
    assert followed.tolist() == [[[True, False], [True, False], [True, True]]]
