"""Texts of runs as part of the page: the newest of each name, runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from overt.tools.report.markup import Html, element, join
from overt.tools.report.run import Run, Sample
from overt.tools.report.sections import label

LONGEST = 10_000  # characters of a text


def samples(runs: Sequence[Run], most: int) -> Html | None:
    """Return the texts of all runs, up to `most` of each run and name, if there are any."""
    names = list(dict.fromkeys(sample.name for run in runs for sample in run.texts))
    blocks = []
    for name in names:
        figures = []
        for index, run in enumerate(runs):
            history = [sample for sample in run.texts if sample.name == name][-max(most, 1) :]
            if history:
                newest, older = history[-1], history[-2::-1]
                caption = element("figcaption", label(index, run), _step(newest))
                parts = [_shown(newest), *([_folded(older)] if older else [])]
                figures.append(element("figure", *parts, caption, class_="sample"))
        head = element("div", element("h3", name), class_="gallery-head")
        row = element("div", *figures, class_="pictures")
        blocks.append(element("section", head, row, class_="gallery"))
    return join(*blocks) if blocks else None


def _shown(sample: Sample) -> Html:
    more = f"\n... {len(sample.text) - LONGEST:,} more characters"
    return element("pre", sample.text[:LONGEST] + (more if len(sample.text) > LONGEST else ""))


def _step(sample: Sample) -> Html:
    return element("span", f"step {sample.step:,}", class_="quiet step")


def _folded(older: Sequence[Sample]) -> Html:
    parts = [join(_step(sample), _shown(sample)) for sample in older]
    return element("details", element("summary", f"{len(older)} earlier"), *parts)
