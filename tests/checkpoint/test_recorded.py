"""overt/checkpoint/recorded.py: the recipe and the settings of folders and exported files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from overt.checkpoint.recorded import (
    RECIPE_KEY,
    SETTINGS_KEY,
    STATE_KEY,
    recorded_recipe,
    recorded_settings,
    recorded_state,
    state_metadata,
)
from overt.checkpoint.trained import configure
from overt.errors import ConfigError


@pytest.mark.parametrize(
    ("metadata", "recipe"),
    [
        ({RECIPE_KEY: "cotracker3_tiny"}, "cotracker3_tiny"),
        ({RECIPE_KEY: "x seed=3"}, None),  # one word alone: no further settings
        ({}, None),
        (None, None),
    ],
)
def test_a_file_names_its_recipe(
    tmp_path: Path, metadata: dict[str, str] | None, recipe: str | None
) -> None:
    file = tmp_path / "weights.safetensors"
    save_file({"a": torch.zeros(1)}, file, metadata)
    assert recorded_recipe(file) == recipe
    if recipe is None:
        with pytest.raises(ConfigError, match="holds no configuration; add --recipe NAME"):
            configure(file, [], (), remedy="--recipe NAME")
    else:
        assert configure(file, ["seed=3"], (), needs_data=False).recipe.name == recipe


@pytest.mark.parametrize("text", ["", "[1, 2]", "recipe: 3", "recipe: {name: [a]}", "a: [", None])
def test_a_folder_without_a_readable_recipe_names_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    assert recorded_recipe(tmp_path) is None


def test_a_broken_or_missing_file_names_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"\x10" + 7 * b"\0" + b"{nothing")
    assert recorded_recipe(tmp_path / "a.safetensors") is None
    assert recorded_recipe(tmp_path / "missing.safetensors") is None


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("model: {side: 3}\ntraining: {num_steps: 3}\n", {"model": {"side": 3}}),
        ("[model]", None),
        ("model: 3", {}),
        ("", {}),
    ],
)
def test_only_sections_of_the_recipe_are_read(
    tmp_path: Path, text: str, settings: dict[str, object] | None
) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(1)}, file, {RECIPE_KEY: "pcdiff_refine_tiny", SETTINGS_KEY: text})
    assert recorded_settings(file) == settings


def test_the_state_of_a_recipe_is_read_from_folders_and_files(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(1)}, file, {RECIPE_KEY: "pcdiff_tiny", STATE_KEY: '{"a": [1, 2]}'})
    assert recorded_state(file) == {"a": [1, 2]}
    assert state_metadata(file).keys() == {STATE_KEY}
    described = tmp_path / "state.json"
    for text, state in (
        ('{"state": {"recipe": {"a": 1}}}', {"a": 1}),
        ('{"state": {}}', {}),  # of an older version
        ('{"state": {"recipe": [1]}}', {}),
        ("[]", {}),
        ("{", {}),
    ):
        described.write_text(text)
        assert recorded_state(tmp_path) == state
    described.unlink()
    assert recorded_state(tmp_path) == recorded_state(tmp_path / "no.pth") == {}
    assert state_metadata(tmp_path) == {}


@pytest.mark.parametrize(
    "text",
    [
        "model: [",
        "a: &a [*a]",
        "model: {sid: 3}",
        "model: {side: x}",
        "model: {side: '${nowhere}'}",
        "model: {side: '${oc.env:HOME}'}",
        "model: {side: '${model.side}'}",
        "model: {side: {a: '???'}}",
        "model: {'a.b': '???'}",
        "model: {'[': '???'}",
        "data: {1: '???'}",
        "model: {side: ['???']}",
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.zeros(1)}, file, {RECIPE_KEY: "pcdiff_refine_tiny", SETTINGS_KEY: text})
    with pytest.raises(ConfigError):
        configure(file, [], (), needs_data=False)
