"""TAP-Vid scores of LBM's exported step, run by ONNX Runtime on a CPU.

    python benchmarks/onnx_scores.py step.onnx recipe=lbm_photographs evaluation.dataset_root=DIR

Memory size and threshold are those of the recipe, as at the export. The other scores to compare
with: `overt evaluate` of the checkpoint, and another form of the step.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from command import guarded, positive
from torch import Tensor
from torch.nn import functional as F

from overt.config import build_recipe, load
from overt.data.tracking.clips import TrackSample
from overt.distributed import World
from overt.errors import ConfigError
from overt.evaluation import summarize
from overt.metrics.scored_clips import score_clips
from overt.recipes.lbm.data import evaluation_clips
from overt.recipes.lbm.recipe import LBMRecipe


def follow(
    session: Any, memory_size: int, threshold: float, clip: TrackSample
) -> tuple[Tensor, Tensor]:
    """Return positions (T, N, 2) in pixels of the clip and visibility (T, N)."""
    inputs = {each.name: each.shape for each in session.get_inputs()}
    size = tuple(inputs["frame"][2:])
    count, channels = len(clip.queries), inputs["query"][2]
    entries = np.zeros((1, count, memory_size, channels), np.float32)
    state = [entries[:, :, 0], entries, entries, np.ones((1, count, memory_size), bool)]
    scale = torch.tensor([size[1] / clip.video.shape[3], size[0] / clip.video.shape[2]])
    begin = clip.queries[:, 0].floor()
    points = (clip.queries[None, :, 1:] * scale).float().numpy()
    tracks, visible = [], []
    for time, pixels in enumerate(torch.split(clip.video, 1)):
        frame = pixels.float()
        if frame.shape[2:] != size:
            frame = F.interpolate(frame, size, mode="bilinear", align_corners=False)
        arrays = (frame.numpy(), points, (begin == time).numpy()[None], *state)
        found, visibility, _, *state = session.run(None, dict(zip(inputs, arrays, strict=True)))
        started = (begin <= time).unsqueeze(1)
        tracks.append(torch.where(started, torch.from_numpy(found[0]) / scale, clip.queries[:, 1:]))
        visible.append(started[:, 0] & (torch.from_numpy(visibility) > threshold))
    return torch.stack(tracks), torch.stack(visible)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="what `overt ckpt export --to onnx` wrote")
    parser.add_argument("settings", nargs="+", metavar="KEY=VALUE", help="recipe= and its settings")
    parser.add_argument("--threads", type=positive, default=2)
    options = parser.parse_args(arguments)
    recipe = build_recipe(load(options.settings))
    if not isinstance(recipe, LBMRecipe):
        raise ConfigError(
            f"{options.settings[0]} has another step; use recipe=lbm_photographs or lbm"
        )
    if not options.file.is_file():
        raise ConfigError(f"no such file: {options.file}; overt ckpt export --to onnx writes one")
    import onnxruntime

    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = options.threads
    session = onnxruntime.InferenceSession(
        options.file, session_options, providers=["CPUExecutionProvider"]
    )
    limits = recipe.settings.evaluation.memory_size, recipe.settings.evaluation.visible_threshold
    rows = score_clips(
        evaluation_clips(recipe.settings),
        lambda clip: follow(session, *limits, clip),
        World(0, 1, 0, torch.device("cpu")),
    )
    scores = summarize(rows)
    names = ("average_jaccard", "average_pts_within_thresh", "occlusion_accuracy")
    print(", ".join(f"{name} {100 * scores[name]:.1f}" for name in names))
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
