"""Values that JSON holds, and those it does not."""

import pytest
import torch

from overt.checkpoint.manager import CheckpointManager
from overt.errors import CheckpointError
from tests.checkpoint.small_net import Net, names


def test_what_json_cannot_hold_is_named_and_nothing_is_written(tmp_path):
    manager = CheckpointManager(tmp_path)
    for bad, where in (
        ({"a": {"b": [1, object()]}}, r"state\.state\.a\.b\[1\] is a object"),
        ({"a": torch.zeros(2)}, r"state\.state\.a is a Tensor"),
        ({"a": {(1, 2): 3}}, r"state\.state\.a is a dict"),
    ):
        with pytest.raises(CheckpointError, match=where):
            manager.save_checkpoint(0, Net(), state=bad)

    class WithObject(Net):
        def get_extra_state(self):
            return {"a": 1}

    with pytest.raises(CheckpointError, match=r"_extra_state of WithObject is a dict"):
        manager.save_checkpoint(0, WithObject())
    assert names(tmp_path) == []
