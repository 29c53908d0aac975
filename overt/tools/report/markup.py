"""HTML built from Python so that no text can become markup: only `element` makes tags."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import lru_cache

LONGEST_KEPT = 200  # characters of a text whose escaped form is kept
VOID = ("input", "img", "meta", "wbr")


class Html(str):
    """Text that is markup already. Any other string is escaped where it is put in."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float | bool | None) -> Html:
    """A tag. `class_` is the attribute class, `data_x` is data-x; None and False omit it."""
    begin = f"<{name}>"
    if attributes:
        words = [name]
        for key, value in attributes.items():
            if value is None or value is False:
                continue
            attribute = _attribute(key)
            words.append(attribute if value is True else f'{attribute}="{escape(str(value))}"')
        begin = f"<{' '.join(words)}>"
    if name in VOID:
        return Html(begin)
    texts = [child if type(child) is Html else escape(child) for child in children]
    return Html(f"{begin}{''.join(texts)}</{name}>")


@lru_cache
def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def escape(text: str) -> str:
    """Return text as markup that shows it; short texts come again and again."""
    return _escape(text) if len(text) < LONGEST_KEPT else html.escape(text)


_escape = lru_cache(maxsize=2**14)(html.escape)


def join(*children: str) -> Html:
    """Return pieces one after the other; those that are plain text are escaped."""
    texts = [child if type(child) is Html else escape(child) for child in children]
    return Html("".join(texts))


@lru_cache(maxsize=2**12)
def breakable(name: str) -> Html:
    """Return a name that may break after its underscores, dots and slashes, and nowhere else."""
    parts = re.split(r"(?<=[_./])(?=[^_./])", name)
    return Html(element("wbr").join(html.escape(part) for part in parts))


def cells(values: Sequence[str], merges: bool = True) -> list[Html]:
    """Return cells of a row; with `merges` a single one where all hold the same."""
    if merges and len(values) > 1 and len(set(values)) == 1:
        return [element("td", values[0], colspan=len(values))]
    return [element("td", value) for value in values]


def table(
    head: list[str], rows: list[list[str]], class_: str | None = None, *, merges: bool = False
) -> Html:
    """Return a table whose first column names the rows; it scrolls by itself where it is too wide.

    `merges`: a value that all columns share is shown once, across them.
    """
    names = [element("th", text, scope="col") for text in head]
    body = [
        element("tr", element("th", row[0], scope="row"), *cells(row[1:], merges)) for row in rows
    ]
    markup = element(
        "table",
        element("thead", element("tr", *names)),
        element("tbody", *body),
        class_=class_,
    )
    return element("div", markup, class_="scroll", tabindex="0", role="region", aria_label=head[0])
