"""The reference tests themselves: no case and no tensor of a case is passed over in silence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import find_cases, run_case
from safetensors.torch import save_file
from torch import Tensor


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of cases of the recipe "some"."""
    monkeypatch.setenv("OVERT_REFERENCE", str(tmp_path))
    recipe = tmp_path / "some"
    recipe.mkdir()
    return recipe


def write_case(folder: Path, kind: str) -> Path:
    save_file({name: torch.zeros(1) for name in ("x", "y")}, folder / "a.0.safetensors")
    path = folder / "a.0.json"
    path.write_text(json.dumps({"kind": kind}))
    return path


def read_x(case: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    assert tensors["x"].shape == (1,)
    assert "y" in tensors


def read_all(case: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    assert all(tensors[name].shape == (1,) for name in tensors)


def test_a_case_runs_through_the_check_of_its_kind(folder: Path) -> None:
    path = write_case(folder, "known")
    assert [parameter.values for parameter in find_cases("some")] == [(path,)]
    run_case(path, {"known": read_all, "other": read_x})


def test_a_case_of_an_unknown_kind_fails(folder: Path) -> None:
    path = write_case(folder, "new")
    with pytest.raises(pytest.fail.Exception, match=r"kind='new' has no check; there are: known"):
        run_case(path, {"known": read_all})


def test_a_tensor_that_the_check_never_reads_fails(folder: Path) -> None:
    path = write_case(folder, "known")
    with pytest.raises(AssertionError, match="the check of known never reads y"):
        run_case(path, {"known": read_x})


def test_tensors_without_a_description_fail(folder: Path) -> None:
    write_case(folder, "known").unlink()
    ((path,),) = (parameter.values for parameter in find_cases("some"))
    with pytest.raises(pytest.fail.Exception, match=r"a\.0\.safetensors has no a\.0\.json"):
        run_case(path, {"known": read_all})


def test_a_folder_without_cases_is_skipped_with_the_reason(folder: Path) -> None:
    (parameter,) = find_cases("some")
    (mark,) = parameter.marks
    assert mark.name == "skip"
    assert f"no reference cases in {folder}; set OVERT_REFERENCE" in mark.kwargs["reason"]
