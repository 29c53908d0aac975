"""`overt report RUN [RUN...]`: one HTML file about runs that opens anywhere, without a network.

Curves with zoom and hover, scores, pictures, restarts and skipped steps, settings with their
differences, environment and commands. A run is a folder below output_dir.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from overt.checks import within
from overt.files.atomic import new_file


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--output", type=Path, help="default: report.html in the first run folder")
    parser.add_argument(
        "--pictures", type=int, default=12, metavar="N", help="up to N of each name and run"
    )
    options = parser.parse_args(arguments)
    within("--pictures", options.pictures, 1)
    from overt.tools.report.page import build_page
    from overt.tools.report.reading import open_runs

    with _no_collection():
        runs = open_runs(options.runs)
        page = build_page(runs, options.pictures)
    output = options.output or options.runs[0] / "report.html"
    with new_file(output) as hidden:  # whoever reloads the page meanwhile sees the old one
        hidden.write_text(page, encoding="utf-8", errors="replace")
    print(f"{output}  ({len(page) / 1e6:.1f} MB, opens in any browser)")
    return 0


@contextmanager
def _no_collection() -> Iterator[None]:
    """Look for no garbage: nothing of a page is any before the page is written."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
