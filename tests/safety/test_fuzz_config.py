"""Fuzz: what stands on a command line or in a config.yaml either parses or is refused."""

from functools import cache
from pathlib import Path

import pytest
from fuzzing import JSON, examples, parses_or_refuses, spoilt
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from toy_runs import TOY

from overt.config import expand_sweep, load

KEYS = st.sampled_from(
    ("recipe", "model", "training.batch_size", "training", "optimizer._target_", "data.samples",
     "schedule", "checkpoint.accept_changes", "nothing", "", "seed", "hydra.run.dir")
)  # fmt: skip
VALUES = st.sampled_from(
    ("1", "-1", "null", "nan", "[1,2", "{a:1}", "${seed}", "${oc.env:HOME}", "${", "'a", "a,b",
     "range(1,3)", "glob(*)", "os.system", "toy", "~", "1e999", "!!python/object:os.system")
)  # fmt: skip
MARKS = st.sampled_from(("", "+", "++", "~"))
OVERRIDES = st.builds("{}{}={}".format, MARKS, KEYS, VALUES | st.text(max_size=5))


@examples(80)
@given(st.lists(OVERRIDES | st.text(max_size=12), max_size=3))
def test_sweeps(words: list[str]) -> None:
    parses_or_refuses(lambda: expand_sweep(words))


@examples(10)
@given(st.lists(OVERRIDES, min_size=1, max_size=2))
def test_overrides(words: list[str]) -> None:
    parses_or_refuses(lambda: load(["recipe=toy", *words], packages=[str(TOY)]))


@cache
def good() -> bytes:
    return load(["recipe=toy"], packages=[str(TOY)]).text.encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


@examples(30)
@given(st.data())
def test_a_spoilt_file(file: Path, data: st.DataObject) -> None:
    file.write_bytes(data.draw(spoilt(good())))
    parses_or_refuses(lambda: load([], str(file), packages=[str(TOY)]))


@examples(30)
@given(st.data())
def test_a_file_with_other_values(file: Path, data: st.DataObject) -> None:
    values = OmegaConf.to_container(OmegaConf.create(good().decode()))
    section = data.draw(st.sampled_from(sorted(values)))
    if isinstance(values[section], dict) and values[section]:
        values[section][data.draw(st.sampled_from(sorted(values[section])))] = data.draw(JSON)
    else:
        values[section] = data.draw(JSON)
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(values)))
    parses_or_refuses(lambda: load([], str(file), packages=[str(TOY)]))


def test_the_good_file_parses(file: Path) -> None:
    file.write_bytes(good())
    assert parses_or_refuses(lambda: load([], str(file), packages=[str(TOY)]))
