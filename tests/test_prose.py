"""Plain English of the field: phrases that docs, messages and comments do not use."""

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
    r"by chance|without a word|in words|says? so|all the same"
    r")\b",
    re.IGNORECASE,
)
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
