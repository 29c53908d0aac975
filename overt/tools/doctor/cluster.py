"""All ranks together: do they connect, agree on the time, and see the same files?

Every process must call these functions, in the same order.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

import torch

from overt.distributed import (
    World,
    all_reduce_sum,
    barrier,
    broadcast_object,
    gather_objects,
)
from overt.launch_environment import Launch
from overt.tools.doctor.report import Check, fail, ok, warn

PROBE_BYTES = 16 << 20  # a bucket of gradients
SKEW_SECONDS = 1.0
SLOW_SYNC_SECONDS = 1.0
SLOW_VISIBLE_SECONDS = 2.0
INVISIBLE_SECONDS = 30.0


def meeting(world: World, launch: Launch, seconds: float) -> Check:
    """Measure the time to connect, and the all-reduce rate of a bucket of gradients."""
    bucket = torch.ones(PROBE_BYTES // 4, device=world.device)
    all_reduce_sum(bucket)  # connections are made by the first one
    began = time.perf_counter()
    total = float(all_reduce_sum(torch.ones_like(bucket))[0])
    elapsed = time.perf_counter() - began
    hosts = list(dict.fromkeys(gather_objects(socket.gethostname())))
    rate = PROBE_BYTES / elapsed / 1e9
    text = (
        f"{world.world_size} processes on {len(hosts)} host(s) ({', '.join(hosts[:4])}) met at "
        f"{launch.master_addr}:{launch.master_port} in {seconds:.1f} s; 16 MiB added up at "
        f"{rate:.2g} GB/s"
    )
    if total != world.world_size:
        remedy = "the network or a GPU corrupts data: run this again on fewer hosts to find it"
        return fail("rendezvous", f"{text}; the sum is wrong: {total}", remedy)
    return ok("rendezvous", text)


def clocks(world: World) -> Check:
    """Measure the skew of the hosts' clocks: the best of a few slow readings."""
    if world.world_size == 1:
        return ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %z"))
    spreads = []
    for _ in range(5):
        barrier()
        times = gather_objects(time.time())
        spreads.append(max(times) - min(times))
    text = f"at most {min(spreads):.3f} s between any two processes"
    if min(spreads) > SKEW_SECONDS:
        remedy = "synchronize the hosts with a time server (chronyd, ntpd): locks rely on clocks"
        return warn("clock", text, remedy)
    return ok("clock", text)


def same_versions(text: str) -> Check | None:
    """Refuse processes that run different software, which ends in hangs or silent differences."""
    versions = gather_objects((socket.gethostname(), text))
    if len({version for _, version in versions}) == 1:
        return None
    rows = "; ".join(f"{host}: {version}" for host, version in dict(versions).items())
    return fail(
        "versions", rows, "use one environment on all hosts, on a shared disk or as an image"
    )


def shared_folder(folder: Path, world: World, patience: float = INVISIBLE_SECONDS) -> Check:
    """Check what checkpoints need of a file system: write, fsync, rename, visible on all hosts."""
    name = "files"
    existing = nearest_existing(folder)
    probe = existing / f".overt-doctor-{broadcast_object(secrets.token_hex(4))}"
    problem, synced = "", 0.0
    if world.is_main:
        try:
            synced = _write_and_rename(probe)
        except OSError as error:
            problem = f"{existing} cannot be written to: {error.strerror}"
    problem, synced = broadcast_object((problem, synced))
    try:
        if problem:
            return fail(name, problem, "set output_dir to a folder that you may write to")
        waits = gather_objects(_wait_until_visible(probe / "renamed", patience))
        barrier()  # no rank removes a file that another still looks for
    finally:
        if world.is_main:
            shutil.rmtree(probe, ignore_errors=True)
    blind = [str(rank) for rank, wait in enumerate(waits) if wait is None]
    if blind:
        text = f"{existing}: written by rank 0, not seen by rank {', '.join(blind)}"
        return fail(name, text, "set output_dir to a folder on a file system that all hosts share")
    slowest = max(wait for wait in waits if wait is not None)
    text = f"{existing}: rename and fsync work, in {synced:.3f} s"
    if world.world_size > 1:
        text += f"; seen by all within {slowest:.1f} s"
    if slowest > SLOW_VISIBLE_SECONDS:
        return warn(name, text, "other hosts see files late: mount NFS with a small actimeo")
    if synced > SLOW_SYNC_SECONDS:
        return warn(name, text, "a slow disk: keep checkpoint.background=true, save less often")
    return ok(name, text)


def nearest_existing(folder: Path) -> Path:
    """Return the folder or the nearest existing one above: the doctor creates none."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def _write_and_rename(probe: Path) -> float:
    """As a checkpoint is saved: written, brought to the disk, renamed; the seconds for that."""
    began = time.perf_counter()
    (probe / "hidden").mkdir(parents=True)
    with (probe / "hidden" / "file").open("wb") as file:
        file.write(os.urandom(1 << 16))
        file.flush()
        os.fsync(file.fileno())
    os.rename(probe / "hidden", probe / "renamed")
    descriptor = os.open(probe, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return time.perf_counter() - began


def _wait_until_visible(path: Path, patience: float) -> float | None:
    began = time.monotonic()
    while time.monotonic() - began < patience:
        with suppress(OSError):
            if any(path.iterdir()):
                return time.monotonic() - began
        time.sleep(0.05)
    return None
