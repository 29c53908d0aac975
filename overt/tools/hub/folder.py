"""Write a checkpoint as a folder of the Hugging Face Hub, which overt reads like any checkpoint.

FOLDER/model.safetensors   config.yaml (overt)   config.json (the Hub)   README.md (the model card)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import yaml  # type: ignore[import-untyped]

import overt
from overt.checkpoint.recorded import state_metadata
from overt.errors import CheckpointError
from overt.files.atomic import new_folder
from overt.tools.hub.card import model_card
from overt.tools.hub.facts import Facts, read_facts

if TYPE_CHECKING:
    from torch import Tensor


def check_target(folder: Path) -> None:
    """Refuse a folder that has content."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists and is not empty; choose another --output")


def write_hub_folder(
    checkpoint: Path, folder: Path, tensors: Mapping[str, Tensor], license_name: str, part: str
) -> Facts:
    """Write weights, configuration and card, all or nothing; return what the card says."""
    from overt.checkpoint.tensor_files import TensorFile, write_file

    facts = read_facts(checkpoint)
    check_target(folder)
    with new_folder(folder) as hidden:
        metadata = {"format": "pt"} | state_metadata(checkpoint)
        write_file(hidden / "model.safetensors", TensorFile(dict(tensors), metadata))
        text = yaml.safe_dump(facts.settings, sort_keys=False, allow_unicode=True)
        (hidden / "config.yaml").write_text(text, encoding="utf-8")
        (hidden / "config.json").write_text(_config_json(facts), encoding="utf-8")
        card = model_card(facts, folder.resolve().name, license_name, part)
        (hidden / "README.md").write_text(card, encoding="utf-8")
    return facts


def _config_json(facts: Facts) -> str:
    content = {
        "library_name": "overt",
        "overt_version": overt.__version__,
        "model_type": facts.recipe,
        "step": facts.step,
        "model": facts.settings.get("model"),
    }
    return json.dumps(content, indent=1, default=str) + "\n"
