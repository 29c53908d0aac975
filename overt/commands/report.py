"""`overt report RUN [RUN...]`: one HTML file about runs that opens anywhere, without a network.

Curves with zoom and hover, scores, pictures, restarts and skipped steps, settings with their
differences, environment and commands. A run is a folder below output_dir. With --serve the page
follows running runs in a browser of this host; RUN may then be a folder of runs (default: runs).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from overt.checks import within
from overt.files.atomic import new_file
from overt.garbage import no_collection

TOKEN = re.compile(r"[\w.~-]{8,128}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--output", type=Path, help="default: report.html in the first run folder")
    parser.add_argument(
        "--pictures", type=int, default=12, metavar="N", help="up to N of each name and run"
    )
    parser.add_argument(
        "--pin", action="append", default=[], metavar="NAME",
        help="show this metric first; * matches any text; repeatable",
    )  # fmt: skip
    parser.add_argument("--serve", action="store_true", help="follow the runs in a browser")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address of --serve; default: this host only"
    )
    parser.add_argument("--port", type=int, default=8765, help="port of --serve; 0: any free port")
    parser.add_argument(
        "--token", help="--serve: token that browsers must send; other hosts always need one"
    )
    options = parser.parse_args(arguments)
    within("--pictures", options.pictures, 1)
    if options.serve:
        return _serve(parser, options)
    if not options.runs:
        parser.error("name a run folder; `overt runs` lists them, --serve follows all of them")
    from overt.tools.report.page import build_page
    from overt.tools.report.reading import open_runs

    with no_collection():  # nothing becomes garbage before the page is written
        runs = open_runs(options.runs)
        page = build_page(runs, options.pictures, options.pin)
    output = options.output or options.runs[0] / "report.html"
    with new_file(output) as hidden:  # whoever reloads the page meanwhile sees the old one
        hidden.write_text(page, encoding="utf-8", errors="replace")
    print(f"{output}  ({len(page) / 1e6:.1f} MB, opens in any browser)")
    return 0


def _serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    from overt.tools.report.serve import ReportServer, Source

    within("--port", options.port, 0, 65535)
    if options.output is not None:
        parser.error("--serve writes no file; drop --output")
    if options.token is not None and not TOKEN.fullmatch(options.token):
        parser.error("--token must be 8 to 128 letters, digits or characters of ._~-")
    source = Source(options.runs or [Path("runs")], options.pictures, options.pin)
    source.runs()  # a folder that does not exist is refused before anyone is told an address
    with ReportServer(source, options.host, options.port, options.token) as server:
        print(f"{server.address}  (read-only; Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
