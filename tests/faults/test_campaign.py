"""The table of the campaign: a row stays until a later run has shown at least as much."""

from pathlib import Path

from campaign import Injection, Outcome, injections_of, run_all
from outcomes import BEGIN, END, Row, merged, read, replaced, table

OLD = Row("ends", 40, 40, 1.0, "2026-01-01, commit 1111111")
NEW = Row("ends", 40, 40, 2.0, "2026-02-02, commit 2222222")
COUNTS = {"kill": 40, "freeze": 4, "requeue": 2}


def test_an_unfinished_row_replaces_no_complete_one_unless_it_failed() -> None:
    old = {"kill": OLD, "requeue": OLD}
    few, bad = NEW._replace(injected=3, good=3), NEW._replace(injected=3, good=2)
    assert merged(old, {"kill": few}, COUNTS) == old
    assert merged(old, {"kill": bad}, COUNTS)["kill"] == bad
    assert merged(old, {"kill": NEW}, COUNTS)["kill"] == NEW
    assert list(merged(old, {"freeze": few}, COUNTS)) == ["kill", "freeze", "requeue"]
    smaller = OLD._replace(injected=2, good=2)
    assert merged({"kill": smaller}, {"kill": few}, COUNTS)["kill"] == few


def test_a_page_keeps_the_run_of_every_row() -> None:
    rows = {"kill": NEW, "requeue": OLD}
    page = replaced(f"above\n{BEGIN}\n{END}\nbelow", table(rows, {"freeze": "no ice", "kill": "x"}))
    assert read(page, COUNTS) == rows
    assert read(page, ["kill"]) == {"kill": NEW}
    assert "Not run: freeze (no ice)." in page
    assert "Not run: kill" not in page
    assert page.startswith("above")
    assert page.endswith("below")


def test_every_kind_comes_equally_far() -> None:
    order = injections_of(COUNTS, seed=7)
    assert len(set(order)) == len(order) == sum(COUNTS.values())
    half = [injection.kind for injection in order[: len(order) // 2]]
    assert [half.count(kind) for kind in COUNTS] == [20, 2, 1]
    assert order[0] == Injection("kill", 7)


def test_nothing_begins_after_the_time_is_up(tmp_path: Path) -> None:
    due = injections_of(COUNTS, seed=0)
    outcomes = list(run_all(due, jobs=2, seconds=0.0, folder=tmp_path))
    assert not any(isinstance(outcome, Outcome) for outcome in outcomes)
    assert sorted(outcomes) == sorted(due)
