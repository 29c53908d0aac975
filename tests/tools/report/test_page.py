"""overt/tools/report/page.py: one file, complete, and no text of a run becomes markup in it."""

import json
import re
from pathlib import Path

import pytest
from sample_runs import EVIL, Reader, write_evil_run, write_run

from overt.tools.report.page import build_page, embed
from overt.tools.report.reading import open_run, open_runs


def test_everything_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        write_run(tmp_path / name, monkeypatch, lr) for name, lr in (("a", "0.1"), ("b", "0.2"))
    ]
    reader = Reader(build_page(open_runs(runs)))
    for title in (
        "Runs", "Main metrics", "What happened", "Training", "Collapse", "Speed and waiting",
        "Optimization", "Distributions", "Last scores", "Pictures", "Settings", "Environment",
        "Reproduce",
    ):  # fmt: skip
        assert title in reader.words, title
    for word in (
        "finished", "40 / 40", "step skipped", "encoder.0 (Linear, forward)", "optimizer.lr",
        "overt train recipe=probe exp_name=a", "torch", "only the 2 that differ",
    ):  # fmt: skip
        assert word in reader.words, word
    data = json.loads(reader.data)
    assert [run["name"] for run in data["runs"]] == ["a", "b"]
    kinds = [(mark["kind"], mark["step"]) for mark in data["runs"][0]["marks"]]
    assert sorted(kinds) == [("resume", 10), ("skip", 14)]
    names = [chart["name"] for chart in data["charts"]]
    assert names[0] == "train/loss"
    assert "weights/encoder" in names
    (loss,) = [chart for chart in data["charts"] if chart["name"] == "train/loss"]
    assert [series["run"] for series in loss["series"]] == [0, 1]
    assert loss["series"][0]["values"][0][6] is None  # NaN is a hole
    assert loss["series"][1]["steps"] == list(range(2, 41, 2))
    differing = [
        attributes for tag, attributes in reader.tags if attributes.get("class") == "differs"
    ]
    assert len(differing) == 2  # exp_name and optimizer.lr


def test_nothing_is_named_that_a_browser_would_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = build_page([open_run(write_run(tmp_path / "a", monkeypatch))])
    reader = Reader(page)
    addresses = [
        value
        for _, attributes in reader.tags
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action", "data") and value
    ]
    assert addresses
    assert all(value.startswith(("data:", "#")) for value in addresses)
    assert "@import" not in page
    assert not re.search(r"url\((?!data:)", page)
    (policy,) = [a["content"] for _, a in reader.tags if a.get("http-equiv")]
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_no_text_of_a_run_becomes_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = Reader(build_page([open_run(write_run(tmp_path / "clean", monkeypatch))]))
    folder = write_evil_run(tmp_path / "evil", monkeypatch)
    page = build_page([open_run(folder, EVIL)])
    reader = Reader(page)
    scripts = [tag for tag, _ in reader.tags if tag == "script"]
    assert len(scripts) == 3  # the data, the library, our own
    assert {tag for tag, _ in reader.tags} == {tag for tag, _ in clean.tags}
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert reader.words.count(EVIL) >= 5
    data = json.loads(reader.data)
    assert data["runs"][0]["name"] == EVIL
    assert any(EVIL in chart["name"] for chart in data["charts"])


def test_data_for_the_script_holds_no_markup() -> None:
    assert json.loads(embed({"a": "</script>\u2028&"})) == {"a": "</script>\u2028&"}
    assert not set("<>&\u2028") & set(embed("</script>\u2028&"))


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"time": 1.0, "kind": "start"}\n')
    assert "Overview" in build_page([open_run(tmp_path)])
