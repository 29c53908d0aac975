"""overt/ops/onednn.py: who takes the way without oneDNN, and what is left behind."""

import pytest
import torch

from overt.ops import onednn


def test_only_arm_processors_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1)
    monkeypatch.setattr(onednn, "IS_ARM", False)
    assert not onednn.is_slow(x)
    monkeypatch.setattr(onednn, "IS_ARM", True)
    assert onednn.is_slow(x)
    assert not onednn.is_slow(x.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not onednn.is_slow(x)


def test_it_is_switched_on_again_after_an_error() -> None:
    def fail() -> None:
        with onednn.without_onednn():
            assert not torch.backends.mkldnn.enabled
            raise ValueError("inside")

    before = torch.backends.mkldnn.enabled
    with pytest.raises(ValueError, match="inside"):
        fail()
    assert torch.backends.mkldnn.enabled == before
