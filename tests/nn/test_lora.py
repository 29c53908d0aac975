"""Low-rank adaptation: starts as the base, trains two matrices, keeps all names."""

import pytest
import torch
from torch import nn

from overt.errors import ConfigError
from overt.nn.lora import add_lora


def test_it_starts_as_the_base_and_trains_adapters_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    inputs, names = torch.rand(5, 3), set(model.state_dict())
    before = model(inputs)
    assert add_lora(model, "^2", rank=2, scale=0.5) == ["2"]
    assert torch.equal(model(inputs), before)
    assert {name for name, value in model.named_parameters() if value.requires_grad} == {
        "2.lora_a",
        "2.lora_b",
    }
    assert names < set(model.state_dict())
    nn.init.ones_(model[2].lora_b)
    hidden = model[:2](inputs)
    change = 0.5 * hidden @ (model[2].lora_b @ model[2].lora_a).T
    torch.testing.assert_close(model(inputs), before + change)


@pytest.mark.parametrize(("match", "rank"), [("attention", 2), ("0", 0)])
def test_what_adapts_nothing_is_refused(match: str, rank: int) -> None:
    with pytest.raises(ConfigError, match="LoRA of rank"):
        add_lora(nn.Sequential(nn.Linear(3, 4)), match, rank)
