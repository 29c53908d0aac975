"""`overt docs [TOPIC]`: read the documentation of this version, in the terminal or in a browser."""

from __future__ import annotations

import argparse
import html
import re
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from overt.errors import ConfigError, OvertError, nearest
from overt.files.shipped import PACKAGE, anchor, shipped, title

LINK = re.compile(r'<a href="(?!\w+:)([^"#]+)(#[^"]*)?">(.*?)</a>', re.DOTALL)
STYLE = (
    "body{max-width:52rem;margin:2rem auto;padding:0 1rem;font:1rem/1.6 system-ui,sans-serif}"
    "pre{background:#f4f4f4;padding:.8rem;overflow:auto}td,th{padding:.2rem .8rem .2rem 0;"
    "text-align:left;vertical-align:top}img{max-width:100%}"
    "@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}"
    "pre{background:#222}a{color:#8ab4f8}}"
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt docs",
        description=__doc__,
    )
    parser.add_argument("topic", nargs="?", help="name of a page, or part of it")
    parser.add_argument(
        "--browser", action="store_true", help="open it as a web page (extra: docs)"
    )
    options = parser.parse_args(arguments)
    pages = all_pages()
    if options.browser:
        return open_in_browser(pages, find(pages, options.topic or "index"))
    if options.topic is None:
        width = max(map(len, pages))
        for name, page in pages.items():
            print(f"{name:<{width}}  {title(page)}")
        print("\nread one: overt docs TOPIC; as a web page: overt docs TOPIC --browser")
        return 0
    print(pages[find(pages, options.topic)].read_text(encoding="utf-8"), end="")
    return 0


def all_pages() -> dict[str, Path]:
    """Return every page by its name: those of docs/, and one for each recipe."""
    pages = {page.stem: page for page in sorted(shipped("docs").rglob("*.md"))}
    recipes = sorted((PACKAGE / "recipes").glob("*/README.md"))
    return pages | {page.parent.name: page for page in recipes}


def find(pages: dict[str, Path], topic: str) -> str:
    """Return the name of the page that a user means."""
    name = Path(topic).stem.lower()
    partial = [page for page in pages if name in page]
    if name in pages:
        return name
    if len(partial) == 1:
        return partial[0]
    if partial:
        raise ConfigError(f"{topic!r} fits several pages: {', '.join(partial)}; name one of them")
    raise ConfigError(
        f"no page is called {topic!r}{nearest(name, list(pages))}; `overt docs` lists all"
    )


def open_in_browser(pages: dict[str, Path], topic: str) -> int:
    """Write all pages as HTML into a temporary folder and open one."""
    folder = Path(tempfile.mkdtemp(prefix="overt-docs-"))
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(as_html(page, set(pages)), encoding="utf-8")
    target = folder / f"{topic}.html"
    print(target)
    webbrowser.open(target.as_uri())
    return 0


def as_html(page: Path, names: set[str]) -> str:
    """Return one page as HTML; links to other pages lead to their HTML files."""
    try:
        import markdown
        from markdown.extensions.toc import TocExtension
    except ImportError as error:
        raise OvertError("web pages need `pip install 'overt[docs]'`") from error

    text = page.read_text(encoding="utf-8")
    toc = TocExtension(slugify=lambda heading, _: anchor(heading))
    body = markdown.markdown(text, extensions=["tables", "fenced_code", toc])
    body = LINK.sub(lambda link: _follow(page, names, link), body)
    body = re.sub(r'src="(?!\w+:)([^"]+)"', lambda m: _picture(page, m), body)
    head = f"<title>{html.escape(title(page))}</title><style>{STYLE}</style>"
    return f'<!doctype html><html lang="en"><meta charset="utf-8">{head}{body}</html>'


def _follow(page: Path, names: set[str], link: re.Match[str]) -> str:
    """Lead a link to the page's HTML, or to the file; without either, leave its text."""
    target, fragment, text = link.group(1), link.group(2) or "", link.group(3)
    path = page.parent / target
    in_examples = "examples" in Path(target).parts
    name = path.parent.name if path.name == "README.md" else path.stem
    if name in names and path.suffix == ".md" and not in_examples:
        return f'<a href="{name}.html{fragment}">{text}</a>'
    if path.exists():
        return f'<a href="{path.resolve().as_uri()}">{text}</a>'
    if in_examples:  # a wheel carries them elsewhere; the command copies them
        return f"{text} (<code>overt examples {Path(target).parts[2]}</code>)"
    return text


def _picture(page: Path, source: re.Match[str]) -> str:
    return f'src="{(page.parent / source.group(1)).resolve().as_uri()}"'
