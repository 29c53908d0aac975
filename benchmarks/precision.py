"""How far the losses of a recipe in 16 bits are from those in float32, over its first steps.

    python benchmarks/precision.py hjepa_tiny --device cpu --seeds 0 1 2 3    anywhere
    python benchmarks/precision.py lbm --precision fp16 training.global_batch_size=1

Every step of both runs gets the same batch, and both start from the same weights. Without
compilation and CUDA graphs, so that nothing but the precision differs. `--exact-gelu` is the
control of the tanh form that encoders without gradient have in bf16.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from typing import Any
from unittest.mock import patch

import torch
from command import guarded, need_device, positive
from step import AS_PUBLISHED, build
from torch import Tensor
from torch.nn import functional as F

from overt.ops.gelu import gelu
from overt.recipe import StepOutput


def losses(name: str, words: list[str], device: str, seed: int, steps: int) -> Tensor:
    """Return the total loss of each step, (steps,)."""
    eager = [f"seed={seed}", "training.compile=none"]
    if device != "cpu":
        eager.append("training.cuda_graph=false")
    with tempfile.TemporaryDirectory() as folder:
        trainer, _ = build(name, [*eager, *words], folder, device)
        recorded: list[Tensor] = []
        loss = trainer.recipe.loss

        def recording(*arguments: Any) -> StepOutput:
            output = loss(*arguments)
            recorded.append(output.total.detach().float())
            return output

        with patch.object(trainer.recipe, "loss", recording):
            for _ in range(steps):
                trainer.train_step()
        trainer.close()
    return torch.stack(recorded).view(steps, -1).sum(1).cpu()


def exact_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Replaces the layer and GELU in one kernel."""
    return gelu(F.linear(x, weight, bias))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--precision", choices=("bf16", "fp16", "tf32"), default="bf16")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=positive, default=50)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--exact-gelu", action="store_true", help="in encoders without gradient")
    options = parser.parse_intermixed_args()
    need_device(options.device)
    words = [*AS_PUBLISHED.get(options.recipe, ()), *options.overrides]
    means = []
    for seed in options.seeds:
        run = (options.device, seed, options.steps)
        exact = losses(options.recipe, [*words, "training.precision=fp32"], *run)
        rounded = [*words, f"training.precision={options.precision}"]
        if options.exact_gelu:
            with patch("overt.nn.attention.linear_gelu", exact_gelu):
                found = losses(options.recipe, rounded, *run)
        else:
            found = losses(options.recipe, rounded, *run)
        error = (found - exact).abs() / exact.abs()
        means.append(error.mean().item())
        print(
            f"seed {seed}: float32 {exact[0]:.4f} to {exact[-1]:.4f}, {options.precision} "
            f"{found[0]:.4f} to {found[-1]:.4f}; relative difference of a step "
            f"{error.mean():.2e} on average, {error.max():.2e} at most",
            flush=True,
        )
    print(f"{options.recipe}: {statistics.mean(means):.2e} on average over {len(means)} seeds")
    return 0


if __name__ == "__main__":
    raise SystemExit(guarded(main))
