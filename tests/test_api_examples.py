"""The examples in docstrings of public names run and print what they show."""

import doctest
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_runs import HERE

import overt

EXAMPLES = [name for name in overt.__all__ if name not in ("testing", "train", "Trainer")]
NO_EXAMPLE = {"Recipe", "SampleSource"}  # docs/add_a_recipe.md is theirs


def run_examples(docstring: str, names: dict[str, object]) -> int:
    examples = doctest.DocTestParser().get_examples(docstring)
    for example in examples:
        if example.want:  # a result is shown; what a training prints is not
            assert repr(eval(example.source, names)) == example.want.strip(), example.source
        else:
            exec(example.source, names)
    return len(examples)


@pytest.fixture
def names(tiny_tracker: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(HERE.parent / "examples")
    return {"overt": overt, "torch": torch, "np": np}


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in {"Result", "evaluate"}])
def test_examples_run(name: str, names: dict[str, object]) -> None:
    docstring = getattr(overt, name).__doc__
    assert docstring, f"overt.{name} has no docstring"
    count = run_examples(docstring, names)
    assert count or name in NO_EXAMPLE, f"the docstring of overt.{name} has no example"


def test_examples_of_training_run(names: dict[str, object]) -> None:
    from overt import api

    for one in (api.train, api.evaluate, api.Result):
        assert run_examples(one.__doc__ or "", names)
