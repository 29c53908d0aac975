from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overt.config import load
from overt.config.overrides import parse_override, quoted
from overt.errors import ConfigError

PATHS = ["läufe/mein Lauf", "Fotos (2)", "it's", 'a"b', "back\\", "2024", "null", "a,b", "", "${x}"]


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.sampled_from(PATHS), st.text(max_size=20)))
def test_a_quoted_value_is_read_as_it_is(text: str) -> None:
    assert parse_override(f"data.root={quoted(text)}").value() == text


def test_plain_values_get_no_quotes() -> None:
    for text in ("runs/mine", "data/cifar10/train", "s3://bucket-1", "step_00000300"):
        assert quoted(text) == text


@pytest.mark.parametrize("path", ["bilder/müller", "/home/王/データ", "mein Läufe/a~b"])
def test_letters_beyond_ascii_need_no_quotes(path: str, tmp_path: Path) -> None:
    word = f"data.root={path}"
    assert parse_override(word).value() == path
    config = load(["recipe=hjepa_tiny", word, f"output_dir={tmp_path}/ü", "++seed=7"])
    assert config.settings.data.root == path
    assert config.output_dir == f"{tmp_path}/ü"


@pytest.mark.parametrize("path", ["Fotos (2)/é", "a(b"])
def test_a_value_that_needs_quotes_is_refused_with_them(path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_override(f"data.root={path}")
    word = f'data.root="{path}"'
    assert f"put the value in quotes: '{word}'" in str(refused.value)
    assert parse_override(word).value() == path


def test_a_word_that_no_quotes_can_save_is_explained() -> None:
    with pytest.raises(ConfigError, match="write KEY=VALUE"):
        parse_override("schlüssel=1")


def test_the_name_of_a_recipe_alone_is_told_how_to_choose_it() -> None:
    with pytest.raises(ConfigError, match="write recipe=hjepa_tiny"):
        parse_override("hjepa_tiny")
    with pytest.raises(ConfigError, match="write KEY=VALUE"):
        parse_override("hjepa_tinny")
