"""`overt data VERB`: generate, pack and prepare data sets. This file does not import torch."""

from __future__ import annotations

import argparse

from overt.commands.data import images, people, skulls, tracking
from overt.progress import shown


def main(arguments: list[str]) -> int:
    """Run `overt data` with these arguments; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="overt data", description="Generate, pack and prepare data sets."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for field in (tracking, images, skulls, people):
        field.add_verbs(verbs)
    options = parser.parse_args(arguments)
    with shown():
        status: int = options.run(options)
    return status
