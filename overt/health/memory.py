"""Out of memory, in words: how much there was, and which settings need less."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import torch

from overt.errors import OutOfMemory

if TYPE_CHECKING:
    from overt.engine.trainer import Trainer

GIB = 2**30
# What torch says when the host has no memory left; there is no class of its own for it.
HOST_WORDS = ("can't allocate memory", "not enough memory", "Cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the host had no memory left."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError | OSError) and any(word in str(error) for word in HOST_WORDS)
    )


def explain(trainer: Trainer, error: BaseException) -> OutOfMemory:
    """The same error with what to change, in the order to try it."""
    first = str(error).partition("\n")[0] or "the host has no memory left"
    lines = [
        f"out of memory at step {trainer.state.step} ({trainer.heartbeat.doing}, rank "
        f"{trainer.world.rank}), in {place(error)}: {first}"
    ]
    if trainer.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(trainer.device)
        held = torch.cuda.memory_reserved(trainer.device)
        used = torch.cuda.memory_allocated(trainer.device)
        lines.append(
            f"The device has {total / GIB:.1f} GiB: {used / GIB:.1f} in tensors, "
            f"{(held - used) / GIB:.1f} kept for reuse, {(total - free - held) / GIB:.1f} of "
            f"others, {free / GIB:.1f} free."
        )
    lines.append("What needs less, the first ones without changing the result:")
    return OutOfMemory("\n".join([*lines, *(f"  {one}" for one in remedies(trainer))]))


def place(error: BaseException) -> str:
    """Where it happened, in code that is not torch's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f"{own[-1].filename}:{own[-1].lineno} ({own[-1].name})" if own else "unknown code"


def remedies(trainer: Trainer) -> list[str]:
    """Settings that need less memory than the ones in force."""
    training, plan = trainer.config.training, trainer.plan
    found = []
    if plan.batch_size > 1:
        smaller = max(size for size in range(1, plan.batch_size) if plan.batch_size % size == 0)
        more = plan.accumulation_steps * plan.batch_size // smaller
        found.append(
            f"training.batch_size={smaller} training.accumulation_steps={more} "
            f"training.global_batch_size={plan.global_batch_size}: the same global batch in "
            f"smaller pieces (now {plan.batch_size} x {plan.accumulation_steps})"
        )
    if not training.activation_checkpointing and hasattr(trainer.recipe, "blocks"):
        found.append(
            "training.activation_checkpointing=true: keep the blocks' inputs only and compute "
            "the rest again"
        )
    if training.compile != "none" and training.compile_memory_budget > 0.3:
        half = training.compile_memory_budget / 2
        found.append(
            f"training.compile_memory_budget={half:g}: compiled code keeps less (now "
            f"{training.compile_memory_budget:g})"
        )
    if training.precision in ("fp32", "tf32"):
        found.append(f"training.precision=bf16: half-sized activations (now {training.precision})")
    if trainer.world.world_size > 1 and training.strategy != "fsdp":
        found.append(
            "training.strategy=fsdp: each process keeps a share of weights, gradients and "
            "optimizer state"
        )
    if trainer.heartbeat.doing == "evaluating":
        found.append("smaller settings under `evaluation`: overt config --explain evaluation")
    if trainer.device.type == "cpu" and training.num_workers > 0:
        fewer = training.num_workers // 2
        found.append(
            f"training.num_workers={fewer}: each loader process holds batches (now "
            f"{training.num_workers})"
        )
    return found or ["a smaller model, or a device with more memory"]
