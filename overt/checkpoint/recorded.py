"""What a checkpoint records of its run: the recipe's name, its settings and its own state.

A folder has config.yaml, an exported safetensors file has its metadata. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import MISSING, OmegaConf

from overt.checkpoint import plain_values
from overt.config import RECIPE_SECTIONS
from overt.errors import CheckpointError, ConfigError
from overt.files.yaml_text import parse_yaml, read_yaml

# In the metadata of exported safetensors files: a name, the recipe's sections as YAML, and plain
# values of the recipe's own state as JSON.
RECIPE_KEY, SETTINGS_KEY, STATE_KEY = "overt.recipe", "overt.settings", "overt.state"
FILE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npy", ".npz", ".pkl")


def recorded_recipe(checkpoint: Path) -> str | None:
    """Return the recipe that a checkpoint folder or an exported safetensors file names."""
    name = (
        _stored_name(checkpoint) if checkpoint.is_dir() else _metadata(checkpoint).get(RECIPE_KEY)
    )
    return name if isinstance(name, str) and name.isidentifier() else None


def recorded_settings(checkpoint: Path) -> dict[str, Any] | None:
    """Return the recipe's sections in a checkpoint folder or an exported safetensors file.

    In a file, values that named files of the training machine are missing (???).
    """
    if checkpoint.is_dir():
        stored = checkpoint / "config.yaml"
        values = read_yaml(stored) if stored.is_file() else None
    else:
        text = _metadata(checkpoint).get(SETTINGS_KEY)
        values = None if text is None else parse_yaml(text, f"{SETTINGS_KEY} of {checkpoint}")
    if not OmegaConf.is_dict(values):
        return None
    plain: Any = OmegaConf.to_container(values)
    return {name: plain[name] for name in RECIPE_SECTIONS if isinstance(plain.get(name), dict)}


def recorded_state(checkpoint: Path) -> dict[str, Any]:
    """Return the plain values of `Recipe.state_dict` at the last save; empty where there are none.

    A checkpoint folder has them, and a safetensors file or Hub folder that was exported from one.
    """
    described = checkpoint / "state.json"
    try:
        if described.is_file():
            values = plain_values.decode(described.read_bytes())["state"]["recipe"]
        else:
            weights = checkpoint / "model.safetensors" if checkpoint.is_dir() else checkpoint
            values = plain_values.decode(_metadata(weights).get(STATE_KEY, "{}").encode())
    except (CheckpointError, OSError, KeyError, TypeError):
        return {}  # of an older version; whoever resumes from it says what is wrong with it
    return values if isinstance(values, dict) else {}


def metadata_of(checkpoint: Path) -> dict[str, str]:
    """Return the metadata for an exported file, by which its model is built and used again."""
    recipe = recorded_recipe(checkpoint)
    if recipe is None:
        return {}
    metadata = {RECIPE_KEY: recipe} | state_metadata(checkpoint)
    sections = recorded_settings(checkpoint)
    if sections is not None:
        text = yaml.safe_dump(_without_files(sections), sort_keys=False, allow_unicode=True)
        metadata[SETTINGS_KEY] = text
    return metadata


def state_metadata(checkpoint: Path) -> dict[str, str]:
    """Return the recipe's own state as metadata, if it has any."""
    state = recorded_state(checkpoint)
    return {STATE_KEY: plain_values.encode(state, STATE_KEY).decode()} if state else {}


def missing_keys(value: Any, key: str) -> Iterator[str]:
    """Yield the dotted keys of missing values (???), that of the value itself being `key`."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            yield from missing_keys(child, f"{key}.{name}")
    elif value == MISSING:
        yield key


def _without_files(value: Any) -> Any:
    """Return settings with ??? for files and folders: elsewhere their paths mean nothing."""
    if isinstance(value, Mapping):
        return {key: _without_files(child) for key, child in value.items()}
    if isinstance(value, list):
        kept = [_without_files(child) for child in value]
        return value if kept == value else MISSING
    is_file = isinstance(value, str) and ("/" in value or value.endswith(FILE_SUFFIXES))
    return MISSING if is_file else value


def _stored_name(folder: Path) -> object:
    """Return the name of the recipe in a folder's configuration, which need not be usable here."""
    try:
        values = read_yaml(folder / "config.yaml")
    except ConfigError:
        return None
    return OmegaConf.select(values, "recipe.name") if OmegaConf.is_dict(values) else None


def _metadata(file: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file; no other file has any."""
    from safetensors import SafetensorError, safe_open

    from overt.files.weight_files import is_safetensors

    if not file.is_file() or not is_safetensors(file):
        return {}
    try:
        with safe_open(file, framework="np") as opened:
            return opened.metadata() or {}
    except (SafetensorError, OSError):
        return {}  # the reader of its tensors reports what is wrong with it
