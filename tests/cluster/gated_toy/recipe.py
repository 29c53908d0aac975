"""The toy recipe, which waits at step OVERT_GATE_STEP until the gate is open.

The gate is the folder OVERT_GATE: each process that waits leaves a file `waiting_RANK` there, and
goes on once there is a file `open`.
"""

import os
import time
from pathlib import Path

from torch import Tensor, nn
from toy_recipe.recipe import Batch, Toy

from overt.distributed import get_rank
from overt.recipe import StepOutput


class Gated(Toy):
    def loss(
        self, model: nn.Module, batch: Batch, counts: dict[str, Tensor], step: int
    ) -> StepOutput:
        if step == int(os.environ.get("OVERT_GATE_STEP", "-1")):
            wait_at_gate(Path(os.environ["OVERT_GATE"]))
        return super().loss(model, batch, counts, step)


def wait_at_gate(gate: Path) -> None:
    (gate / f"waiting_{get_rank()}").touch()
    while not (gate / "open").exists():
        time.sleep(0.02)
