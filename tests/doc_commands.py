"""The commands of the documentation: found in its pages, and tried without their work being done.

A command is handed to the parser it meets on a user's machine, and its settings are composed and
checked. What cannot be tried so carries a mark before its block: `<!-- needs: a cluster -->`.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from omegaconf import DictConfig, OmegaConf
from toy_runs import HERE

from overt.cli import main as overt
from overt.config import GROUPS, add_package, check, compose_values, expand_sweep, load
from overt.verbs import VERBS

ROOT = HERE.parent
PAGES = [
    *(
        ROOT / page
        for page in (
            "README.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "SECURITY.md",
            "CODE_OF_CONDUCT.md",
        )
    ),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/*/*.md")),
    *sorted(ROOT.glob("overt/recipes/*/README.md")),
]
BLOCK = re.compile(
    r"(?:^<!-- needs: ([\w ]+) -->\n)?^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL
)
NEEDS = {"a cluster", "a GPU", "a data set", "a network", "a camera", "a terminal"}
# Scripts whose words no parser of argparse reads; these tests run them.
RUN_BY = {
    "examples/jepa/basic_training.py": "tests/test_examples_jepa.py",
    "examples/jepa/resume.py": "tests/test_examples_jepa.py",
    "examples/jepa/hierarchical_rates.py": "tests/test_examples_jepa.py",
    "examples/jepa/checkpoints.py": "tests/test_examples_jepa.py",
}
# Only these are entered: each reads its words before it does anything. Others have to be marked.
SCRIPTS = ("benchmarks/", "examples/")
LAUNCHERS = ("nohup", "sudo", "srun", "time")
PYTHONS = ("python", "python3", ".venv/bin/python")
MODULES = {"overt": [], "overt.train": ["train"]}  # `python -m MODULE` and the verb it stands for
RECIPES = {path.stem for path in (ROOT / "overt/conf/recipe").glob("*.yaml")}


class Command(NamedTuple):
    """One command of a page, and what it needs, where a mark says so."""

    page: str
    text: str
    needs: str | None


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands_of(page: Path) -> Iterator[Command]:
    """Every command of a page's bash blocks, each on one line."""
    for needs, _, language, text in BLOCK.findall(page.read_text()):
        if language == "bash":
            for command in commands_in(text):
                yield Command(name(page), command, needs or None)


def commands_in(block: str) -> Iterator[str]:
    """The commands of one block, each on one line."""
    for line in map(str.strip, block.replace("\\\n", " ").splitlines()):
        if line and not line.startswith("#"):
            yield line


class Parsed(Exception):  # noqa: N818, no error: it ends a command once its words are read
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options


class Untried(Exception):  # noqa: N818
    """Nothing here knows how to try this command."""


@contextlib.contextmanager
def only_parsing() -> Iterator[None]:
    """Inside, a command ends in `Parsed` as soon as its own parser has accepted its words.

    One that would start a program before that fails instead.
    """

    def end(method: Any) -> Any:
        def read(self: Any, *args: Any, **named: Any) -> None:
            raise Parsed(method(self, *args, **named))

        return read

    parser = argparse.ArgumentParser
    intermixed, plain = parser.parse_intermixed_args, parser.parse_args
    with (
        patch.object(parser, "parse_intermixed_args", end(intermixed)),
        patch.object(parser, "parse_args", end(plain)),
        patch("subprocess.Popen", side_effect=AssertionError("it works before it reads")),
    ):
        yield


def parse(words: Sequence[str]) -> argparse.Namespace | None:
    """What the command's own parser makes of its words; None where there is none to ask."""
    words = [word for word in words if word != "&"]
    if ">" in words:
        words = words[: words.index(">")]
    while words and (words[0] in LAUNCHERS or re.fullmatch(r"[A-Z_]+=\S*", words[0])):
        words = words[1:]
    match words:
        case ["torchrun", *rest]:
            from torch.distributed.run import get_args_parser

            asked = get_args_parser().parse_args(rest)
            assert asked.module, f"torchrun starts overt by -m: {words}"
            return parse(["python", "-m", asked.training_script, *asked.training_script_args])
        case [python, "-m", module, *rest] if python in PYTHONS and module in MODULES:
            return parse(["overt", *MODULES[module], *rest])
        case ["overt", verb, *rest]:
            assert verb in VERBS, f"overt has no verb {verb}"
            with only_parsing():
                return ended(lambda: overt([verb, *rest]), words)
        case [python, script, *rest] if python in PYTHONS and script.startswith(SCRIPTS):
            assert (ROOT / script).is_file(), f"there is no {script}"
            if script in RUN_BY:  # never entered here: without a parser they would train
                assert Path(script).stem in (ROOT / RUN_BY[script]).read_text()
                return argparse.Namespace(overrides=["recipe=hjepa_tiny", *rest])
            assert "argparse" in (ROOT / script).read_text(), f"{script}: name its test in RUN_BY"
            with only_parsing(), patch.object(sys, "argv", [script, *rest]):
                folder = str((ROOT / script).parent)
                with patch.object(sys, "path", [folder, *sys.path]):
                    return ended(
                        lambda: runpy.run_path(str(ROOT / script), run_name="__main__"), words
                    )
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
            return None
        case ["pip", "install", *rest]:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            for extra in re.findall(r"\[(\w+)\]", " ".join(rest)):
                assert extra in project["optional-dependencies"], f"there is no extra {extra}"
            return None
    raise Untried(shlex.join(words))


def ended(run: Any, words: Sequence[str]) -> argparse.Namespace:
    try:
        run()
    except Parsed as parsed:
        return parsed.options
    except SystemExit as exit:
        raise AssertionError(f"its own parser refuses {shlex.join(words)}") from exit
    raise AssertionError(f"{shlex.join(words)} read no words")


def try_settings(options: argparse.Namespace) -> None:
    """Compose and check what a command sets."""
    words = list(getattr(options, "overrides", None) or getattr(options, "words", None) or ())
    words = [word for word in words if re.match(r"[+~]*[\w.]+(=|$)", word)]
    if "explain" in options:  # `overt config ... --explain`: the key to explain is no setting
        words = [word for word in words if "=" in word]
    files = [word.partition("=")[2] for word in words if word.startswith("checkpoint=")]
    files += [str(options.checkpoint)] if getattr(options, "checkpoint", None) else []
    files += [str(options.config)] if getattr(options, "config", None) else []
    words = [word for word in words if not word.startswith(("checkpoint=", "output="))]
    packages = tuple(str(ROOT / package) for package in getattr(options, "package", ()))
    if isinstance(getattr(options, "recipe", None), str):
        words = [f"recipe={options.recipe}", "data.root=x", *words]
    if "devices" in options:  # `overt plan` reads no data
        words = ["data.root=x", *words]
    if not words:
        return
    if not any(word.startswith("recipe=") for word in words):
        # The file of an earlier run brings its own.
        words = [f"recipe={recipe_of(files, packages)}", *words]
    for chosen in expand_sweep(words) if getattr(options, "multirun", False) else [words]:
        accepted(tuple(chosen), packages)


def recipe_of(files: Sequence[str], packages: Sequence[str]) -> str:
    """Of the run that a path names: that of a chain in examples, or `runs/RECIPE/...`."""
    if packages:
        return Path(packages[0]).name
    for chain in sorted((ROOT / "examples").glob("*/stages*.yaml")):
        plan = OmegaConf.load(chain)
        for stage in plan.stages:
            if any(file.startswith(f"{plan.output_dir}/{stage.name}/") for file in files):
                return str(stage.recipe)
    parts = [part for file in files for part in Path(file).parts]
    return next((part for part in parts if part in RECIPES), "cotracker3_tiny")


@cache
def composed(groups: tuple[str, ...], packages: tuple[str, ...]) -> DictConfig:
    return compose_values(groups, packages=packages)


@cache
def accepted(words: tuple[str, ...], packages: tuple[str, ...]) -> None:
    """Refuse what `load` refuses; composing, the slow part, is done once for the same groups."""
    if any(re.match(r"[+~]", word) or re.search(r"[{\"']|\$", word) for word in words):
        load(words, packages=packages)
        return
    groups = tuple(word for word in words if word.partition("=")[0] in GROUPS)
    single = [word for word in words if word not in groups]
    values = composed(groups, packages).copy()
    OmegaConf.set_struct(values, True)
    values.merge_with_dotlist(single)
    check(values, ["overt", "torch.optim", *map(add_package, packages)])


def try_command(text: str) -> None:
    """Raise where the command would be refused, `Untried` where nothing here can tell."""
    options = parse(shlex.split(text, comments=True))
    if options is not None:
        try_settings(options)
