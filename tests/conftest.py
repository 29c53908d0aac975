"""Shared by all tests: the toy recipe, runs of it, and small groups of real processes."""

import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TOY = HERE / "toy_recipe"
sys.path.insert(0, str(HERE))

os.environ.setdefault("OMP_NUM_THREADS", "1")


def toy_config(folder: Path, *overrides: str) -> Any:
    """The checked configuration of a toy run below `folder`."""
    from overt.config import load

    return load(["recipe=toy", f"output_dir={folder}", *overrides], packages=[str(TOY)])


def train_toy(folder: Path, *overrides: str, die_at: int | None = None) -> None:
    """Train the toy recipe in this process (or, among several, as one of them)."""
    if die_at is not None:
        os.environ["TOY_DIE_AT_STEP"] = str(die_at)
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    config = toy_config(folder, *overrides)
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    trainer.train()
    del trainer  # before the process group goes


def read_rows(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses_by_step(run: Path) -> dict[int, float]:
    return {row["step"]: row["train/loss"] for row in read_rows(run) if "train/loss" in row}


def weights(run: Path, step: int, part: str = "model") -> dict[str, Any]:
    """The tensors of one checkpoint of a run."""
    from safetensors.torch import load_file

    return load_file(run / "checkpoints" / f"step_{step:08d}" / f"{part}.safetensors")


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Equal to the last bit, where NaN equals NaN."""
    import torch

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1).view(torch.uint8)

    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(bits(one[key]), bits(other[key]))
        for key in one
    )


def _enter(
    function: Callable[..., Any],
    rank: int,
    size: int,
    port: int,
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
    import torch

    torch.set_num_threads(1)
    from overt.distributed import shutdown

    result = function(*arguments, **named)
    answer.write_bytes(pickle.dumps(result))
    shutdown()


@pytest.fixture(scope="session")
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    # Importing torch once for all children is what makes such a test cheap.
    context.set_forkserver_preload(
        ["torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "overt.engine.trainer"]
    )
    return context


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
        answers = [tmp_path / f"answer_{os.urandom(4).hex()}_{rank}" for rank in range(size)]
        children = [
            _context.Process(
                target=_enter,
                args=(function, rank, size, store.port, answers[rank], arguments, named),
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
