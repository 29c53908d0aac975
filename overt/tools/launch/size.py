"""How many processes a launch starts, and whether the configuration agrees: refused before it runs.

Pure numbers: nothing here looks at a device, since it is another machine that will have them.
"""

from __future__ import annotations

from dataclasses import dataclass

from overt.config import Config
from overt.config.batch import plan_batches
from overt.errors import ConfigError


@dataclass(frozen=True)
class Size:
    """A number of nodes, and of GPUs and training processes on each."""

    nodes: int
    gpus: int  # per node; 0: the CPU trains
    processes: int  # per node

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes

    def __str__(self) -> str:
        devices = f"{self.gpus} GPU(s)" if self.gpus else f"{self.processes} process(es) on the CPU"
        return f"{self.nodes} node(s) x {devices}"


def make_size(nodes: int, gpus: int, processes: int | None = None) -> Size:
    """Return one process per GPU; on the CPU as many as asked for."""
    if nodes < 1 or gpus < 0 or (processes is not None and processes < 1):
        raise ConfigError(
            f"--nodes {nodes} --gpus {gpus}"
            + ("" if processes is None else f" --processes {processes}")
            + ": use 1 or more nodes and processes, and 0 or more GPUs per node"
        )
    if gpus and processes not in (None, gpus):
        problem = "share a GPU" if (processes or 0) > gpus else "leave GPUs idle"
        raise ConfigError(
            f"--processes {processes} on {gpus} GPU(s) per node would {problem}; drop "
            f"--processes for one process per GPU, or ask for --gpus {processes}"
        )
    return Size(nodes, gpus, processes or gpus or 1)


def check_size(config: Config, size: Size) -> None:
    """Refuse a size that the run's own settings contradict."""
    training = config.training
    if size.gpus == 0 and training.device != "cpu":
        raise ConfigError(
            f"--gpus 0, but training.device={training.device} needs GPUs; use --gpus N, one "
            "process each, or train on the CPU with training.device=cpu --processes N"
        )
    if size.gpus and training.device == "cpu":
        raise ConfigError(
            f"training.device=cpu would leave {size.nodes} x {size.gpus} GPU(s) idle; set "
            f"training.device=cuda, or ask for --gpus 0 --processes {size.gpus}"
        )
    if training.strategy == "single" and size.world_size > 1:
        raise ConfigError(
            f"training.strategy=single takes one process, and {size} starts {size.world_size}; "
            "set training.strategy=auto, or ask for --nodes 1 --gpus 1"
        )
    if training.strategy in ("ddp", "fsdp") and size.world_size == 1:
        raise ConfigError(
            f"training.strategy={training.strategy} takes several processes, and one would start; "
            "set training.strategy=auto, or ask for more GPUs"
        )
    plan_batches(training, size.world_size)  # refuses a batch that does not divide
