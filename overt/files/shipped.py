"""Documentation and examples: in a checkout beside the package, in an installed wheel inside it."""

from __future__ import annotations

import re
from pathlib import Path

from overt.errors import DataError

PACKAGE = Path(__file__).parents[1]


def shipped(name: str) -> Path:
    """Return the folder `docs` or `examples` that belongs to this version of overt."""
    checkout, wheel = PACKAGE.parent / name, PACKAGE / "shipped" / name
    is_checkout = (PACKAGE.parent / "pyproject.toml").is_file()
    folder = checkout if is_checkout and checkout.is_dir() else wheel
    if not folder.is_dir():
        raise DataError(
            f"this installation of overt has no {name} (looked for {wheel}); reinstall it from a "
            "wheel or from a checkout"
        )
    return folder


def title(page: Path) -> str:
    """Return the first heading of a page."""
    heading = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return heading.group(1) if heading else page.stem


def anchor(heading: str) -> str:
    """Return the name of a heading in a link."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
