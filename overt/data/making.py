"""A folder of synthetic data belongs to one set of settings, stored in its manifest.

Several processes may claim the same folder at once, and fill it together. Imports no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from overt.errors import DataError
from overt.files.atomic import hidden_name, is_unfinished, remove_left_overs

MANIFEST = "synthetic.json"


def claim_folder(root: Path, settings: Mapping[str, Any], content: str) -> None:
    """Claim `root` for data with these settings; reject it if it contains anything else.

    `content` names the data in the error: "sequences", for example.
    """
    manifest = root / MANIFEST
    # The manifest is written before any content, so it exists if others are filling the folder.
    if not manifest.is_file() and _has_content(root) and not manifest.is_file():
        raise DataError(
            f"{root} exists and was not made by this command (it has no {MANIFEST}); synthetic "
            f"{content} are not mixed into other data. Choose a new or empty folder."
        )
    if not manifest.is_file():
        root.mkdir(parents=True, exist_ok=True)
        _write_once(manifest, json.dumps(settings, indent=2) + "\n")
    _compare(manifest, settings, content)
    remove_left_overs(root)


def _has_content(root: Path) -> bool:
    if not root.exists():
        return False
    return not root.is_dir() or not all(map(is_unfinished, root.iterdir()))


def _write_once(path: Path, text: str) -> None:
    """Write a file atomically; if another process was faster, its file is kept."""
    hidden = hidden_name(path)
    hidden.write_text(text)
    try:
        os.link(hidden, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not path.exists():
            os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def _compare(manifest: Path, settings: Mapping[str, Any], content: str) -> None:
    try:
        stored = json.loads(manifest.read_text())
    except ValueError:
        stored = None
    if stored == settings:
        return
    detail = f"{MANIFEST} is not readable"
    if isinstance(stored, dict):
        keys = [key for key in {**settings, **stored} if settings.get(key) != stored.get(key)]
        detail = ", ".join(
            f"{key} {stored.get(key)} there, {settings.get(key)} requested" for key in keys
        )
    raise DataError(
        f"{manifest.parent} holds other synthetic {content} ({detail}); sets are not mixed. Choose "
        "another folder, or remove this one."
    )
