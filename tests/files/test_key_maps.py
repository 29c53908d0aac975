"""Rules that rename tensors: all apply in turn, none may be idle."""

from typing import Any

import pytest
import torch

from overt.errors import CheckpointError, ConfigError
from overt.files.key_maps import rename_keys

TENSORS = {
    name: torch.tensor(float(number))
    for number, name in enumerate(
        ("encoder.layer.0.q.weight", "encoder.layer.1.q.weight", "encoder.norm.bias", "pooler.bias")
    )
}


def rename(*rules: tuple[str, str | None]) -> list[str]:
    return list(rename_keys(TENSORS, rules, "file", "checkpoint.init_map"))


def test_rules_apply_in_turn() -> None:
    rules = [(r"^encoder\.", ""), (r"^layer\.(\d+)\.", r"blocks.\1."), ("^pooler", None)]
    assert rename(*rules) == ["blocks.0.q.weight", "blocks.1.q.weight", "norm.bias"]
    assert rename() == list(TENSORS)
    renamed = rename_keys(TENSORS, rules, "file", "key")
    assert renamed["norm.bias"] is TENSORS["encoder.norm.bias"]


def test_an_idle_rule_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint\.init_map\.1\.match=\^decoder fits no"):
        rename((r"^encoder\.", ""), ("^decoder", ""))


def test_two_keys_that_become_one_are_refused() -> None:
    with pytest.raises(CheckpointError, match="both become q"):
        rename((r"^encoder\.layer\.\d\.q\.weight", "q"))


def test_a_wrong_group_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"init_map\.0\.to"):
        rename(("^encoder", r"\3"))
    with pytest.raises(ConfigError, match=r"init_map\.0\.match=\( is not a regular expression"):
        rename(("(", ""))


@pytest.mark.parametrize("rules", [{"ab": "cd"}, "ab", [("a",)], [("a", 1)], [3]])
def test_what_is_no_list_of_pairs_is_refused(rules: Any) -> None:
    """The keys of a dict, with two letters each, were taken for rules."""
    with pytest.raises(ConfigError, match="rename: expected pairs"):
        rename_keys({"ab": torch.zeros(1)}, rules, "file", "rename")
    assert list(rename_keys({"ab": torch.zeros(1)}, [["a", "x"]], "file", "rename")) == ["xb"]  # type: ignore[list-item]
