"""One HTML file that shows runs: everything inside, nothing fetched, no text taken for markup.

The page's own policy forbids the browser to load anything or to run any script but the ones whose
hashes it names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from overt.tools.report import comparison, sections, text, texts
from overt.tools.report.charts import (
    FOLDED,
    MEANING,
    SECTIONS,
    Chart,
    chart_data,
    choose_charts,
    describe,
)
from overt.tools.report.markup import Html, breakable, element, join
from overt.tools.report.parallel import parallel
from overt.tools.report.run import Run
from overt.tools.report.sections import COLORS

SEEN_BEFORE_PICTURES = ("overview", "pinned", "compare", "happened", "training", "evaluation")
ON_A_PHONE = ("overview", "pinned", "compare")  # open there; the other parts unfold
CLOSED = (*FOLDED, "scores", "environment")
VALUES_SHOWN = 4  # runs whose newest values follow the name of a chart
OPEN_AT_FIRST = 24  # charts of a section that are laid out at once; the rest unfold
CHIPS_SHOWN = 8  # runs with a switch in the toolbar; more are folded
TIMELINES_SHOWN = 4
SCRIPTS = ("curves.js", "toolbar.js", "tables.js")


def build_page(
    runs: Sequence[Run], most_pictures: int = 12, pins: Sequence[str] = (), is_live: bool = False
) -> str:
    """Return the whole page for one or several runs; a live one asks its server for news."""
    charts = choose_charts(runs, pins)
    gallery, gallery_data = _galleries(runs, most_pictures)
    several, differing = len(runs) > 1, comparison.differing_settings(runs)
    overview = comparison.runs_table(runs, differing) if several else sections.overview(runs)
    parts: list[tuple[str, str, Html | None]] = [
        ("overview", "Runs" if several else "Overview", overview),
        ("happened", "What happened", _happened(runs)),
    ]
    for section, title in SECTIONS.items():
        chosen = [index for index, chart in enumerate(charts) if chart.section == section]
        if not chosen:
            continue
        figures = [_figure(index, charts[index], runs) for index in chosen]
        part = (section, title, _charts(section, figures))
        parts.insert(1 if section == "pinned" else len(parts), part)
    parts.insert(2, ("compare", "Settings and scores", parallel(runs, differing)))
    # Results come before diagnostics.
    position = 1 + max(
        (number for number, part in enumerate(parts) if part[0] in SEEN_BEFORE_PICTURES), default=0
    )
    parts.insert(position, ("pictures", "Pictures", gallery))
    parts.insert(position + 1, ("texts", "Texts", texts.samples(runs, most_pictures)))
    parts += [
        ("scores", "Last scores", sections.scores(runs)),
        ("settings", "Settings", sections.settings(runs)),
        ("environment", "Environment", sections.environment(runs)),
        ("reproduce", "Reproduce", sections.reproduce(runs)),
    ]
    data = {
        "runs": [{"name": run.name, "marks": sections.marks(run)} for run in runs],
        "charts": [chart_data(chart, runs) for chart in charts],
        "galleries": gallery_data,
        "live": is_live,
    }
    shown = [(name, title, body) for name, title, body in parts if body is not None]
    return _document(runs, shown, data)


def _galleries(runs: Sequence[Run], most: int) -> tuple[Html | None, dict[str, Any]]:
    if not any(run.pictures for run in runs):
        return None, {}
    from overt.tools.report.pictures import galleries  # imports Pillow

    return galleries(runs, most)


def _figure(index: int, chart: Chart, runs: Sequence[Run]) -> Html:
    """The frame of a chart, which the script fills; its description says what will be in it."""
    words = f"{chart.name}. {describe(chart, runs)}. Arrow keys move the cursor."
    also = Html("")
    if chart.duplicates:
        names = [join(", " if number else "", breakable(name))
                 for number, name in enumerate(chart.duplicates)]  # fmt: skip
        also = element("p", "same values: ", *names, class_="quiet also")
    return element(
        "figure",
        element("figcaption", element("span", breakable(chart.name)), _last_values(chart, runs)),
        element(
            "div",
            class_="plot",
            data_chart=index,
            tabindex="0",
            role="application",
            aria_roledescription="chart",
            aria_label=words,
        ),
        also,
        element("p", class_="said visually-hidden", role="status"),
        class_="chart",
        data_name=chart.name.lower(),
    )


def _last_values(chart: Chart, runs: Sequence[Run]) -> Html:
    """Return the newest value of each run, in its color; the chart's description says it too."""
    metric = chart.parts[len(chart.parts) // 2]
    if len(runs) > VALUES_SHOWN:
        return element("span", class_="last")
    shown = [index for index, run in enumerate(runs) if metric in run.curves][:VALUES_SHOWN]
    values = [
        element("span", text.number(runs[index].curves[metric].last), class_=f"run{index % COLORS}")
        for index in shown
    ]
    return element("span", *values, class_="last", aria_hidden="true")


def _charts(section: str, figures: list[Html]) -> Html:
    note = element("p", MEANING[section], class_="quiet") if section in MEANING else Html("")
    first = element("div", *figures[:OPEN_AT_FIRST], class_="grid")
    if len(figures) <= OPEN_AT_FIRST:
        return join(note, first)
    folded = figures[OPEN_AT_FIRST:]
    details = element(
        "details",
        element("summary", f"{len(folded)} more"),
        element("div", *folded, class_="grid"),
    )
    return join(note, first, details)


def _happened(runs: Sequence[Run]) -> Html | None:
    if not any(run.sessions for run in runs):
        return None
    key = element(
        "p",
        element("span", class_="key session"), " training ",
        element("span", class_="key failed"), " ended with an error ",
        element("span", class_="key restart"), " restart ",
        element("span", class_="key skip"), " skipped step",
        class_="quiet keys",
    )  # fmt: skip
    events = element(
        "details", element("summary", "all events"), sections.happened(runs), class_="events"
    )
    bars = sections.timeline(runs)
    if len(runs) > TIMELINES_SHOWN:
        bars = element("details", element("summary", f"{len(runs)} runs"), bars)
    return join(key, bars, events)


def _document(runs: Sequence[Run], parts: list[tuple[str, str, Html]], data: dict[str, Any]) -> str:
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    style = Html(asset("uPlot.min.css") + asset("report.css"))
    library = Html(asset("uPlot.iife.min.js"))
    script = Html("".join(asset(name) for name in SCRIPTS))
    server = "connect-src 'self'; " if data["live"] else ""
    policy = (
        "default-src 'none'; img-src data:; media-src data:; base-uri 'none'; form-action 'none'; "
        f"{server}style-src {_hash(style)}; script-src {_hash(library)} {_hash(script)}"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · overt report"),
        element("style", style),
    )
    links = [element("a", name_of, href=f"#{name}") for name, name_of, _ in parts]
    body = element(
        "body",
        element("a", "Skip to the runs", href="#overview", class_="visually-hidden skip"),
        element(
            "header",
            element(
                "div",
                element("p", "overt report", class_="quiet brand"),
                element("h1", breakable(title)),
                element("p", _footer(data["live"]), class_="quiet", id="made", role="status"),
            ),
            element("button", "Dark", type="button", id="theme", hidden=True),
            class_="top",
        ),
        element("nav", *links, aria_label="Sections", tabindex="0"),
        element(
            "main",
            _toolbar(runs),
            *(_part(name, name_of, content) for name, name_of, content in parts),
        ),
        element(
            "footer",
            element(
                "details",
                element("summary", "Charts are drawn by uPlot, under the MIT license"),
                element("pre", asset("uPlot.LICENSE")),
            ),
            class_="quiet",
        ),
        element("noscript", "Charts need JavaScript; the rest of this page does not."),
        element("script", embed(data), type="application/json", id="data"),
        element("script", library),
        element("script", script),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _footer(is_live: bool) -> str:
    return f"{'live, ' if is_live else 'generated '}{text.moment(time.time())}"


def _part(name: str, title: str, content: Html) -> Html:
    """Return a section that folds: what matters is open, and on a phone only what matters most."""
    kind = "part" if name in ON_A_PHONE else "part folded" if name in CLOSED else "part later"
    folded = element(
        "details",
        element("summary", element("h2", title)),
        content,
        open=name not in CLOSED,
        class_=kind,
    )
    return element("section", folded, id=name)


def _toolbar(runs: Sequence[Run]) -> Html:
    chips = [
        element(
            "button",
            sections.label(index, run),
            type="button",
            class_="chip",
            title=run.name,
            data_run=index,
            aria_pressed="true",
        )
        for index, run in enumerate(runs)
    ]
    switches = element("div", *chips, class_="chips", role="group", aria_label="Runs shown")
    if len(runs) > CHIPS_SHOWN:
        words = f"{len(runs)} runs"
        switches = element("details", element("summary", words), switches, class_="many")
    choice = [
        element("button", "steps", type="button", data_axis="steps", aria_pressed="true"),
        element("button", "hours", type="button", data_axis="hours", aria_pressed="false"),
    ]
    smooth = element("input", type="range", id="smooth", min=0, max=0.99, step=0.01, value=0)
    return element(
        "div",
        switches if len(runs) > 1 else Html(""),
        element("div", *choice, class_="switch", role="group", aria_label="Horizontal axis"),
        element("button", "log", type="button", id="logarithmic", aria_pressed="false",
                title="logarithmic vertical axis"),
        element("label", "smooth ", smooth),
        element("label", "find ", element("input", type="search", id="find", placeholder="loss")),
        element("button", "whole range", type="button", id="reset", hidden=True),
        class_="toolbar",
        role="toolbar",
        aria_label="Curves",
    )  # fmt: skip


def asset(name: str) -> str:
    return files("overt.tools.report").joinpath("assets", name).read_text()


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def embed(data: Any) -> Html:
    """JSON that cannot end the script element around it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)
