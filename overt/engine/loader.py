"""From samples to the micro-batches of a step: reading, collating, loader processes.

Which samples a step holds is computed in order.py. Each sample is read with its own generator, so
that neither ranks, workers nor accumulation change it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from overt.config.batch import BatchPlan
from overt.data.rng import sample_rngs
from overt.data.source import check_source
from overt.data.workers import Flag, loader_context
from overt.distributed import World, all_reduce_sum
from overt.engine.order import (
    START,
    Position,
    SampleId,
    StepSampler,
    micro_batches,
    normalized,
)
from overt.engine.returned import returned
from overt.errors import DataError
from overt.health.preemption import blocked, ignore_until
from overt.nested import map_tensors
from overt.ops.float64 import sum_dtype
from overt.recipe import Recipe, SampleSource, SampleStream, SplitStream
from overt.run.warning_file import record_in_loader


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass of one rank. `is_padding`: it only keeps the ranks in step."""

    ids: tuple[SampleId, ...]
    batch: Any
    is_padding: bool

    def pin_memory(self) -> MicroBatch:  # called by torch's loader
        return dataclasses.replace(self, batch=map_tensors(self.batch, Tensor.pin_memory))


@dataclass(frozen=True)
class StepBatch:
    """All micro-batches that this rank contributes to one optimizer step."""

    micro_batches: list[MicroBatch]
    samples: int  # of the global batch, over all ranks
    wait_seconds: float

    @property
    def sample_ids(self) -> list[tuple[int, int]]:
        """Return (epoch, index) of this rank's samples."""
        return [
            (sample.epoch, sample.index) for micro in self.micro_batches for sample in micro.ids
        ]


def global_counts(recipe: Recipe, batch: StepBatch, device: torch.device) -> dict[str, Tensor]:
    """Return what the losses of this step are divided by: counts over the global batch.

    `samples` is always there and needs no communication; the recipe's counts are added up over
    micro-batches and ranks in one reduction.
    """
    samples = _number(batch.samples, device)
    totals: dict[str, Tensor] = {}
    for micro in batch.micro_batches:
        for name, count in returned(recipe, "counts", recipe.counts(micro.batch)).items():
            local = count.to(sum_dtype(device)) * (0.0 if micro.is_padding else 1.0)
            totals[name] = totals[name] + local if name in totals else local
    if not totals:
        return {"samples": samples}
    packed = torch.cat([count.flatten() for count in totals.values()])
    if packed.device != device:  # a pinned copy does not wait for the device
        pins = device.type == "cuda"
        packed = (packed.pin_memory() if pins else packed).to(device, non_blocking=pins)
    sums = all_reduce_sum(packed).to(torch.float32)
    parts = torch.split(sums, [count.numel() for count in totals.values()])
    counts = {name: part.view(totals[name].shape) for name, part in zip(totals, parts, strict=True)}
    return {"samples": samples} | counts


@lru_cache(maxsize=8)
def _number(value: int, device: torch.device) -> Tensor:
    """Return a count on the device; nearly all steps have the same."""
    return torch.full((), float(value), device=device)


class _Samples(Dataset[Any]):
    """Reads each sample with its own generator; carries a data error to the training process."""

    def __init__(self, source: SampleSource, seed: int) -> None:
        self.source, self.seed = source, seed
        # Checked once: isinstance with a protocol takes longer than reading a small sample.
        self.stream = source if isinstance(source, SampleStream) else None

    def __getitems__(self, ids: list[SampleId]) -> list[tuple[SampleId, Any]]:
        """Return the samples of a micro-batch, all of one epoch."""
        samples: list[tuple[SampleId, Any]] = []
        generators = sample_rngs(self.seed, ids[0].epoch, [identity.index for identity in ids])
        for identity, rng in zip(ids, generators, strict=True):
            try:
                samples.append((identity, self._read(identity, rng)))
            except DataError as error:
                samples.append((identity, error))
            except Exception as error:  # of the recipe's own code: the traceback names the sample
                error.add_note(f"while reading sample {identity.index} of epoch {identity.epoch}")
                raise
        return samples

    def _read(self, identity: SampleId, rng: np.random.Generator) -> Any:
        if self.stream is not None:
            return self.stream.sample_at(
                position=identity.index, epoch=identity.epoch, seed=self.seed, rng=rng
            )
        return self.source.sample(identity.index, rng)


class _Collate:
    """Makes a micro-batch of samples by the recipe's collate, or returns what failed."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, items: list[tuple[SampleId, Any]]) -> MicroBatch | DataError:
        for identity, sample in items:
            if isinstance(sample, DataError):
                return DataError(
                    f"sample {identity.index} of the training data cannot be read: {sample}"
                )
        ids = tuple(identity for identity, _ in items)
        try:
            batch = self.collate([sample for _, sample in items])
        except DataError as error:  # raised in a loader process, torch would add its traceback
            return error
        return MicroBatch(ids, batch, is_padding=ids[0].is_padding)


def _start_worker(closing: Flag, owner: int, warnings: Path | None, worker: int) -> None:
    if warnings is not None:
        record_in_loader(warnings)
    threading.Thread(target=_leave_with, args=(owner,), daemon=True).start()
    torch.set_num_threads(1)  # many loader processes share the cores
    keep_freed_memory()
    ignore_until(closing.is_set)  # a signal that asks the run to stop is not meant for its loaders


def keep_freed_memory() -> None:
    """Let this process reuse the memory of a large array that is freed.

    The C library would return it, and the system clear every page of it again: a third of the time
    of augmenting a clip. The process keeps its peak size.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc's; others have nothing to set
        trim_threshold, mmap_threshold = -1, -3
        library.mallopt(trim_threshold, 2**30)
        library.mallopt(mmap_threshold, 2**30) or library.mallopt(mmap_threshold, 2**25)  # old ones


def _leave_with(owner: int) -> None:
    """End this process when the one it loads for has ended, for whatever reason.

    Its parent is the fork server, which lives as long as any of its children: both would stay
    forever after a training process was killed.
    """
    if sys.platform == "linux":  # other systems do not report the end of another process
        with suppress(ProcessLookupError):  # it has ended already
            select.select([os.pidfd_open(owner)], [], [])
        os._exit(1)


class StepLoader:
    """Hands out the micro-batches of one optimizer step after the other."""

    def __init__(
        self,
        source: SampleSource,
        collate: Callable[[list[Any]], Any],
        plan: BatchPlan,
        world: World,
        *,
        seed: int,
        drop_last: bool,
        num_workers: int,
        warnings: Path | None = None,
    ) -> None:
        """`warnings`: the file for warnings of the loader processes."""
        check_source(source)
        self.length, self.plan, self.drop_last = len(source), plan, drop_last
        if self.length == 0:
            raise DataError("the training data set is empty; check data.root and its settings")
        self.steps_per_epoch = plan.steps_per_epoch(self.length, drop_last)
        self.position = START
        self._seed, self._world, self._num_workers = seed, world, num_workers
        self._warnings = warnings
        if isinstance(source, SplitStream):
            source.check_split(plan.batch_size, plan.world_size, num_workers)
        self._source, self._dataset = source, _Samples(source, seed)
        self._collate = _Collate(collate)
        self._iterator: Generator[MicroBatch | DataError] | None = None

    def state_dict(self) -> dict[str, int]:
        """Return what must not change over a resume; the position belongs to the trainer."""
        return {
            "samples": self.length,
            "global_batch_size": self.plan.global_batch_size,
            "world_size": self.plan.world_size,
        }

    def seek(self, position: Position) -> None:
        """Continue from this position: nothing is read or replayed to get there."""
        self.position = normalized(position, self.length, self.plan, self.drop_last)
        self.close()

    def next_step(self) -> StepBatch:
        """Return the next step's micro-batches; `position` moves by what they hold."""
        began = time.perf_counter()
        if self._iterator is None:
            self._iterator = self._batches()
        samples = min(self.plan.global_batch_size, self.length - self.position.offset)
        received = []
        for _ in range(micro_batches(samples, self.plan)):
            item = next(self._iterator)
            if isinstance(item, DataError):
                raise item
            received.append(item)
        self.position = normalized(
            Position(self.position.epoch, self.position.offset + samples),
            self.length,
            self.plan,
            self.drop_last,
        )
        return StepBatch(received, samples, time.perf_counter() - began)

    def first_step(self) -> StepBatch:
        """Return one micro-batch of the first step, read at once; `position` stays."""
        sampler = self._sampler(START)
        batch = self._collate(self._dataset.__getitems__(next(iter(sampler))))
        if isinstance(batch, DataError):
            raise batch
        return StepBatch([batch], self.plan.global_batch_size, 0.0)

    def close(self) -> None:
        """End the loader processes."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def _sampler(self, start: Position) -> StepSampler:
        return StepSampler(
            self._source, self._seed, self.plan, self._world.rank, self.drop_last, start
        )

    def _batches(self) -> Generator[MicroBatch | DataError]:
        sampler = self._sampler(self.position)
        pins = self._world.device.type == "cuda"
        if self._num_workers == 0:
            for ids in sampler:
                batch = self._collate(self._dataset.__getitems__(ids))
                yield batch.pin_memory() if pins and isinstance(batch, MicroBatch) else batch
            return
        # Not forked from this process: its communication and logging threads would vanish while
        # they hold locks.
        context = loader_context(__name__)
        resource_tracker.ensure_running()  # by itself: it changes what is blocked
        with blocked(signal.SIGINT):  # which it ignores once it has imported what workers need
            forkserver.ensure_running()
        loader = DataLoader(
            self._dataset,
            batch_sampler=sampler,
            collate_fn=self._collate,
            num_workers=self._num_workers,
            worker_init_fn=partial(_start_worker, context.closing, os.getpid(), self._warnings),
            multiprocessing_context=context,
            pin_memory=pins,
            # The loader draws a seed for its workers: from here, never from the global generator.
            generator=torch.Generator().manual_seed(self._seed),
        )
        yield from context.read(loader)
