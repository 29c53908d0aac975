"""A device without float64: what image encoders compute there, as far as a CPU can show it."""

import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_recipes import SMALL_COTRACKER3, SMALL_HJEPA, first_batch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from overt.engine.loader import MicroBatch, StepBatch, global_counts
from overt.engine.optimizer import _can_fuse
from overt.errors import ConfigError
from overt.nested import tensors_in
from overt.ops import float64

# Statistics of features and norms, through `exact`; pictures; states of generators.
ON_THE_HOST = {"collapse.py", "observe.py", "features.py", "random_state.py"}


def is_float64(values: Any) -> bool:
    return any(
        isinstance(leaf, Tensor) and leaf.dtype is torch.float64 for leaf in tree_leaves(values)
    )


class Float64Ops(TorchDispatchMode):
    """Collects the lines of overt where float64 begins, those on the host aside."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        begins = function is torch.ops.aten.lift_fresh.default or not is_float64((args, kwargs))
        if is_float64(result) and begins:  # the former: torch.tensor(..., dtype=torch.float64)
            frames = [frame for frame in traceback.extract_stack() if "/overt/" in frame.filename]
            if not ON_THE_HOST & {Path(frame.filename).name for frame in frames}:
                self.lines.add(f"{frames[-1].filename}:{frames[-1].lineno}")
        return result


def test_a_step_and_an_evaluation_need_no_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float64, "LACKING", {"cpu"})
    views = ("data.augmentation.device=true", "data.augmentation.color_distortion=0.5")
    words = ("training.num_steps=2", "logging.norms_depth=1", *views)
    trainer = SMALL_HJEPA.trainer(tmp_path, *words)
    assert not is_float64(list(tensors_in(first_batch(trainer.recipe))))
    with Float64Ops() as ops:
        trainer.train()
    assert not ops.lines


def test_sums_are_float64_where_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The meta device stands for one without float64; nothing is pinned for it.
    monkeypatch.setattr(float64, "LACKING", {"meta"})
    for device, dtype in (("cpu", torch.float64), ("meta", torch.float32)):
        assert float64.sum_dtype(torch.device(device)) is dtype
    assert float64.exact(torch.ones(2)).dtype is torch.float64
    recipe: Any = SimpleNamespace(counts=lambda batch: {"tokens": batch})
    batch = StepBatch([MicroBatch((), torch.tensor(3.0), False)], 4, 0.0)
    counts = global_counts(recipe, batch, torch.device("meta"))
    assert counts["tokens"].device.type == "meta"
    assert float(global_counts(recipe, batch, torch.device("cpu"))["tokens"]) == 3


def test_what_an_apple_gpu_cannot_do_is_refused(tmp_path: Path) -> None:
    SMALL_HJEPA.recipe(tmp_path, "training.device=mps")
    with pytest.raises(ConfigError, match=r"does not say that it works without float64"):
        SMALL_COTRACKER3.recipe(tmp_path, "training.device=mps")
    with pytest.raises(ConfigError, match=r"fp16 with training.device=mps.*use bf16 or fp32"):
        SMALL_HJEPA.config(tmp_path, "training.device=mps", "training.precision=fp16")
    parameter = SimpleNamespace(device=torch.device("mps"))
    part: Any = SimpleNamespace(groups=[{"params": [("weight", parameter)]}])
    assert not _can_fuse(torch.optim.AdamW, part)
