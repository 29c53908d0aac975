"""overt/commands/arguments.py: options said once, and what their numbers refuse."""

import argparse
import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from toy_runs import TOY, train_toy

from overt.cli import main
from overt.commands.arguments import (
    config_options,
    configure_model,
    evaluation_options,
    export_options,
    finite_number,
    model_options,
    whole_number,
)
from overt.config.checked import NO_DATA
from overt.errors import CheckpointError, ConfigError


def test_a_trained_model_has_one_set_of_options() -> None:
    parser = argparse.ArgumentParser(parents=[model_options()])
    options = parser.parse_args(["--checkpoint", "a", "--package", "x", "--package", "y"])
    assert (options.checkpoint, options.recipe, options.part) == (Path("a"), None, "auto")
    assert options.package == ["x", "y"]
    optional = argparse.ArgumentParser(parents=[model_options("the small one")])
    assert optional.parse_args([]).checkpoint is None
    assert "default: the small one" in optional.format_help()
    # No list is shared between two command lines.
    assert parser.parse_args(["--checkpoint", "a"]).package == []
    # None: model, but for --to hub the average where there is one (tests of `overt ckpt export`).
    assert argparse.ArgumentParser(parents=[export_options()]).parse_args([]).part is None
    assert argparse.ArgumentParser(parents=[evaluation_options()]).parse_args([]).part == "auto"
    assert argparse.ArgumentParser(parents=[config_options()]).parse_args([]).config is None


@pytest.mark.parametrize("verb", ["track", "complete", "estimate"])
def test_commands_of_trained_models_list_the_same_options(verb: str) -> None:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.suppress(SystemExit):
        main([verb, "--help"])
    for option in ("--checkpoint", "--recipe", "--part", "--package"):
        assert stream.getvalue().count(f"\n  {option} ") == 1


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (whole_number(1), "3", 3),
        (whole_number(0), " 0 ", 0),
        (whole_number(1), "0", "0 is not a whole number of at least 1"),
        (whole_number(1), "2.5", "2.5 is not a whole number of at least 1"),
        (whole_number(16, "pixels"), "3", "3 is not a whole number of pixels of at least 16"),
        (whole_number(1), "9" * 5000, "is not a whole number"),
        (whole_number(1), "9" * 400, "is too large; up to 1,000,000,000,000 is allowed"),
        (whole_number(1, most=1000), "1001", "1001 is too large; up to 1,000 is allowed"),
        (finite_number(0), "0", 0.0),
        (finite_number(0), "-1", "-1 is not a number of at least 0"),
        (finite_number(0, above=True), "0", "0 is not a number above 0"),
        (finite_number(0), "nan", "nan is not a number of at least 0"),
        (finite_number(0), "inf", "inf is not a number of at least 0"),
        (finite_number(0, most=25), "200", "200 is not a number from 0 to 25"),
        (finite_number(0, most=25), "25", 25.0),
        (finite_number(0, above=True, most=25), "26", "26 is not a number above 0 and at most 25"),
        (finite_number(0), "fast", "fast is not a number of at least 0"),
    ],
)
def test_numbers(kind: Callable[[str], float], text: str, expected: float | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(argparse.ArgumentTypeError, match=expected):
            kind(text)
    else:
        assert kind(text) == expected


def test_a_model_is_configured_by_name_or_by_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").touch()
    config = configure_model(tmp_path / "weights.pt", "lbm", [], [])
    assert (config.recipe.name, config.settings.data.root) == ("lbm", NO_DATA)
    # A recipe of one's own may have no data.root at all.
    own = configure_model(tmp_path / "weights.pt", "toy", ["model.width=5"], [str(TOY)])
    assert own.settings.model.width == 5
    with pytest.raises(ConfigError, match="add --recipe NAME"):
        configure_model(tmp_path / "weights.pt", None, [], [])
    with pytest.raises(CheckpointError, match="does not exist"):
        configure_model(tmp_path / "nowhere", "lbm", [], [])
    train_toy(tmp_path, "training.num_steps=1", "model.width=6")
    stored = configure_model(tmp_path / "toy/checkpoints/latest", None, [], [str(TOY)])
    assert stored.settings.model.width == 6
