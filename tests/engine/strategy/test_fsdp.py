"""overt/engine/strategy/fsdp.py as far as one process goes; the rest is in tests/distributed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_
from toy_runs import toy_config, train_toy

from overt.checkpoint.named_tensors import is_sharded
from overt.distributed import World
from overt.engine.guard import FiniteGuard
from overt.engine.strategy.fsdp import (
    WholeModel,
    call_gathered,
    refuse_contradictions,
    shard_in_place,
)
from overt.errors import ConfigError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.linear.weight
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("table", torch.rand(3), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(self.frozen(self.second(self.linear(values)))) + self.table


def test_the_whole_model_has_memory_only_while_it_is_used() -> None:
    model = Net()
    whole = WholeModel(model)
    values = torch.rand(4, 3)
    for _ in range(2):
        assert all(tensor.is_meta for tensor in whole._module.state_dict().values())
        with torch.no_grad():
            model.linear.weight.add_(1.0)
            model.norm.running_mean.add_(1.0)
        with whole.gathered(model) as gathered:
            assert gathered is not model
            assert [p.requires_grad for p in gathered.parameters()][-2:] == [True, True]
            assert not gathered.frozen.weight.requires_grad
            with torch.inference_mode():
                assert torch.equal(gathered.eval()(values), model.eval()(values))
            gathered(values).sum().backward()  # for the search for NaN
        model.train()
        assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(tensor.is_meta for tensor in model.state_dict().values())


def test_a_method_is_called_as_forward_and_forward_comes_back() -> None:
    model = Net().eval()
    seen: list[str] = []
    model.register_forward_pre_hook(lambda *_: seen.append("hook"))
    values = torch.rand(2, 3)
    assert torch.equal(call_gathered(model, model.norm.forward, values), model.norm(values))
    assert seen == ["hook"]
    assert "forward" not in vars(model)
    model.forward = model.linear.forward  # as activation checkpointing does
    call_gathered(model, model.norm.forward, values)
    assert torch.equal(model(values), model.linear(values))
    with pytest.raises(RuntimeError):
        call_gathered(model, model.norm.forward, values.T)
    assert torch.equal(model(values), model.linear(values))


def test_refusals_name_the_setting_to_change(tmp_path: Path) -> None:
    units = [nn.Linear(1, 1)]
    fitting = toy_config(tmp_path, "training.strategy=fsdp").training
    refuse_contradictions(fitting, units)
    with pytest.raises(ConfigError, match=r"names no blocks; set training.strategy=ddp"):
        refuse_contradictions(fitting, [])
    for setting, remedy in (
        ("training.compile=model", "set training.compile=blocks"),
        ("training.cuda_graph=true", "set training.cuda_graph=false"),
    ):
        with pytest.raises(ConfigError, match=remedy):
            refuse_contradictions(toy_config(tmp_path, setting).training, units)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_clipping_guard_and_fused_update_take_shares_on_cuda(tmp_path: Path) -> None:
    """One process has all the shares; what it does with them is what several do."""
    device = torch.device("cuda", 0)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    try:
        model = Net().to(device)
        shard_in_place(model, [model.frozen], World(0, 1, 0, device))
        assert is_sharded(model)
        trained = [value for value in model.parameters() if value.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.1, fused=True)
        guard = FiniteGuard(device)
        values = torch.rand(4, 3, device=device)
        for factor, moves in ((1.0, True), (float("nan"), False), (2.0, True)):
            before = [value.full_tensor().clone() for value in trained]
            (model(values).square().sum() * factor).backward()
            norm = clip_grad_norm_(trained, 1.0)
            assert isinstance(norm, DTensor)
            applied = guard.protect(optimizer, norm.full_tensor())
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            assert bool(applied) == moves
            pairs = zip(before, trained, strict=True)
            assert all(torch.equal(old, new.full_tensor()) != moves for old, new in pairs)
    finally:
        torch.distributed.destroy_process_group()


def test_weights_that_lie_channels_last_are_shared_too(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3).requires_grad_(False))
        images = torch.rand(2, 3, 8, 8)
        expected = model(images)
        model.to(memory_format=torch.channels_last)
        shard_in_place(model, [model[0]], World(0, 1, 0, torch.device("cpu")))
        assert is_sharded(model)
        torch.testing.assert_close(model(images), expected)
    finally:
        torch.distributed.destroy_process_group()


def test_a_parameter_of_two_units_is_refused() -> None:
    model = Net()
    world = World(0, 2, 0, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"linear.weight and second.weight are one parameter"):
        shard_in_place(model, [model.linear], world)
    assert not is_sharded(model)


def test_one_process_has_nothing_to_share(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fsdp with 1 process.*auto takes either"):
        train_toy(tmp_path, "training.strategy=fsdp")
    assert not is_sharded(Net())
