"""This host before anything is trained on it: versions, GPUs, NCCL, memory of loaders, ports."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

import torch

from overt import __version__
from overt.distributed import World
from overt.engine.precision import slow_precision
from overt.launch_environment import Launch
from overt.tools.doctor.cluster import nearest_existing
from overt.tools.doctor.report import Check, fail, ok, warn

PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "safetensors", "pillow")
TORCH_FROM, TORCH_BEFORE = (2, 11), (2, 14)
ENOUGH_FREE = 0.9  # fraction of a GPU's memory that should be free before training
SHARED_MEMORY_BYTES = 1 << 30  # below this, loader processes of images soon die with SIGBUS
OPEN_FILES = 4096
DEFAULT_PORT = 29500  # torchrun's


def versions() -> Check:
    """Python and the packages that a run's numbers depend on."""
    installed = {"Python": platform.python_version(), "overt": __version__}
    missing = []
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            missing.append(package)
    text = ", ".join(f"{name} {version}" for name, version in installed.items())
    if missing:
        return fail("versions", f"{text}; missing: {', '.join(missing)}", "pip install overt")
    series = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if not TORCH_FROM <= series < TORCH_BEFORE:
        first, last = (".".join(map(str, version)) for version in (TORCH_FROM, TORCH_BEFORE))
        remedy = f"overt is tested with torch from {first} up to, not including, {last}"
        return warn("versions", text, remedy)
    return ok("versions", text)


def bytecode() -> Check:
    """Check that starts find torch parsed: its compiler alone takes seconds."""
    cached = Path(cache_from_source(torch.__file__))
    if cached.is_file():
        return ok("bytecode", "that of torch is cached")
    folder = nearest_existing(cached.parent)
    if not sys.dont_write_bytecode and os.access(folder, os.W_OK):
        return ok("bytecode", f"that of torch will be cached in {folder}")
    reason = "PYTHONDONTWRITEBYTECODE" if sys.dont_write_bytecode else f"no access to {folder}"
    remedy = (
        "every start parses torch again, 5 to 10 s if it compiles: unset PYTHONDONTWRITEBYTECODE, "
        "and set PYTHONPYCACHEPREFIX to a folder that can be written"
    )
    return warn(
        "bytecode", f"that of torch is not cached, and Python writes none ({reason})", remedy
    )


def gpus(device: str, world: World | None, precision: str = "fp32") -> Check:
    """Check that the CUDA devices compute correctly and are free."""
    name = "GPUs"
    if device == "cpu":
        slow = slow_precision(precision, torch.device("cpu"))
        text = "not used: training.device=cpu"
        return ok(name, text) if slow is None else warn(name, text, slow)
    if not torch.cuda.is_available():
        built = torch.version.cuda
        problem = "torch sees no CUDA device"
        if built is None:
            problem += f", since torch {torch.__version__} was built without CUDA"
            remedy = "install a torch for CUDA (pytorch.org says which), or train on the CPU"
        else:
            remedy = f"look at `nvidia-smi`: is the driver loaded, and new enough for CUDA {built}?"
        remedy += "; CUDA_VISIBLE_DEVICES=" + os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        return (fail if device == "cuda" else warn)(name, problem, remedy)
    count = torch.cuda.device_count()
    device_indices = range(count) if world is None else [world.device.index or 0]
    names = [torch.cuda.get_device_name(index) for index in device_indices]
    driver = driver_version()
    text = f"{count} visible; {', '.join(dict.fromkeys(names))}; driver {driver or 'unknown'}"
    for index in device_indices:
        ones = torch.ones(64, 64, device=torch.device("cuda", index))
        if float((ones @ ones).sum()) != 64**3:
            return fail(name, f"GPU {index} computes wrongly", "take it out of service")
        free, total = torch.cuda.mem_get_info(index)
        if free < ENOUGH_FREE * total:
            used = (total - free) / 2**30
            problem = f"{text}; {used:.1f} GiB of GPU {index} are in use already"
            return warn(name, problem, "see `nvidia-smi` for the process, and end it or wait")
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        remedy = "use training.precision=fp16"
        return warn(name, f"{text}; no bf16 in hardware: slow", remedy)
    if len(set(names)) > 1:
        return warn(name, text, "one kind of GPU per run: the slowest sets the pace of all")
    return ok(name, text)


def driver_version() -> str | None:
    """Return the NVIDIA driver's version, if it is installed."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def nccl(environment: Mapping[str, str]) -> Check:
    """NCCL's version, and switches in the environment that slow it down."""
    if not torch.cuda.is_available():
        return ok("NCCL", "not used without CUDA; processes communicate through Gloo")
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    brakes = [
        f"{name}={environment[name]}"
        for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE")
        if environment.get(name, "0") != "0"
    ]
    if brakes:
        remedy = (
            "unset them, unless you know why they are set: they slow down the exchange of gradients"
        )
        return warn("NCCL", f"{version}, with {', '.join(brakes)}", remedy)
    return ok("NCCL", version)


def loader_memory(num_workers: int | None = None, shared: Path = Path("/dev/shm")) -> Check:
    """Check shared memory and the limit of open files for loader processes."""
    name = "loader memory"
    if not shared.is_dir():
        return ok(name, f"no {shared} on this system")
    if num_workers == 0:
        return ok(name, "not used: training.num_workers=0")
    free = shutil.disk_usage(shared).free
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    text = f"{free / 2**30:.1f} GiB free in {shared}, {files} open files allowed"
    if free < SHARED_MEMORY_BYTES:
        remedy = (
            "loader processes hand batches over there, and die with SIGBUS when it is full: start "
            "the container with more (docker --shm-size=16g), or set training.num_workers=0"
        )
        return warn(name, text, remedy)
    if 0 <= files < OPEN_FILES and files < resource.getrlimit(resource.RLIMIT_NOFILE)[1]:
        return warn(name, text, f"raise the limit: ulimit -n {OPEN_FILES}")
    return ok(name, text)


def processors(processes: int, num_workers: int) -> Check:
    """Check that the loader processes of this host have cores to run on."""
    cores = len(os.sched_getaffinity(0))
    needed = processes * (1 + num_workers)
    text = f"{cores} cores for {processes} process(es) with {num_workers} loader(s) each"
    if needed > 2 * cores:
        fitting = max(cores // processes - 1, 0)
        remedy = f"training.num_workers={fitting}; under Slurm ask for more with --cpus-per-task"
        return warn("cores", text, remedy)
    return ok("cores", text)


def rendezvous(launch: Launch) -> Check:
    """Check that other processes could connect: the host name resolves, the port is free."""
    name, host = "rendezvous", socket.gethostname()
    port = launch.master_port or DEFAULT_PORT
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        remedy = f"add {host} to /etc/hosts or DNS: other hosts find this one by its name"
        return warn(name, f"the host name {host} does not resolve ({error})", remedy)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            remedy = (
                "another run uses it: torchrun --standalone picks a free one, else --master_port"
            )
            return warn(name, f"port {port} cannot be opened ({error.strerror})", remedy)
    return ok(name, f"{host} is {address}, port {port} is free")
