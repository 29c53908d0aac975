"""What a setting means: the comment above it in its dataclass, or at the head of its YAML file."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path


def explanations(kind: type) -> dict[str, str]:
    """Field name to `type: explanation`, the comment lines above or behind it in the source."""
    meanings: dict[str, str] = {}
    names = {field.name for field in fields(kind) if field.init}
    # A base class describes the fields it declares.
    for base in reversed(kind.__mro__):
        if "__annotations__" not in vars(base) or base.__module__ == "builtins":
            continue
        comments: list[str] = []
        for line in inspect.getsource(base).splitlines()[1:]:
            text = line.strip()
            if text.startswith("#"):
                comments.append(text.lstrip("# "))
                continue
            name, separator, rest = text.partition(":")
            if separator and name in names:
                hint, _, behind = rest.partition("  # ")
                kind_of_value = hint.partition("=")[0].strip()
                words = "; ".join(filter(None, [" ".join(comments), behind.strip()]))
                meanings[name] = f"{kind_of_value}: {words}" if words else kind_of_value
            comments = []
    return meanings


def first_sentence(file: Path) -> str:
    """Return the first sentence of a YAML file's comment."""
    words: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("# @package"):
            continue
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# ").strip())
    text = " ".join(words)
    return text.partition(". ")[0].rstrip(".")
