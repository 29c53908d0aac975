"""Documentation that cannot rot: links, commands and quoted code are held against the project."""

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from omegaconf import OmegaConf
from toy_runs import HERE

from overt.cli import VERBS
from overt.config import Config, expand_sweep, load
from overt.train import make_parser

ROOT = HERE.parent
EXAMPLE = str(ROOT / "examples" / "own_recipe")
PAGES = [
    *(ROOT / page for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("examples/*/*.md")),
    *sorted(ROOT.glob("overt/recipes/*/README.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
QUOTE = re.compile(r"<!-- from (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What comes before the settings, each with the words of its own that look like settings.
STARTS = {
    "overt train ": (),
    "-m overt.train ": (),
    "overt config ": (),
    "overt evaluate ": ("checkpoint=", "output="),
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchor(heading: str) -> str:
    """How a heading is named in a link."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if re.match(r"\w+:", target):  # elsewhere
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)} links to {target}"
        if fragment:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert fragment in map(anchor, headings), f"{name(page)} links to {target}"


def commands(page: Path) -> Iterator[str]:
    """Every command of a page's bash blocks on one line."""
    for _, language, text in BLOCK.findall(page.read_text()):
        if language == "bash":
            for line in text.replace("\\\n", " ").splitlines():
                words = line.strip()
                if words and not words.startswith("#"):
                    yield words


ALL_COMMANDS = [(name(page), command) for page in PAGES for command in commands(page)]


def test_there_are_commands() -> None:
    assert len([command for _, command in ALL_COMMANDS if "overt" in command]) > 30


@cache
def accepted(overrides: tuple[str, ...], packages: tuple[str, ...]) -> Config:
    return load(overrides, packages=packages)


@pytest.mark.parametrize(("page", "command"), ALL_COMMANDS)
def test_settings_of_commands_are_accepted(page: str, command: str, tmp_path: Path) -> None:
    words = shlex.split(command, comments=True)
    if "overt" in words:
        assert words[words.index("overt") + 1] in VERBS, f"{page}: {command}"
    start = next((start for start in STARTS if start in command), None)
    if start is None:
        return
    rest = shlex.split(command.partition(start)[2], comments=True)
    options, _ = make_parser().parse_known_intermixed_args(rest)
    packages = [str(ROOT / package) for package in options.package]
    settings = [
        word
        for word in options.overrides
        if ("=" in word or word.startswith("~")) and not word.startswith(STARTS[start])
    ]
    if options.config or not any(word.startswith("recipe=") for word in settings):
        # The file of an earlier run: any recipe's stands in for it.
        file = tmp_path / "config.yaml"
        recipe = "recipe=own_recipe" if packages else "recipe=cotracker3_tiny"
        file.write_text(accepted((recipe,), tuple(packages)).text)
        load(settings, str(file), packages)
        return
    for overrides in expand_sweep(settings) if options.multirun else [settings]:
        accepted(tuple(overrides), tuple(packages))


@cache
def known_keys() -> frozenset[str]:
    """The dotted keys, sections included, of every recipe of overt and of the example."""
    overts = sorted(path.stem for path in (ROOT / "overt/conf/recipe").glob("*.yaml"))
    recipes = [
        *((recipe, "data.root=x") for recipe in overts),
        ("own_recipe",),
        ("own_recipe_focal",),
    ]
    keys: set[str] = set()

    def add(values: Mapping[str, Any], prefix: str) -> None:
        for key, value in values.items():
            keys.add(prefix + key)
            if isinstance(value, Mapping):
                add(value, f"{prefix}{key}.")

    for recipe, *rest in recipes:
        packages = (EXAMPLE,) if recipe.startswith("own") else ()
        config = accepted((f"recipe={recipe}", *rest), packages)
        add(OmegaConf.to_container(OmegaConf.create(config.text)), "")
    return frozenset(keys)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_in_the_text_exist(page: Path) -> None:
    """`section.key=value` is a setting, `overt.module.Name` can be imported."""
    sections = {key.partition(".")[0] for key in known_keys() if "." in key}
    for code in re.findall(r"`([^`\n]+)`", BLOCK.sub("", page.read_text())):
        dotted = re.fullmatch(r"((\w+)(?:\.\w+)+)(?:=.*)?", code)
        if dotted is None or dotted[1].endswith((".py", ".md", ".yaml")):
            continue
        if dotted[2] in sections:
            assert dotted[1] in known_keys(), f"{name(page)} speaks of {code}"
        if dotted[2] == "overt":
            assert resolve_name(dotted[1]) is not None, f"{name(page)} speaks of {code}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_quoted_code_is_in_the_file_it_names(page: Path) -> None:
    for source, quoted in QUOTE.findall(page.read_text()):
        lines = (line.strip() for line in (ROOT / source).read_text().splitlines())
        for line in filter(None, map(str.strip, quoted.splitlines())):
            if line != "...":  # left out
                found = any(other.startswith(line) for other in lines)  # in the same order
                assert found, f"{name(page)} quotes {line!r}, not found in {source}"
