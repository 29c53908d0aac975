"""overt/files/yaml_text.py: YAML of any origin is read within bounds, or refused in words."""

import itertools
from pathlib import Path

import pytest

from overt.errors import ConfigError
from overt.files.yaml_text import LARGEST_FILE, parse_yaml, read_yaml


def bomb(levels: int) -> str:
    """Each level holds the one before nine times."""
    names = [f"level{index}" for index in range(levels)]
    lines = ["level0: &level0 [x, x]"]
    for before, name in itertools.pairwise(names):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines)


def test_aliases_are_allowed_and_a_bomb_of_them_is_not() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: *a\n", "f").b == [1, 2]
    assert len(parse_yaml(bomb(3), "f").level2) == 9
    with pytest.raises(ConfigError, match=r"expands to [\d,]+ values with its aliases"):
        parse_yaml(bomb(30), "f")


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 60, "a: &a [*a]"])
def test_depth_is_bounded(text: str) -> None:
    with pytest.raises(ConfigError, match="nested too deep"):
        parse_yaml(text, "f")


@pytest.mark.parametrize("text", ["a: [", "a: \0", "? [x]\n: 1", "a: !!python/object:os.x {}"])
def test_what_is_not_yaml_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"file\.yaml is not valid YAML"):
        parse_yaml(text, "file.yaml")


@pytest.mark.parametrize("text", ["3", "2.5", "true"])
def test_a_single_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="holds a single value; expected keys and values"):
        parse_yaml(text, "f")


def test_a_file_is_text_and_no_larger_than_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(path)
    path.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        read_yaml(path)
    with path.open("wb") as file:
        file.truncate(100 * LARGEST_FILE)  # sparse
    with pytest.raises(ConfigError, match="has more than"):
        read_yaml(path)
