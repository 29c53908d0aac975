"""Fixtures of all tests: a seed, and small groups of real processes."""

import gc
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, settings

HERE = Path(__file__).parent
HAS_GPU = torch.cuda.is_available()
# Modules that several tests share are imported by their own name.
SHARED = (
    ".", "benchmarks", "cluster", "data/tracking", "faults", "files", "ops", "recipes", "reference",
    "run", "safety", "tools/report",
)  # fmt: skip
sys.path[:0] = [str(HERE / folder) for folder in SHARED]

import composed_once  # noqa: E402, F401  (found by the path above)

os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples in every run; and a machine that is busy with other things is not a defect.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("OVERT_LONG_TESTS") == "1":
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason="a long test: make test-long"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each worker import a part of the tests first: all would rewrite the assertions of the
    same file at the same time, where bytecode that one has written serves the others."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count == 1 or [HERE.parent / word for word in session.config.args] != [HERE]:
        return
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    for file in sorted(HERE.rglob("test_*.py"))[number::count]:
        # Whatever a file raises or skips, it does so again when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(file.relative_to(HERE.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Take what is imported by now out of garbage collection, which would look at it for a
    sixteenth of the suite's time."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def _enter(
    function: Callable[..., Any],
    rank: int,
    size: int,
    port: int,
    server: str,
    answer: Path,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        OMP_NUM_THREADS="1",
    )
    gc.freeze()
    _share_server(server)
    import torch

    torch.set_num_threads(1)
    from overt.distributed import shutdown

    result = function(*arguments, **named)
    answer.write_bytes(pickle.dumps(result))
    shutdown()


def _share_server(address: str) -> None:
    """Let loader workers of this process be forked from the server that has forked itself.

    A server of its own would import torch anew: seconds for each process of each test.
    """
    own: Any = forkserver._forkserver  # type: ignore[attr-defined]
    own._forkserver_address = address
    own.ensure_running = forkserver.ensure_running = lambda: None


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """No test depends on which tests ran before it."""
    # Without a GPU, torch.manual_seed formats the stack for each kind of device: milliseconds.
    seed = torch.manual_seed if HAS_GPU else torch.default_generator.manual_seed
    seed(0)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    # A run leaves this as it was set; kernels would give way to their definitions.
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    # torch.export that fails leaves the fast convolutions of CPUs switched off.
    torch.backends.mkldnn.enabled = True


@pytest.fixture(scope="session", autouse=True)
def _context() -> Any:
    """A process has one server to fork from. Started here, before any test makes the engine start
    its own, it has imported for all children what takes them longest."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "torch",
            "torch.distributed",
            "torch._dynamo",
            "torch.nn.parallel",
            "overt.engine.trainer",
            "overt.checkpoint.shards",
            "tests.conftest",
        ]
    )
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    with patch.dict(os.environ, PYTHONPATH=path):  # where it finds the last of these
        forkserver.ensure_running()
    return context


@pytest.fixture
def tiny_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny tracker stands for the one that ships: a second instead of ten."""
    from overt.tracker import SHIPPED_AS, SMALL

    monkeypatch.setitem(SHIPPED_AS, SMALL, "cotracker3_tiny")
    monkeypatch.setattr("overt.commands.track.SHIPPED", "cotracker3_tiny")


@pytest.fixture
def run_processes(_context: Any, tmp_path: Path) -> Callable[..., list[Any]]:
    """`run_processes(function, size, *arguments)`: what `function` returns on each process.

    With `dies=True` the processes are expected to end otherwise; their exit codes are returned.
    """
    from torch.distributed import TCPStore

    def run(
        function: Callable[..., Any],
        size: int,
        *arguments: Any,
        dies: bool = False,
        **named: Any,
    ) -> list[Any]:
        # As torchrun does: the parent holds the store, so that its port is free for certain.
        store = TCPStore("127.0.0.1", 0, size + 1, is_master=True, wait_for_workers=False)
        server = forkserver._forkserver._forkserver_address  # type: ignore[attr-defined]
        answers = [tmp_path / f"answer_{os.urandom(4).hex()}_{rank}" for rank in range(size)]
        children = [
            _context.Process(
                target=_enter,
                args=(function, rank, size, store.port, server, answers[rank], arguments, named),
            )
            for rank in range(size)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join(120)
        codes = [child.exitcode for child in children]
        for child in children:
            child.kill()
        if dies:
            return codes
        assert codes == [0] * size, f"exit codes {codes}"
        return [pickle.loads(answer.read_bytes()) for answer in answers]

    return run
