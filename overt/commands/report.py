"""`overt report RUN [RUN...]`: one HTML file about runs that opens anywhere, without a network.

Curves with zoom and hover, scores, pictures, restarts and skipped steps, settings with their
differences, environment and commands. A run is a folder below output_dir.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from overt.errors import OvertError


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--output", type=Path, help="default: report.html in the first run folder")
    parser.add_argument(
        "--pictures", type=int, default=12, metavar="N", help="at most so many of each name and run"
    )
    options = parser.parse_args(arguments)
    if options.pictures < 1:
        raise OvertError(f"--pictures {options.pictures}; allowed is 1 or more")
    from overt.tools.report.page import build_page
    from overt.tools.report.run import open_runs

    runs = open_runs(options.runs)
    output = options.output or options.runs[0] / "report.html"
    page = build_page(runs, options.pictures)
    output.parent.mkdir(parents=True, exist_ok=True)
    # Whoever reloads the page while it is written sees the old one.
    temporary = output.with_name(f".{output.name}.tmp")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, output)
    print(f"{output}  ({len(page) / 1e6:.1f} MB, opens in any browser)")
    return 0
