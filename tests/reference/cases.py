"""The recorded cases of the published implementations: where they lie, how one is run.

The folder is `$OVERT_REFERENCE`, or `../shared/reference` beside the checkout.
"""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

CHECKOUT = Path(__file__).resolve().parents[2]


def reference_folder() -> Path:
    """The folder with one sub-folder of cases per recipe."""
    chosen = os.environ.get("OVERT_REFERENCE")
    return Path(chosen) if chosen else CHECKOUT.parent / "shared" / "reference"


def find_cases(recipe: str) -> list[Any]:
    """One pytest parameter, the path of the JSON file, for each case of `recipe`.

    Without cases there is one parameter that is skipped, so that the report shows the gap.
    """
    folder = reference_folder() / recipe
    found = [pytest.param(path, id=path.stem) for path in sorted(folder.glob("*.json"))]
    if found:
        return found
    reason = f"no reference cases in {folder}; set OVERT_REFERENCE to the folder that holds them"
    return [pytest.param(folder, id="absent", marks=pytest.mark.skip(reason=reason))]


def load_case(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The case's description and its tensors; a case may have no tensors."""
    description = json.loads(path.read_text())
    tensors = path.with_suffix(".safetensors")
    return description, load_file(tensors) if tensors.exists() else {}


class ReadTensors(dict[str, Tensor]):
    """The tensors of a case; `unread` are those that nobody has asked for by name."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.unread = set(tensors)

    def __getitem__(self, name: str) -> Tensor:
        self.unread.discard(name)
        return super().__getitem__(name)


Check = Callable[[dict[str, Any], dict[str, Tensor]], None]


def run_case(path: Path, checks: dict[str, Check]) -> None:
    """Run the check of the case's kind; a recorded tensor that it never reads is a warning."""
    case, recorded = load_case(path)
    check = checks.get(case.get("kind", ""))
    if check is None:
        known = ", ".join(sorted(checks))
        pytest.fail(f"{path}: kind={case.get('kind')!r} has no check; there are: {known}")
    tensors = ReadTensors(recorded)
    check(case, tensors)
    if tensors.unread:
        unread = ", ".join(sorted(tensors.unread))
        warnings.warn(f"{path}: the check of {case['kind']} never reads {unread}", stacklevel=2)
