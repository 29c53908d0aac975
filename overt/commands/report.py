"""`overt report RUN [RUN...]`: one HTML file about runs that opens anywhere, without a network.

Curves with zoom and hover, scores, pictures, restarts and skipped steps, settings with their
differences, environment and commands. A run is a folder below output_dir.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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

    runs = open_runs(options.runs)
    output = options.output or options.runs[0] / "report.html"
    page = build_page(runs, options.pictures)
    with new_file(output) as hidden:  # whoever reloads the page meanwhile sees the old one
        hidden.write_text(page, encoding="utf-8", errors="replace")
    print(f"{output}  ({len(page) / 1e6:.1f} MB, opens in any browser)")
    return 0
