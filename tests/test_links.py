"""Links and anchors lead somewhere: in pages, docstrings, messages and the package's README."""

import ast
import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from doc_commands import PAGES, ROOT, name

from overt.commands.docs import all_pages
from overt.files.shipped import anchor, shipped

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
SOURCES = sorted(ROOT.glob("overt/**/*.py"))
COMMAND = re.compile(r"overt (docs|examples) (?!TOPIC|NAME|PAGE)(\w+)")


@cache
def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", file.read_text()), re.MULTILINE)
    return set(map(anchor, headings))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if re.match(r"\w+:", target):  # elsewhere
            continue
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)} links to {target}"
        if fragment:
            assert fragment in anchors(file), f"{name(page)} links to {target}"


def strings(tree: ast.AST) -> Iterator[tuple[bool, str]]:
    """Return every string of a source, and whether it is a docstring."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = set()
    for node in ast.walk(tree):  # what holds a docstring comes before it
        if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr):
            docstrings.add(id(node.body[0].value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield id(node) in docstrings, node.value


def test_sources_name_pages_that_exist() -> None:
    """A docstring may name a file of docs/; a message names the command, which works anywhere."""
    pages, examples = set(all_pages()), {path.name for path in shipped("examples").iterdir()}
    commands = 0
    for file in SOURCES:
        for in_docstring, text in strings(ast.parse(file.read_text())):
            for page in re.findall(r"docs/([\w/]+)\.md", text):
                assert in_docstring, f"{name(file)}: say `overt docs {page}` in {text!r}"
                assert (ROOT / f"docs/{page}.md").is_file(), f"{name(file)} names docs/{page}.md"
            for verb, topic in COMMAND.findall(text):
                known = pages if verb == "docs" else examples
                assert topic in known, f"{name(file)} names `overt {verb} {topic}`"
                commands += 1
    assert commands > 10


def test_comments_name_pages_that_exist() -> None:
    for file in [*SOURCES, *ROOT.glob("overt/conf/**/*.yaml"), *ROOT.glob("tests/**/*.py")]:
        for page in re.findall(r"docs/([\w/]+)\.md", file.read_text()):
            assert (ROOT / f"docs/{page}.md").is_file(), f"{name(file)} names docs/{page}.md"


def test_the_package_s_readme_is_read_without_the_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, str] = {}
    monkeypatch.setattr("setuptools.setup", lambda **options: given.update(options))
    runpy.run_path(str(ROOT / "setup.py"))
    text = given["long_description"]
    links = LINK.findall(text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "pip install overt " in text
    assert "make demo" not in text
    topics = [topic for verb, topic in COMMAND.findall(text) if verb == "docs"]
    assert len(topics) > 10
    assert set(topics) <= set(all_pages())
