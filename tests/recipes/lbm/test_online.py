"""overt/recipes/lbm/online.py: a stream gives what a clip gives; points come and go freely."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from small_recipes import small_lbm
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from overt.errors import ConfigError, DataError
from overt.recipes.lbm.clip import track_clip
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.online import OnlineFrame, OnlineTracker, compiled, fast_copy

SIZE = (40, 52)


def make_video(frames: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (frames, 3, *SIZE), generator=generator).to(torch.uint8)


def make_points(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(count, 2, generator=generator) * torch.tensor([51.0, 39.0])


def stirred(**changes: object) -> LBM:
    """A model whose batch statistics and offsets are not those of the start."""
    model = small_lbm(**changes)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith(("running_mean", "sampling_offsets.weight")):
                value.normal_(std=0.2)
    return model.eval()


def test_a_clip_by_the_stream_is_the_clip_of_training() -> None:
    """From each query's frame on; before it the stream knows nothing of the point."""
    model, video = stirred(), make_video()
    queries = torch.cat([torch.tensor([[0.0], [2.0], [0.7], [4.0]]), make_points(4)], dim=1)
    found = track_clip(model, video, queries)
    with torch.no_grad():
        prediction = model(video[None], queries[None])
    wanted = model.to_video_pixels(prediction.points_xy[0], SIZE)
    time = torch.arange(5)[:, None]
    after = time >= queries[:, 0].floor()
    torch.testing.assert_close(found.points_xy[after], wanted[after], atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(
        found.visibility[after], prediction.visibility[0].sigmoid()[after], atol=1e-4, rtol=1e-4
    )
    still = queries[:, 1:].expand(5, -1, -1)
    assert torch.equal(found.points_xy[~after], still[~after])
    assert not found.visible[~after].any()


def test_a_longer_memory_is_used() -> None:
    model, video = stirred(visible_threshold=1e-6), make_video(8)
    queries = torch.cat([torch.zeros(3, 1), make_points(3)], dim=1)
    short, long = (track_clip(model, video, queries, memory_size=size) for size in (3, 7))
    torch.testing.assert_close(short.points_xy[:1], long.points_xy[:1])
    assert not torch.equal(short.points_xy[-1], long.points_xy[-1])


def test_points_that_come_and_go_leave_the_others_alone() -> None:
    model, video, points = stirred(), make_video(), make_points(6)
    plain = OnlineTracker(model, SIZE, slots=2)
    plain.observe(video[0])
    kept = plain.add(points[:2])
    wanted = [plain.advance(), *(plain.step(frame) for frame in video[1:])]

    busy = OnlineTracker(model, SIZE, slots=2)
    busy.observe(video[0])
    first = busy.add(points[2:3])
    assert busy.add(points[:2]) == [1, 2]  # more than there are slots
    assert busy.slots >= 3
    found = [busy.advance()]
    for number, frame in enumerate(video[1:]):
        if number == 1:
            busy.remove(first)
            busy.add(points[3:6])
        found.append(busy.step(frame))
    assert found[-1].numbers == (1, 2, 3, 4, 5)
    assert kept == [0, 1]
    for one, other in zip(found, wanted, strict=True):
        rows = [one.numbers.index(number) for number in (1, 2)]
        torch.testing.assert_close(one.points_xy[rows], other.points_xy, atol=1e-4, rtol=1e-4)
        assert torch.equal(one.visible[rows], other.visible)


def test_a_slot_that_is_used_again_remembers_nothing() -> None:
    model, video, points = stirred(visible_threshold=1e-6), make_video(), make_points(2)
    reused, fresh = (OnlineTracker(model, SIZE, slots=1) for _ in range(2))
    reused.observe(video[0])
    number = reused.add(points[:1])
    for frame in video[:3]:
        reused.step(frame)
    reused.remove(number)
    fresh.observe(video[2])
    for tracker in (reused, fresh):
        tracker.add(points[1:])
    assert reused.slots == 1
    one, other = (tracker.step(video[3]) for tracker in (reused, fresh))
    torch.testing.assert_close(one.points_xy, other.points_xy)


def test_mistakes_are_said() -> None:
    tracker = OnlineTracker(small_lbm().eval(), SIZE, slots=2)
    with pytest.raises(DataError, match="show a frame first"):
        tracker.add(make_points(1))
    with pytest.raises(DataError, match="show a frame first"):
        tracker.advance()
    tracker.observe(make_video()[0])
    with pytest.raises(DataError, match=r"point 1 at \(70, 3\) lies outside the frame of 52 x 40"):
        tracker.add(torch.tensor([[1.0, 1.0], [70.0, 3.0]]))
    with pytest.raises(DataError, match=r"expected \(points, 2\)"):
        tracker.add(torch.zeros(3))
    with pytest.raises(DataError, match="no point 5 to remove"):
        tracker.remove([5])
    with pytest.raises(DataError, match=r"follows points in uint8 frames of shape \(3, 40, 52\)"):
        tracker.step(make_video()[0, :, :20])


def test_a_stream_without_points_is_no_trouble() -> None:
    found = OnlineTracker(small_lbm().eval(), SIZE).step(make_video()[0])
    assert found.numbers == ()
    assert found.points_xy.shape == (0, 2)


def test_adding_no_points_changes_nothing() -> None:
    """A detector finds none in some frames."""
    tracker = OnlineTracker(small_lbm().eval(), SIZE, slots=2)
    tracker.observe(make_video()[0])
    assert tracker.add(torch.zeros(0, 2)) == []
    assert tracker.add(make_points(1)) == [0]
    assert tracker.add(torch.zeros(0, 2)) == []
    assert tracker.advance().numbers == (0,)


def test_the_fast_copy_computes_the_same() -> None:
    model, video = stirred(), make_video(2)
    fast = fast_copy(model, torch.float32)
    assert not [name for name in fast.state_dict() if "running_mean" in name]  # folded
    assert [name for name in model.state_dict() if "running_mean" in name]  # the model is untouched
    with torch.no_grad():
        torch.testing.assert_close(
            fast.backbone(video), model.backbone(video), atol=1e-4, rtol=1e-4
        )


def with_changing_points(tracker: OnlineTracker, video: Tensor) -> Iterator[OnlineFrame]:
    """Positions in every frame while a point is removed and four are added, five in the end."""
    points = make_points(6)
    for number, frame in enumerate(video):
        tracker.observe(frame)
        if number == 0:
            tracker.add(points[:2])
        if number == 2:
            tracker.remove([0])
            tracker.add(points[2:])  # two slots are too few
        yield tracker.advance()


def assert_same_tracks(found: OnlineTracker, wanted: OnlineTracker, video: Tensor) -> None:
    pairs = zip(*(with_changing_points(each, video) for each in (found, wanted)), strict=True)
    for one, other in pairs:
        assert one.numbers == other.numbers
        torch.testing.assert_close(one.points_xy, other.points_xy, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(one.visibility, other.visibility, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(one.rho, other.rho, atol=1e-4, rtol=1e-3)
    for part, other in zip(found.memory, wanted.memory, strict=True):
        torch.testing.assert_close(part, other, atol=1e-3, rtol=1e-3)


def compile_by(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    """Replace the default compiler, which takes minutes on a CPU."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))


@pytest.mark.parametrize(
    ("backend", "slots", "count"),
    [("eager", 6, 2), pytest.param("aot_eager", 2, 3, marks=pytest.mark.long)],
)
def test_a_compiled_tracker_gives_the_same_tracks(
    backend: str, slots: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All trackers share what is compiled: each half of a frame, and one again after growth."""
    counter = CompileCounterWithBackend(backend)
    compile_by(monkeypatch, counter)
    model = stirred(num_layers=2, num_levels=1, visible_threshold=1e-6)  # all entries are used
    video = make_video()
    for _ in range(2):
        plain, fast = (OnlineTracker(model, SIZE, slots, compile=each) for each in (False, True))
        fast.step(torch.zeros_like(video[0]))  # compiles before there are points
        assert_same_tracks(fast, plain, video)
    assert counter.frame_count == count


def test_every_half_of_a_frame_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def record(function: Any, **options: object) -> Any:
        assert options == {"dynamic": False, "fullgraph": True}
        names.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", record)
    model, video = stirred(), make_video()
    plain = OnlineTracker(model, SIZE, slots=2)
    assert not names
    assert_same_tracks(OnlineTracker(model, SIZE, slots=2, compile=True), plain, video)
    assert names == ["_encode", "_follow", "_follow"]  # again for more slots


def test_any_number_of_sizes_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the compiler's usual limit."""
    counter = CompileCounterWithBackend("eager")
    compile_by(monkeypatch, counter)
    for size in range(2, 14):
        state = torch.zeros(size)
        compiled(lambda state=state: state.add_(1))()
        assert state.tolist() == [1] * size
    assert counter.frame_count == 12


def test_a_failed_compilation_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no C++ compiler here\nand many more lines")

    compile_by(monkeypatch, fail)
    tracker = OnlineTracker(small_lbm().eval(), SIZE, compile=True)
    explained = (
        r"^compile=True failed: OSError: no C\+\+ compiler here; .*install .* compile=False$"
    )
    with pytest.raises(ConfigError, match=explained):
        tracker.step(make_video()[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("graphs", "compiles"), [(True, False), (False, True), (True, True)])
def test_recorded_and_compiled_frames_give_what_plain_ones_give(
    graphs: bool, compiles: bool
) -> None:
    model = stirred(num_layers=2, num_levels=2, visible_threshold=1e-6).cuda()
    video = make_video().cuda()
    plain = OnlineTracker(model, SIZE, slots=2, use_graphs=False)
    fast = OnlineTracker(model, SIZE, slots=2, use_graphs=graphs, compile=compiles)
    assert_same_tracks(fast, plain, video)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_half_precision_stays_near() -> None:
    model, video, points = stirred().cuda(), make_video().cuda(), make_points(6)
    exact, half = (OnlineTracker(model, SIZE, 6, dtype=kind) for kind in (None, torch.float16))
    for tracker in (exact, half):
        tracker.observe(video[0])
        tracker.add(points)
    torch.testing.assert_close(half.query.float(), exact.query, atol=2e-2, rtol=2e-2)
    near = (half.advance().visibility - exact.advance().visibility).abs().max()
    assert near < 0.05
