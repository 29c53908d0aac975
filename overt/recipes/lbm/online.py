"""LBM on a stream: frame by frame, with points added and removed, and static shapes.

Letters: n slots for points, M entries of a memory, C channels. Positions are (x, y) in pixels of
the frames.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from overt.data.tracking.clips import as_points, refuse_points_outside
from overt.errors import ConfigError, DataError
from overt.recipes.lbm.layer import Memory
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.transformer import Estimate, FrameMaps

MOST_COMPILED = 1024  # variants of a compiled function in one process


class State(NamedTuple):
    """State of the points between two frames."""

    query: Tensor  # (1, n, C) how each looked where it was given
    collision: Tensor  # (1, n, M, C)
    stream: Tensor  # (1, n, M, C)
    ignore: Tensor  # (1, n, M) bool


class OnlineFrame(NamedTuple):
    """Positions of the points in the newest frame, in the order they were added."""

    numbers: tuple[int, ...]  # what `add` called them
    points_xy: Tensor  # (N, 2) pixels of the frame
    visible: Tensor  # (N,) bool
    visibility: Tensor  # (N,) probabilities
    rho: Tensor  # (N,) probabilities of being wrong or invisible


def empty_state(model: LBM, slots: int, memory_size: int, reference: Tensor) -> State:
    """Return an empty state with the dtype and device of `reference`."""
    channels = model.transformer.channels
    entries = reference.new_zeros((1, slots, memory_size, channels))
    ignore = torch.ones((1, slots, memory_size), dtype=torch.bool, device=reference.device)
    return State(reference.new_zeros((1, slots, channels)), entries, entries.clone(), ignore)


def advance(model: LBM, state: State, maps: FrameMaps, threshold: float) -> tuple[Estimate, State]:
    """Return the estimate in a frame and the next state; memories shift by one entry."""
    estimate, collision, stream, _ = model.transformer(state.query, Memory(*state[1:]), maps)
    unsure = torch.sigmoid(estimate.visibility.float()) < threshold

    def append(entries: Tensor, entry: Tensor) -> Tensor:
        return torch.cat([entries[:, :, 1:], entry.unsqueeze(2).to(entries.dtype)], dim=2)

    after = State(
        state.query,
        append(state.collision, collision),
        append(state.stream, stream),
        append(state.ignore, unsure),
    )
    return estimate, after


class OnlineTracker:
    """Track points through frames that arrive one by one.

    `step` takes a frame, `add` adds points in the newest frame, `remove` removes some. To get a
    position in the same frame in which a point is added, call `observe`, `add` and `advance`. On
    CUDA a frame is two recorded graphs, which are recorded again only if the points exceed the
    slots. With `compile`, the first frame also compiles both halves of a frame, and the second half
    is compiled again if the points exceed the slots.
    """

    def __init__(
        self,
        model: LBM,
        frame_size: tuple[int, int],  # (height, width)
        slots: int = 16,
        memory_size: int | None = None,  # left out: as trained
        threshold: float | None = None,  # left out: as trained
        dtype: torch.dtype | None = None,  # left out: the model as it is, in its own type
        use_graphs: bool | None = None,  # left out: on CUDA
        compile: bool = False,  # frames are faster, the first one takes longer
    ) -> None:
        device = next(model.parameters()).device
        self.model = model if dtype is None else fast_copy(model, dtype)
        self.frame_size = frame_size
        self.memory_size = memory_size or model.memory_size
        self.threshold = model.visible_threshold if threshold is None else threshold
        self.use_graphs = device.type == "cuda" if use_graphs is None else use_graphs
        self.compile = compile
        self.frame = torch.zeros((1, 3, *frame_size), dtype=torch.uint8, device=device)
        self.slot_of: dict[int, int] = {}  # of each point, in the order of addition
        self.next_number = 0
        self.observed = False
        self._slots_used = torch.zeros(0, dtype=torch.long, device=device)
        self._observe = self._make_fast(self._encode, ())
        self.state = self._empty(max(slots, 1))
        self._advance = self._make_fast(self._follow, self.state[1:])

    @property
    def slots(self) -> int:
        """Return how many points fit without changing shapes."""
        return self.state.query.shape[1]

    @property
    def query(self) -> Tensor:
        """Return the appearance of the points where they were added, (N, C)."""
        return self.state.query[0, self._slots_used]

    @property
    def memory(self) -> Memory:
        """Return the memories of the points, (1, N, M, C), oldest entry first."""
        return Memory(*(part[:, self._slots_used] for part in self.state[1:]))

    def step(self, frame: Tensor) -> OnlineFrame:
        """Return the positions of the points in this frame, (3, H, W) uint8."""
        self.observe(frame)
        return self.advance()

    @torch.no_grad()
    def observe(self, frame: Tensor) -> None:
        """Set the newest frame, (3, H, W) uint8, without tracking the points yet."""
        if frame.shape != self.frame.shape[1:] or frame.dtype != torch.uint8:
            raise DataError(
                f"a frame of shape {tuple(frame.shape)} and type {frame.dtype}; this tracker "
                f"follows points in uint8 frames of shape {tuple(self.frame.shape[1:])}"
            )
        self.frame[0].copy_(frame, non_blocking=True)
        self.features, self.maps = self._observe()
        self.observed = True

    @torch.no_grad()
    def add(self, points_xy: Tensor) -> list[int]:
        """Add points (N, 2) of the newest frame; return a number for each."""
        points_xy = as_points(points_xy)
        if not self.observed:
            raise DataError("points were added before the first frame; show a frame first")
        refuse_points_outside(points_xy, self.frame_size)
        used = set(self.slot_of.values())
        needed_slots = len(used) + len(points_xy)
        if needed_slots > self.slots:
            self._grow(max(needed_slots, 2 * self.slots))
        free = [slot for slot in range(self.slots) if slot not in used][: len(points_xy)]
        numbers = list(range(self.next_number, self.next_number + len(points_xy)))
        self.next_number += len(points_xy)
        self.slot_of.update(zip(numbers, free, strict=True))
        self._note_slots()
        device = self.frame.device
        positions_xy = self.model.to_model_pixels(points_xy.to(device), self.frame_size)
        read = self.model.read_queries(
            self.features, torch.zeros(len(free), dtype=torch.long, device=device), positions_xy
        )
        slots = torch.tensor(free, dtype=torch.long, device=device)
        self.state.query[0].index_copy_(0, slots, read.to(self.state.query.dtype))
        self.state.ignore[0].index_fill_(0, slots, True)
        return numbers

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove points by the numbers returned by `add`; their slots become free."""
        for number in numbers:
            if number not in self.slot_of:
                tracked_ids = ", ".join(map(str, self.slot_of)) or "none"
                raise DataError(f"no point {number} to remove; there are: {tracked_ids}")
            del self.slot_of[number]
        self._note_slots()

    @torch.no_grad()
    def advance(self) -> OnlineFrame:
        """Track the points into the newest frame."""
        if not self.observed:
            raise DataError("no frame to follow points into; show a frame first")
        rows = self._advance()[self._slots_used]  # (N, 4)
        points_xy, visibility, rho = rows[:, :2], rows[:, 2], rows[:, 3]
        return OnlineFrame(
            tuple(self.slot_of), points_xy, visibility > self.threshold, visibility, rho
        )

    def _encode(self) -> tuple[Tensor, FrameMaps]:
        features = self.model.backbone(self.frame)
        return features, self.model.transformer.frame_maps(features)

    def _follow(self) -> Tensor:
        """Update the state; return x, y, visibility and rho of all slots, (n, 4)."""
        estimate, after = advance(self.model, self.state, self.maps, self.threshold)
        for old, new in zip(self.state[1:], after[1:], strict=True):
            old.copy_(new)
        points_xy = self.model.to_video_pixels(estimate.points_xy[0], self.frame_size)
        logits = torch.stack([estimate.visibility[0], estimate.rho[0]], dim=-1)
        return torch.cat([points_xy, torch.sigmoid(logits.float())], dim=-1)

    def _make_fast(self, function: Callable[[], Any], changes: Sequence[Tensor]) -> _Recorded:
        if self.compile:
            function = compiled(function)
        return _Recorded(function, changes, self.use_graphs)

    def _empty(self, count: int) -> State:
        reference = self.model.backbone.proj1.weight.detach()
        return empty_state(self.model, count, self.memory_size, reference)

    def _grow(self, count: int) -> None:
        """Make room for `count` points; existing points keep their slots."""
        state = self._empty(count)
        for new, old in zip(state, self.state, strict=True):
            new[:, : old.shape[1]] = old
        self.state = state
        self._advance = self._make_fast(self._follow, state[1:])

    def _note_slots(self) -> None:
        slots = list(self.slot_of.values())
        self._slots_used = torch.tensor(slots, dtype=torch.long, device=self.frame.device)


class _Recorded:
    """A function of fixed tensors: recorded as a CUDA graph on its first call, then replayed."""

    def __init__(
        self,
        function: Callable[[], Any],
        changes: Sequence[Tensor],  # what it writes to: recording must leave them as they were
        use_graph: bool,
    ) -> None:
        self.function, self.changes, self.use_graph = function, changes, use_graph
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Any = None

    def __call__(self) -> Any:
        if not self.use_graph:
            return self.function()
        if self.graph is None:
            self._record()
        assert self.graph is not None
        self.graph.replay()
        return self.result

    def _record(self) -> None:
        before = [tensor.clone() for tensor in self.changes]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose their kernels and allocate what they keep
                self.function()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self.function()
        for tensor, value in zip(self.changes, before, strict=True):
            tensor.copy_(value)


def compiled(function: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function of fixed tensors that is compiled on its first call."""
    # Imported late: it takes as long as torch.
    from torch._dynamo import config
    from torch._dynamo.exc import TorchDynamoException

    fast: Callable[[], Any] = torch.compile(function, dynamic=False, fullgraph=True)

    def call() -> Any:
        # All trackers of a process share the compiler's cache: an entry for each frame size and
        # each number of slots. Beyond its usual limit of eight entries, compilation would fail.
        with config.patch(recompile_limit=MOST_COMPILED, accumulated_recompile_limit=MOST_COMPILED):
            try:
                return fast()
            except TorchDynamoException as error:
                cause = getattr(error, "inner_exception", error)
                reason = str(cause).strip().partition("\n")[0]
                raise ConfigError(
                    f"compile=True failed: {type(cause).__name__}: {reason}; torch.compile needs "
                    "a C++ compiler, and Triton on CUDA: install what is missing, or use "
                    "compile=False"
                ) from error

    return call


def fast_copy(model: LBM, dtype: torch.dtype) -> LBM:
    """Return a copy for inference in another dtype, with the encoder's norms folded."""
    fast = copy.deepcopy(model).eval().requires_grad_(False)
    fast.backbone.fold_norms()
    fast.backbone.change_type(dtype)
    fast.transformer.to(dtype)
    return fast
