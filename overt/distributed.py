"""The process group: joining it, its collectives, and what to say when a rank is lost."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

# Early: its functions hold the group of their import as a default, which keeps it alive. Its
# threads would run while Python exits, which aborts the process.
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store
from torch.distributed.rendezvous import rendezvous

from overt.errors import ConfigError, LaunchError, OvertError
from overt.launch_environment import Launch, read_launch

_OPENED = itertools.count()  # stores so far
# Of the first process group. A later group of the same processes meets below a separate prefix:
# under the same keys it would find the addresses of the group before.
_FIRST_STORE: list[Store] = []
_JOINED = itertools.count(1)  # process groups so far
# What Gloo says, in plain RuntimeErrors, when a process or the link to it is gone.
LOST_WORDS = (
    "Timed out waiting",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Application timeout caused pair closure",
)


START_MINUTES = 10.0  # from the first rank to join to the last one


class World(NamedTuple):
    """Describe this process among all processes. Unpacks as `rank, world_size, local_rank, device`.

    Examples:
        >>> world = overt.init_distributed("cpu")
        >>> world.world_size, world.is_main
        (1, True)
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def init_distributed(device: str = "auto", timeout_minutes: float = 30.0) -> World:
    """Join the process group that the launcher describes: NCCL on CUDA, Gloo on CPU.

    A single process forms no group; the functions below then do nothing or answer for one rank.

    Examples:
        >>> rank, world_size, local_rank, device = overt.init_distributed("cpu")
        >>> device
        device(type='cpu')
    """
    launch = read_launch(os.environ)
    chosen = _choose_device(device, launch)
    if launch.world_size > 1 and not dist.is_initialized():
        os.environ.setdefault("MASTER_ADDR", launch.master_addr)
        os.environ.setdefault("MASTER_PORT", str(launch.master_port))
        store = _meet(launch, min(timeout_minutes, START_MINUTES))
        with explained_loss(World(launch.rank, launch.world_size, launch.local_rank, chosen)):
            dist.init_process_group(
                # Both on CUDA: small Python objects and waits for files travel over Gloo.
                "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo",
                rank=launch.rank,
                world_size=launch.world_size,
                timeout=timedelta(minutes=timeout_minutes),
                device_id=chosen if chosen.type == "cuda" else None,
                store=store,
            )
    return World(launch.rank, launch.world_size, launch.local_rank, chosen)


def _meet(launch: Launch, minutes: float) -> Store:
    """Return a store of the group once every rank has joined, or name those that have not.

    The group itself would wait for a rank that died at its start as long as for any collective.
    """
    limit = timedelta(minutes=minutes)
    keys = {f"here/{rank}": rank for rank in range(launch.world_size)}
    store: Store | None = None
    try:
        if not _FIRST_STORE:
            meeting = rendezvous("env://", launch.rank, launch.world_size, timeout=limit)
            first, _, _ = next(iter(meeting))
            _FIRST_STORE.append(first)
        store = PrefixStore(f"overt/group/{next(_JOINED)}", *_FIRST_STORE)
        store.set(f"here/{launch.rank}", "1")
        store.wait(list(keys), limit)
    except (dist.DistError, RuntimeError) as error:
        missing = (
            [] if store is None else [rank for key, rank in keys.items() if not _has(store, key)]
        )
        named = f"rank(s) {', '.join(map(str, missing))}" if missing else "the main rank"
        raise LaunchError(
            f"rank {launch.rank} of {launch.world_size} waited {minutes:g} minutes at the start: "
            f"{named} did not join. Check the output of these processes; check that all hosts "
            f"reach MASTER_ADDR={os.environ['MASTER_ADDR']}, port {os.environ['MASTER_PORT']}."
        ) from error
    return store


def _has(store: Store, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except (dist.DistError, RuntimeError):
        return False


def _choose_device(device: str, launch: Launch) -> torch.device:
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps"):  # a call from Python, which no schema checks
        raise ConfigError(f"device={device}; use auto, cpu, cuda, cuda:N or mps")
    if number and launch.world_size > 1:
        raise LaunchError(
            f"training.device={device} with {launch.world_size} processes: each needs a device of "
            f"its own. Set training.device={kind}, and CUDA_VISIBLE_DEVICES to choose among them."
        )
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if device == "mps":
        return _choose_mps(launch)
    if not torch.cuda.is_available():
        raise LaunchError(
            f"training.device={device} but torch sees no CUDA device. Check `nvidia-smi` and that "
            "this torch was built for CUDA, or set training.device=cpu."
        )
    visible = torch.cuda.device_count()
    # Slurm may show each task its own single device: it is then number 0 whatever the local rank.
    index = 0 if visible == 1 and launch.source == "Slurm" else launch.local_rank
    if number and int(number) >= visible:
        raise LaunchError(
            f"training.device={device}, but torch sees {visible} CUDA device(s); use cuda:0 to "
            f"cuda:{visible - 1}"
        )
    index = int(number) if number else index
    if index >= visible:
        raise LaunchError(
            f"{launch.source} started {launch.local_world_size} processes on this host but torch "
            f"sees {visible} CUDA device(s) (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). Start {visible} processes per "
            "host (torchrun --nproc_per_node, or --ntasks-per-node), or ask for more devices."
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _choose_mps(launch: Launch) -> torch.device:
    """Return the GPU of a Mac; never chosen by `auto`, since no test here runs on one."""
    if launch.world_size > 1:
        raise LaunchError(
            f"training.device=mps with {launch.world_size} processes: a Mac has one such device. "
            "Start one process, or set training.device=cpu."
        )
    if not torch.backends.mps.is_available():
        raise LaunchError(
            "training.device=mps but torch sees no Apple GPU. It needs macOS on Apple silicon and "
            "a torch built for it; set training.device=cpu."
        )
    return torch.device("mps")


def shutdown() -> None:
    """Leave the process group. Drop DDP modules first: Gloo can deadlock on a late release."""
    if dist.is_initialized():
        dist.destroy_process_group()


def get_rank() -> int:
    """Return the rank of this process; 0 without a process group.

    Examples:
        >>> overt.get_rank()
        0
    """
    return dist.get_rank() if dist.is_initialized() else 0


def get_world_size() -> int:
    """Return the number of processes; 1 without a process group.

    Examples:
        >>> overt.get_world_size()
        1
    """
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main_process() -> bool:
    """Return whether this is rank 0, the process that writes.

    Examples:
        >>> overt.is_main_process()
        True
    """
    return get_rank() == 0


def barrier() -> None:
    """Wait for all ranks. Never used around file writes: no rank waits for a disk.

    Examples:
        >>> overt.barrier()  # returns when every rank has called it
    """
    if dist.is_initialized():
        dist.barrier()


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Add up `tensor` over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def is_lost_peer(error: BaseException) -> bool:
    """Return whether a collective ended because another process, or the link to it, was gone."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in LOST_WORDS)


@contextmanager
def explained_loss(
    world: World, known_reason: Callable[[], OvertError | None] = lambda: None
) -> Iterator[None]:
    """Explain, while a run starts, that another process of it was lost.

    `known_reason`: why the others left, where this process knows it.
    """
    try:
        yield
    except RuntimeError as error:  # of torch.distributed too
        if world.world_size == 1 or not is_lost_peer(error):
            raise
        reason = str(error).partition("\n")[0]
        raise known_reason() or LaunchError(
            f"rank {world.rank} of {world.world_size}: another process of this run, or the link to "
            f"it, was lost while the run was starting ({reason}). Look at what the others printed, "
            "then start all of them again."
        ) from error


def open_store(name: str) -> Store | None:
    """Return a key-value store that all ranks share, outside of collectives; None for one process.

    A separate connection, so that a thread may wait in it. Every process opens the same ones in
    the same order: each is empty at first.
    """
    if not dist.is_initialized():
        return None
    store: Store = _get_default_store().clone()  # type: ignore[attr-defined]
    return PrefixStore(f"overt/{next(_OPENED)}/{name}", store)


def gather_objects(item: Any) -> list[Any]:
    """The objects of all processes, in rank order, on every process (small ones: over Gloo)."""
    if not dist.is_initialized():
        return [item]
    items: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(items, item)
    return items


def broadcast_object(item: Any) -> Any:
    """Return the main process's object, on every process."""
    if not dist.is_initialized():
        return item
    items = [item]
    dist.broadcast_object_list(items, src=0)
    return items[0]


def main_first(make: Callable[[], object]) -> None:
    """Call `make` on the main rank while the others wait; what it raises is raised on every rank.

    Every rank has to call this. No rank waits forever for a main rank that failed.
    """
    if not dist.is_initialized():
        make()
        return
    failure: Exception | None = None
    if is_main_process():
        try:
            make()
        except Exception as error:  # told to the others first
            failure = error
    reported = None
    if failure is not None:
        reason = f"the main rank failed with {type(failure).__name__}: {failure}"
        reported = failure if isinstance(failure, OvertError) else RuntimeError(reason)
    reported = broadcast_object(reported)
    if failure is not None:
        raise failure
    if reported is not None:
        raise reported


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed Python, NumPy and torch for this rank.

    Samples do not use these: each has its own generator. They serve initial weights (seed with
    rank 0 on all ranks) and dropout (seed with the actual rank).

    Examples:
        >>> overt.seed_everything(0, overt.get_rank())
    """
    words = np.random.SeedSequence([seed, rank]).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))  # every CUDA device too
