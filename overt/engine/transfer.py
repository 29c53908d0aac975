"""From the loader to the device: a batch is copied, and prepared there by the recipe's `on_device`.

A step leaves the host long before the device has finished it. Where the recipe allows it, the next
batch is prepared in that time, on a stream beside the step: a host that waits in `on_device`
for what it computes then waits for that alone, not for the step.
"""

from __future__ import annotations

from typing import Any

import torch

from overt.nested import map_tensors, tensors_in
from overt.recipe import Recipe


class Transfer:
    """Returns batches on the device as the loss takes them; nobody waits for the copy."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.beside: torch.cuda.Stream | None = None
        if device.type == "cuda" and recipe.prepares_beside_step:
            # Before the step: the host may wait for it.
            self.beside = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self.last: torch.cuda.Event | None = None  # where the batch before was handed over

    def __call__(self, batch: Any) -> Any:
        if self.beside is None:
            return self.prepared(batch)
        step = torch.cuda.current_stream(self.device)
        # What came before the pass that is running now is finished, that pass is not.
        self.beside.wait_event(self.last or step.record_event())
        with torch.cuda.stream(self.beside):
            batch = self.prepared(batch)
        step.wait_stream(self.beside)
        for tensor in tensors_in(batch):
            tensor.record_stream(step)  # its memory is not used again while the step reads it
        self.last = step.record_event()
        return batch

    def prepared(self, batch: Any) -> Any:
        if self.device.type != "cpu":
            early = self.device.type == "cuda"  # elsewhere memory is not pinned
            batch = map_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=early))
        return self.recipe.on_device(batch)
