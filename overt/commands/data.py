"""`overt data VERB`: make data sets ready. This file does not import torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Run `overt data` with these arguments; returns the exit status."""
    parser = argparse.ArgumentParser(prog="overt data", description="Make data sets ready.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_kubric(verbs)
    options = parser.parse_args(arguments)
    status: int = options.run(options)
    return status


def _add_kubric(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = verbs.add_parser(
        "kubric",
        help="synthetic sequences in Kubric's format, with exact tracks",
        description="Write synthetic sequences in Kubric's on-disk format: textured shapes that "
        "move over a moving background, with exact tracks and occlusions. Sequences that are there "
        "already are kept, so that an interrupted or larger set goes on where it stopped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder of the data set")
    parser.add_argument("--sequences", type=_positive, default=64, help="how many sequences")
    parser.add_argument("--frames", type=_positive, default=24, help="frames of a sequence")
    parser.add_argument(
        "--size",
        type=_side,
        nargs=2,
        default=(96, 128),
        metavar=("HEIGHT", "WIDTH"),
        help="pixels of a frame",
    )
    parser.add_argument("--points", type=_positive, default=256, help="tracks of a sequence")
    parser.add_argument("--seed", type=_not_negative, default=0, help="another seed, other data")
    parser.add_argument(
        "--shapes", type=_not_negative, default=6, help="moving shapes in front of the background"
    )
    parser.add_argument(
        "--speed", type=_speed, default=2.5, help="pixels per frame of the fastest shape"
    )
    parser.set_defaults(run=_kubric)


def _kubric(options: argparse.Namespace) -> int:
    from overt.data.synthetic_kubric import write_sequences

    height, width = options.size

    def report(sequence: Path) -> None:
        if sys.stdout.isatty():
            print(f"\rsequence {sequence.name} of {options.sequences}", end="\r", flush=True)

    written = write_sequences(
        options.root,
        options.sequences,
        frames=options.frames,
        height=height,
        width=width,
        points=options.points,
        seed=options.seed,
        shapes=options.shapes,
        speed=options.speed,
        report=report,
    )
    print(
        f"{options.root}: {options.sequences} sequences of {options.frames} frames, "
        f"{height}x{width}, {options.points} tracks each; {len(written)} written, "
        f"{options.sequences - len(written)} were there"
    )
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}, but at least 1 is needed")
    return number


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number}, but at least 0 is needed")
    return number


def _side(text: str) -> int:
    number = int(text)
    if number < 16:
        raise argparse.ArgumentTypeError(f"{number} pixels, but at least 16 are needed")
    return number


def _speed(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}, but a number from 0 on is needed")
    return number
