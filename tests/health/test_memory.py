"""overt/health/memory.py: out of memory ends in words that name what to change."""

from pathlib import Path
from typing import Any

import pytest
import torch
from toy_runs import toy_config

from overt.errors import OutOfMemory
from overt.health.memory import is_out_of_memory

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def run_out(folder: Path, error: Exception, *overrides: str, during: str = "loss") -> str:
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    config = toy_config(folder, *overrides)
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))

    def fail(*arguments: Any) -> Any:
        raise error

    setattr(trainer.recipe, during, fail)
    with pytest.raises(OutOfMemory) as caught:
        trainer.train()
    assert caught.value.__cause__ is error
    return str(caught.value)


def test_the_same_global_batch_in_smaller_pieces_comes_first(tmp_path: Path) -> None:
    said = run_out(tmp_path, FULL, "training.batch_size=4", "training.accumulation_steps=2")
    first, _, *remedies = said.splitlines()
    assert "out of memory at step 0 (computing, rank 0), in " in first
    assert "test_memory.py" in first
    assert first.endswith("CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert remedies[0].startswith(
        "  training.batch_size=2 training.accumulation_steps=4 training.global_batch_size=8: "
    )
    keys = [line.split("=")[0].strip() for line in remedies[1:]]
    assert keys == ["training.activation_checkpointing", "training.precision"]
    settings = remedies[0].partition(":")[0].split()
    assert toy_config(tmp_path, *settings).training.batch_size == 2  # what it says is accepted


def test_what_is_in_force_is_not_proposed(tmp_path: Path) -> None:
    said = run_out(
        tmp_path,
        FULL,
        "training.batch_size=1",
        "training.activation_checkpointing=true",
        "training.precision=bf16",
    )
    assert said.splitlines()[-1] == "  a smaller model, or a device with more memory"


def test_an_evaluation_has_settings_of_its_own(tmp_path: Path) -> None:
    host = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")
    said = run_out(tmp_path, host, "training.evaluate_at_start=true", during="evaluate")
    assert "(evaluating, rank 0)" in said
    assert "smaller settings under `evaluation`" in said


def test_torch_s_own_errors_are_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**62, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(FULL)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(OSError(28, "No space left on device"))


@pytest.mark.gpu
def test_a_full_device_is_measured(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    config = toy_config(tmp_path)
    trainer = Trainer(config, build_recipe(config), init_distributed("cuda"))

    def fail(*arguments: Any) -> Any:
        return torch.empty(2**45, dtype=torch.uint8, device="cuda")

    trainer.recipe.loss = fail
    with pytest.raises(OutOfMemory, match=r"The device has [\d.]+ GiB: [\d.]+ in tensors"):
        trainer.train()
