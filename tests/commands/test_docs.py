"""`overt docs` prints a page, and makes web pages whose links lead to one another."""

import re
import shutil
from pathlib import Path

import pytest

from overt.cli import main
from overt.commands import docs


def test_pages_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^checkpoints +Checkpoints$", listed, re.MULTILINE)
    assert re.search(r"^cotracker3 ", listed, re.MULTILINE)
    assert main(["docs", "trouble"]) == 0  # a part of a name
    assert capsys.readouterr().out.startswith("# Troubleshooting")


@pytest.mark.parametrize(
    ("topic", "expected"),
    [("chekpoints", "did you mean checkpoints"), ("coming", "coming_from_lbm"), ("xyz", "lists")],
)
def test_a_wrong_topic_is_told_the_right_ones(
    topic: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["docs", topic]) == 2
    assert expected in capsys.readouterr().err


def test_web_pages_link_to_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs.tempfile, "mkdtemp", lambda **_: str(tmp_path))
    opened: list[str] = []
    monkeypatch.setattr(docs.webbrowser, "open", opened.append)
    assert main(["docs", "index", "--browser"]) == 0
    assert opened == [(tmp_path / "index.html").as_uri()]
    text = (tmp_path / "index.html").read_text()
    targets = re.findall(r'href="([\w.]+\.html)', text)
    assert "checkpoints.html" in targets
    assert "cotracker3.html" in targets
    assert all((tmp_path / target).is_file() for target in targets)


def test_web_pages_have_their_anchors_and_no_dead_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only the pages are there, as in a wheel: what is elsewhere becomes text."""
    checkout = docs.shipped("docs")
    wheel = tmp_path / "shipped" / "docs"
    shutil.copytree(checkout, wheel)
    monkeypatch.setattr(docs, "shipped", lambda name: tmp_path / "shipped" / name)
    pages = docs.all_pages()
    assert "track_a_video" in pages
    written = {f"{name}.html": docs.as_html(page, set(pages)) for name, page in pages.items()}
    for name, text in written.items():
        for target, fragment in re.findall(r'<a href="(?!\w+:)([^"#]*)#?([^"]*)"', text):
            other = written.get(target or name)
            assert other is not None, f"{name} links to {target}"
            assert not fragment or f'id="{fragment}"' in other, f"{name}: {target}#{fragment}"
    assert "overt examples own_recipe" in written["index.html"]
