"""HTML built from Python so that no text can become markup: only `element` makes tags."""

from __future__ import annotations

import html
import re

VOID = ("input", "img", "meta", "wbr")


class Html(str):
    """Text that is markup already. Any other string is escaped where it is put in."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float | bool | None) -> Html:
    """A tag. `class_` is the attribute class, `data_x` is data-x; None and False leave one out."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        words.append(attribute if value is True else f'{attribute}="{html.escape(str(value))}"')
    begin = f"<{' '.join(words)}>"
    return Html(begin) if name in VOID else Html(f"{begin}{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Pieces one after the other; those that are plain text are escaped."""
    texts = (child if isinstance(child, Html) else html.escape(child) for child in children)
    return Html("".join(texts))


def breakable(name: str) -> Html:
    """A name that may break after its underscores, dots and slashes, and nowhere else."""
    parts = re.split(r"(?<=[_./])(?=[^_./])", name)
    return Html(element("wbr").join(html.escape(part) for part in parts))


def table(head: list[str], rows: list[list[str]], class_: str | None = None) -> Html:
    """A table whose first column names the rows; it scrolls by itself where it is too wide."""
    cells = [element("th", text, scope="col") for text in head]
    body = [
        element(
            "tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])
        )
        for row in rows
    ]
    whole = element(
        "table",
        element("thead", element("tr", *cells)),
        element("tbody", *body),
        class_=class_,
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=head[0])
