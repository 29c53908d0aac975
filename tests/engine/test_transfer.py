"""overt/engine/transfer.py: batches come prepared, and a step under way holds nobody up."""

import pytest
import torch
from toy_recipe.recipe import Toy

from overt.engine.transfer import RecordedPreparation, Transfer
from overt.recipe import Recipe

CPU = torch.device("cpu")


def recipe_of(beside: bool) -> Recipe:
    def on_device(self: Recipe, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        chosen = batch["numbers"].nonzero().squeeze(1)  # the host waits for the device here
        return {"sum": batch["numbers"][chosen].sum()}

    members = {"on_device": on_device, "prepares_beside_step": beside}
    return type("Prepares", (Toy,), members)(None)


@pytest.mark.parametrize("beside", [False, True])
def test_a_batch_is_prepared_on_its_device(beside: bool) -> None:
    transfer = Transfer(recipe_of(beside), CPU)
    assert transfer({"numbers": torch.arange(4.0)})["sum"] == 6
    assert transfer.beside is None  # there are no streams


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("beside", [False, True])
def test_preparing_waits_for_the_step_only_where_it_has_to(beside: bool) -> None:
    device = torch.device("cuda")
    transfer = Transfer(recipe_of(beside), device)
    numbers = torch.arange(4.0).pin_memory()
    transfer({"numbers": numbers})  # to load the kernels
    torch.cuda.synchronize()
    transfer({"numbers": numbers})
    torch.cuda._sleep(2_000_000_000)  # the step: a second or so
    running = torch.cuda.current_stream().record_event()
    prepared = transfer({"numbers": numbers})
    assert running.query() != beside
    assert prepared["sum"].item() == 6  # reading waits for both
    assert running.query()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_of_a_batch_stays_its_own_until_the_step_has_read_it() -> None:
    device = torch.device("cuda")
    transfer = Transfer(recipe_of(beside=True), device)
    sums = []
    for value in range(1, 30):
        batch = transfer({"numbers": torch.full((100_000,), float(value)).pin_memory()})
        torch.cuda._sleep(20_000_000)  # the host is ahead when the batch's memory is freed
        sums.append(batch["sum"] * 1.0)
        del batch
    assert torch.stack(sums).tolist() == [100_000.0 * value for value in range(1, 30)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recorded_preparation_gives_what_preparing_gives() -> None:
    def on_device(self: Recipe, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**batch, "running": batch["numbers"].sort().values.cumsum(0)}

    members = {"on_device": on_device, "prepares_beside_step": True, "prepares_replayably": True}
    recipe = type("Prepares", (Toy,), members)(None)
    device = torch.device("cuda")
    recorded, plain = Transfer(recipe, device, records=True), Transfer(recipe, device)
    generator = torch.Generator().manual_seed(0)
    kept = []
    for size in (100, 70, 100, 100, 70, 100, 100, 100, 70, 70, 70):
        numbers = torch.rand(size, generator=generator).pin_memory()
        kept.append([prepare({"numbers": numbers}) for prepare in (recorded, plain)])
    assert isinstance(recorded.on_device, RecordedPreparation)
    assert len(recorded.on_device.recordings) == 2
    assert not isinstance(plain.on_device, RecordedPreparation)
    for found, expected in kept:  # later replays have left earlier batches as they were
        assert torch.equal(found["numbers"], expected["numbers"])
        assert torch.equal(found["running"], expected["running"])
