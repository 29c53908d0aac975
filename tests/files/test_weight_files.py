"""overt/files/weight_files.py: what engine and recipes share in reading files of others."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from overt.errors import CheckpointError
from overt.files.weight_files import (
    CONTAINERS,
    WRAPPERS,
    clean_key,
    clean_keys,
    find_weights,
    is_safetensors,
    read_safetensors,
    read_torch_file,
)

PLAIN = st.lists(st.sampled_from(["a", "submodule", "0", "module_x", "weight"]), min_size=1)


@given(parts=PLAIN, data=st.data())
def test_wrappers_go_wherever_they_stand_and_nothing_else_does(
    parts: list[str], data: st.DataObject
) -> None:
    wrapped = list(parts)
    for name in data.draw(st.lists(st.sampled_from(sorted(WRAPPERS)), max_size=4)):
        wrapped.insert(data.draw(st.integers(0, len(wrapped) - 1)), name)
    assert clean_key(".".join(wrapped)) == ".".join(parts)


def test_two_keys_never_become_one() -> None:
    with pytest.raises(CheckpointError, match=r"^file: the keys a and module\.a both become a "):
        clean_keys(["a", "module.a"], "file")


def test_containers_are_searched_in_the_order_given() -> None:
    one, other = {"a": torch.ones(1)}, {"b": torch.ones(1)}
    content = {"model": one, "state_dict": {"model": other}, "epoch": 3}
    tensors, rest = find_weights(content, Path("x"))
    assert tensors.keys() == {"a"}
    assert rest["epoch"] == 3
    assert find_weights(content, Path("x"), ("state_dict", "model"))[0].keys() == {"b"}
    with pytest.raises(
        CheckpointError, match=rf"nor under {', '.join(CONTAINERS)}; it has teacher"
    ):
        find_weights({"teacher": one}, Path("x"))
    with pytest.raises(CheckpointError, match="holds a list"):
        find_weights([1], Path("x"))


def test_several_state_dicts_side_by_side_become_one() -> None:
    optimizer = {"state": {0: {"exp_avg": torch.ones(1)}}, "param_groups": [{"lr": 0.1}]}
    content = {
        "encoder": {"module.a": torch.zeros(1)},
        "target_encoder": {"module.a": torch.ones(1)},
        "opt": optimizer,
        "empty": {},
        "epoch": 3,
    }
    tensors, rest = find_weights(content, Path("x"))
    assert tensors == {
        "encoder.module.a": torch.zeros(1),
        "target_encoder.module.a": torch.ones(1),
    }
    assert rest.keys() == {"opt", "empty", "epoch"}
    # Weights at the top level are the model, whatever stands beside them.
    assert find_weights(content | {"a": torch.ones(1)}, Path("x"))[0].keys() == {"a"}


def test_formats_are_told_apart_by_content(tmp_path: Path) -> None:
    weights = {"a": torch.arange(3.0)}
    save_file(weights, tmp_path / "one", metadata={"overt.tied": '{"b": "a"}'})
    torch.save(weights, tmp_path / "two")
    assert is_safetensors(tmp_path / "one")
    assert not is_safetensors(tmp_path / "two")
    tensors, metadata = read_safetensors(tmp_path / "one")
    assert torch.equal(tensors["b"], weights["a"])  # tied names come back
    assert "overt.tied" in metadata
    assert torch.equal(read_torch_file(tmp_path / "two")["a"], weights["a"])
    with pytest.raises(CheckpointError, match="Nothing of it was run"):
        read_torch_file(tmp_path / "one")
