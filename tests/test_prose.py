"""Plain English of the field: phrases and names that docs, messages and code do not use."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import overt

ROOT = Path(overt.__file__).parents[1]
BANNED = re.compile(
    r"\b(?:"
    r"(?:is|are|was) no (?!longer|more|less|need|one|reason|doubt|way)\w+|mend(?:s|ed|ing)?|anew|"
    r"for ever|so many|dearest|once more|goes? on|going on|went on|at hand|begun|"
    r"expected (?:is|are)|allowed (?:is|are)|writes? down|written down|in small|"
    r"of (?:its|their) own|"
    r"by chance|without a word|in words|says? so|all the same|"
    r"(?:needed|found|asked for|compared) are|no readable|helps? nobody|worth a word|takes? away"
    r")\b",
    re.IGNORECASE,
)
# Names that say nothing about what they hold.
VAGUE = {"found", "place", "places", "one", "said", "many", "share", "shares", "thing", "manner"}
# A configuration key and a parameter of released checkpoints keep their name.
KEPT = {"overt/recipes/blade/config.py", "overt/recipes/blade/depthnet.py"}
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
TEXTS += [*ROOT.glob("overt/**/*.md"), *ROOT.glob("overt/conf/**/*.yaml")]
SOURCES = [
    file
    for folder in ("overt", "benchmarks", "examples")
    for file in ROOT.glob(f"{folder}/**/*.py")
]


def pieces(file: Path) -> Iterator[tuple[int, str]]:
    """Return lines of a text, or comments and strings of a source, with their line numbers."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string


def banned_in(files: list[Path]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{line}: {match.group(0)}"
        for file in files
        if BANNED.search(file.read_text(encoding="utf-8"))  # taking sources apart takes seconds
        for line, text in pieces(file)
        for match in BANNED.finditer(text)
    ]


@pytest.mark.parametrize("kind", ["texts", "sources"])
def test_no_banned_phrase(kind: str) -> None:
    files = TEXTS if kind == "texts" else SOURCES
    assert len(files) > 40
    assert banned_in(files) == []


def test_a_banned_phrase_is_found() -> None:
    assert BANNED.search("there is no folder of that name")
    assert BANNED.search("Expected is a list")
    assert not BANNED.search("there is no need to wait")


def test_names_say_what_they_hold() -> None:
    vague = []
    for file in ROOT.glob("overt/**/*.py"):
        path = str(file.relative_to(ROOT))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if is_stored else getattr(node, "arg", getattr(node, "name", None))
            if name in VAGUE and path not in KEPT and not isinstance(node, ast.keyword):
                vague.append(f"{path}:{node.lineno}: {name}")
    assert vague == []
