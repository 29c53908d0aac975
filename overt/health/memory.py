"""Out-of-memory errors explained: how much memory there was, and which settings need less."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import torch

from overt.config.batch import BatchPlan
from overt.config.schema import TrainingSection
from overt.distributed import World
from overt.errors import OutOfMemory

GIB = 2**30
# What torch says when the host has no memory left; it has no exception class.
HOST_WORDS = ("can't allocate memory", "not enough memory", "Cannot allocate memory")


@dataclass(frozen=True)
class Situation:
    """What a rank was doing when memory ran out."""

    step: int
    doing: str
    world: World
    training: TrainingSection
    plan: BatchPlan
    has_blocks: bool


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a device or the host had no memory left."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError | OSError) and any(word in str(error) for word in HOST_WORDS)
    )


def explain(error: BaseException, at: Situation) -> OutOfMemory:
    """Return the error with the settings to change, in the order to try them."""
    first = str(error).partition("\n")[0] or "the host has no memory left"
    device = at.world.device
    lines = [
        f"out of memory at step {at.step} ({at.doing}, rank {at.world.rank}), in "
        f"{raised_in(error)}: {first}"
    ]
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        used = torch.cuda.memory_allocated(device)
        lines.append(
            f"The device has {total / GIB:.1f} GiB: {used / GIB:.1f} in tensors, "
            f"{(held - used) / GIB:.1f} kept for reuse, {(total - free - held) / GIB:.1f} of "
            f"others, {free / GIB:.1f} free."
        )
    lines.append("To use less memory (the first options do not change the result):")
    return OutOfMemory("\n".join([*lines, *(f"  {remedy}" for remedy in remedies(at))]))


def raised_in(error: BaseException) -> str:
    """Return file, line and function, of code that is not torch's."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return (
        f"{user_frames[-1].filename}:{user_frames[-1].lineno} ({user_frames[-1].name})"
        if user_frames
        else "unknown code"
    )


def remedies(at: Situation) -> list[str]:
    """Return settings that need less memory than the current ones."""
    training, plan = at.training, at.plan
    texts = []
    if plan.batch_size > 1:
        smaller = max(size for size in range(1, plan.batch_size) if plan.batch_size % size == 0)
        micro_batch_count = plan.accumulation_steps * plan.batch_size // smaller
        texts.append(
            f"training.batch_size={smaller} training.accumulation_steps={micro_batch_count} "
            f"training.global_batch_size={plan.global_batch_size}: the same global batch in "
            f"smaller micro-batches (now {plan.batch_size} x {plan.accumulation_steps})"
        )
    if not training.activation_checkpointing and at.has_blocks:
        texts.append(
            "training.activation_checkpointing=true: keep the blocks' inputs only and compute "
            "the rest again"
        )
    if training.compile != "none" and training.compile_memory_budget > 0.3:
        half = training.compile_memory_budget / 2
        texts.append(
            f"training.compile_memory_budget={half:g}: compiled code keeps less (now "
            f"{training.compile_memory_budget:g})"
        )
    if training.precision in ("fp32", "tf32"):
        texts.append(f"training.precision=bf16: half-sized activations (now {training.precision})")
    if at.world.world_size > 1 and training.strategy != "fsdp":
        texts.append(
            "training.strategy=fsdp: each rank keeps a shard of weights, gradients and optimizer "
            "state"
        )
    if at.doing == "evaluating":
        texts.append("smaller settings under `evaluation`: overt config --explain evaluation")
    if at.world.device.type == "cpu" and training.num_workers > 0:
        fewer = training.num_workers // 2
        texts.append(
            f"training.num_workers={fewer}: each loader worker holds batches (now "
            f"{training.num_workers})"
        )
    return texts or ["a smaller model, or a device with more memory"]
