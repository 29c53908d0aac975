"""The computation of one frame as a stateless function, for ONNX.

Letters: N points (any number), M entries of a memory, C channels, H x W pixels of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from overt.recipes.lbm.cpu_step import CpuStep
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.online import State, advance, empty_state
from overt.tasks import ExportedStep

INPUTS = ("frame", "new_points", "is_new", "query", "collision", "stream", "ignore")
OUTPUTS = (
    "points", "visibility", "rho", "query_after", "collision_after", "stream_after", "ignore_after",
)  # fmt: skip
# The axis of points of each tensor, which has a dynamic length.
POINTS_AXIS = dict.fromkeys((*INPUTS[1:], OUTPUTS[0], *OUTPUTS[3:]), 1)
POINTS_AXIS |= dict.fromkeys(OUTPUTS[1:3], 0)


class FrameStep(nn.Module):
    """Frame and state in, points and state out; a new point is initialized from this frame."""

    def __init__(self, model: LBM, threshold: float) -> None:
        super().__init__()
        self.model = model
        self.threshold = threshold

    def forward(
        self,
        frame: Tensor,  # (1, 3, H, W) float32 in 0..255
        new_points: Tensor,  # (1, N, 2) where new points are, pixels of the model
        is_new: Tensor,  # (1, N) bool
        query: Tensor,  # (1, N, C)
        collision: Tensor,  # (1, N, M, C)
        stream: Tensor,  # (1, N, M, C)
        ignore: Tensor,  # (1, N, M) bool
    ) -> tuple[Tensor, ...]:
        features = self.model.backbone(frame)
        new_points = torch.where(is_new.unsqueeze(-1), new_points, 0.0)  # others may be NaN
        first = torch.zeros_like(is_new, dtype=torch.long)
        read = self.model.read_queries(features, first, new_points)
        query = torch.where(is_new.unsqueeze(-1), read, query)
        state = State(query, collision, stream, ignore | is_new.unsqueeze(-1))
        maps = self.model.transformer.frame_maps(features)
        estimate, after = advance(self.model, state, maps, self.threshold)
        visibility, rho = torch.sigmoid(estimate.visibility[0]), torch.sigmoid(estimate.rho[0])
        return estimate.points_xy, visibility, rho, *after


def make_step(
    model: LBM,
    memory_size: int,
    threshold: float,
    points: int = 3,
    cpu_points: int | None = None,  # for ONNX Runtime on a CPU: how many points to expect
    pictures: Tensor | None = None,  # (F, 3, H, W) 0..255: for that step, with 8 bits
) -> ExportedStep:
    """Return the step of a model on the CPU, with example inputs."""
    height, width = model.eval().input_size
    state = empty_state(model, points, memory_size, torch.zeros(()))
    example = (
        torch.zeros(1, 3, height, width),
        torch.full((1, points, 2), 8.0),
        torch.ones(1, points, dtype=torch.bool),
        *state,
    )
    note = (
        f"frame (1, 3, {height}, {width}) in 0..255; any number of points; a memory of "
        f"{memory_size} frames, visible from {threshold:g} on"
    )
    step: nn.Module = FrameStep(model, threshold)
    if cpu_points is not None:
        step = CpuStep(model, memory_size, threshold, cpu_points, pictures).eval()
        note += f"; for a CPU, fastest with about {cpu_points} points"
        if pictures is not None:
            note += f"; with 8 bits, measured on {len(pictures)} pictures"
    return ExportedStep(step, example, INPUTS, OUTPUTS, POINTS_AXIS, note)


def with_weights_of(trained: LBM, model: LBM) -> LBM:
    """Return `model`, of another input size, with trained weights: its position map is resized."""
    tensors = trained.state_dict()
    for name in trained.transformer.computed_tensors:
        del tensors[f"transformer.{name}"]
    key = "backbone.frame_pos_embedding"
    cells = model.backbone.frame_pos_embedding.shape[2:]
    tensors[key] = F.interpolate(tensors[key], tuple(cells), mode="bilinear")
    model.load_state_dict(tensors, strict=False)
    return model.eval()
