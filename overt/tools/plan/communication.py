"""Communication cost of gradients and shards: bytes, seconds, and the part a step waits for.

An analytical model of ring collectives within a node and between nodes; docs/scaling.md has the
formulas. Nothing here imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PARTS = ("within nodes", "between nodes", "latency")
COMPUTING = "computing"
HIDDEN = 0.95  # from this efficiency on more network would gain next to nothing
BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's default


@dataclass(frozen=True)
class Network:
    """Links of a cluster; each GPU has its own network port, as in machines made for training."""

    gpus_per_node: int = 8
    nvlink_gb: float = 450.0  # GB/s in one direction: NVLink 4 (H100, H200)
    network_gbit: float = 400.0  # Gb/s of each GPU's port
    reached: float = 0.8  # fraction of those rates that collectives reach
    latency_us: float = 20.0  # of one collective within a node
    hop_us: float = 5.0  # besides, for each doubling of the number of nodes


@dataclass(frozen=True)
class Traffic:
    """Of one step and one device."""

    bytes_sent: int
    seconds: float  # all collectives one after another
    exposed: float  # what the device waits for them
    efficiency: float  # seconds of the step alone, over those with communication
    parts: dict[str, float]  # seconds by where they are spent: see `PARTS`
    dominant: str  # what holds the step up: computing, or the largest part where it is exposed


def nodes_of(devices: int, network: Network) -> tuple[int, int]:
    """Return devices of a node, and nodes."""
    local = min(devices, network.gpus_per_node)
    return local, math.ceil(devices / local)


def one_way_seconds(size: float, devices: int, network: Network) -> tuple[float, float]:
    """A reduce-scatter or an all-gather of `size` bytes: within nodes, and shares between them."""
    local, nodes = nodes_of(devices, network)
    within = (local - 1) / local * size / (network.nvlink_gb * 1e9 * network.reached)
    port = network.network_gbit / 8 * 1e9 * network.reached
    between = (nodes - 1) / nodes * size / local / port
    return within, between


def latency_seconds(devices: int, network: Network) -> float:
    """Return the latency of one collective."""
    if devices == 1:
        return 0.0
    _, nodes = nodes_of(devices, network)
    return (network.latency_us + network.hop_us * math.log2(nodes)) * 1e-6


def ddp_traffic(
    gradient_bytes: int,
    step_seconds: float,
    devices: int,
    network: Network,
    is_recorded: bool = False,
    passes: int = 1,
) -> Traffic:
    """Gradients are added up bucket by bucket while the backward pass runs.

    Two thirds of a pass are backward. The last bucket is full only when that has ended. Of several
    passes, one for each micro-batch, only the last sends. A pass that is recorded as a CUDA graph
    has all its gradients in one message after it.
    """
    buckets = 1 if is_recorded else max(1, math.ceil(gradient_bytes / BUCKET_BYTES))
    latency = latency_seconds(devices, network)
    within, between = one_way_seconds(gradient_bytes, devices, network)
    parts = (2 * within, 2 * between, buckets * latency)
    total = sum(parts)
    last = total / buckets
    exposed = last + max(0.0, total - last - step_seconds / passes * 2 / 3)
    sent = int(2 * (devices - 1) / devices * gradient_bytes)
    return _traffic(sent, parts, exposed, step_seconds)


def fsdp_traffic(
    parameter_bytes: int,
    gradient_bytes: int,
    units: int,
    step_seconds: float,
    devices: int,
    network: Network,
    passes: int = 1,
    reductions: int = 1,
) -> Traffic:
    """Units are gathered for the forward and again for the backward pass; gradients go back.

    While one unit computes, the next one is gathered: the first all-gather and the last
    reduce-scatter are not hidden. Each of several passes gathers; `reductions` of them reduce.
    """
    units = max(units, 1)
    latency = latency_seconds(devices, network)
    gathered = one_way_seconds(parameter_bytes, devices, network)
    scattered = one_way_seconds(gradient_bytes, devices, network)
    gather, scatter = sum(gathered) + units * latency, sum(scattered) + units * latency
    forward, backward = step_seconds / passes / 3, step_seconds / passes * 2 / 3

    def exposed_by(sent_back: float) -> float:
        edges = (gather + sent_back) / units
        waits = max(0.0, gather - forward) + max(0.0, gather + sent_back - backward)
        return min(edges + waits, 2 * gather + sent_back)

    exposed = reductions * exposed_by(scatter) + (passes - reductions) * exposed_by(0.0)
    within, between = (
        2 * passes * out + reductions * back for out, back in zip(gathered, scattered, strict=True)
    )
    parts = (within, between, (2 * passes + reductions) * units * latency)
    sent = int(
        (devices - 1) / devices * (2 * passes * parameter_bytes + reductions * gradient_bytes)
    )
    return _traffic(sent, parts, exposed, step_seconds)


def _traffic(
    sent: int, parts: tuple[float, float, float], exposed: float, step_seconds: float
) -> Traffic:
    total = sum(parts)
    by_name = dict(zip(PARTS, parts, strict=True))
    efficiency = step_seconds / (step_seconds + exposed)
    # What is hidden behind the backward pass costs nothing, however much it is.
    dominant = COMPUTING if efficiency >= HIDDEN else max(by_name, key=by_name.__getitem__)
    return Traffic(sent, total, exposed, efficiency, by_name, dominant)
