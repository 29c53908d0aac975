"""Write a teacher that says that no point moves: the control of learning from unlabeled videos.

    python benchmarks/static_teacher.py static.torchscript
    overt train recipe=cotracker3_pseudo_small data.root=videos exp_name=control \\
        "data.unlabeled.teachers=[{source: static.torchscript, tracks_backward: true}]"

A student that gains as much from it as from a trained teacher has not learned from labels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Static(nn.Module):
    """Every point stays where it was queried, and is visible."""

    def forward(self, video: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        tracks = queries[:, None, :, 1:].repeat(1, video.shape[1], 1, 1)
        return tracks, torch.ones_like(tracks[..., 0])


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python benchmarks/static_teacher.py FILE.torchscript", file=sys.stderr)
        return 2
    torch.jit.script(Static()).save(arguments[0])  # type: ignore[no-untyped-call]
    print(f"written to {arguments[0]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
