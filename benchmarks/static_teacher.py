"""Write a teacher that says that no point moves: the control of learning from unlabeled videos.

    python benchmarks/static_teacher.py static.torchscript
    overt train recipe=cotracker3_pseudo_small data.root=videos exp_name=control \\
        "data.unlabeled.teachers=[{source: static.torchscript, tracks_backward: true}]"

A student that gains as much from it as from a trained teacher has not learned from labels.
"""

from __future__ import annotations

import argparse

import torch
from command import writable_file
from torch import Tensor, nn


class Static(nn.Module):
    """Every point stays where it was queried, and is visible."""

    def forward(self, video: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        tracks = queries[:, None, :, 1:].repeat(1, video.shape[1], 1, 1)
        return tracks, torch.ones_like(tracks[..., 0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=writable_file, metavar="FILE.torchscript")
    file = parser.parse_args().file
    torch.jit.script(Static()).save(str(file))  # type: ignore[no-untyped-call]
    print(f"written to {file}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
