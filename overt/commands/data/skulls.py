"""`overt data`: skulls with defects and implants."""

from __future__ import annotations

import argparse

from overt.commands.data.arguments import (
    Verbs,
    add_seed,
    add_verb,
    not_negative,
    positive,
    side_length,
)


def add_verbs(verbs: Verbs) -> None:
    """Add the verbs of this field."""
    _add_skulls(verbs)
    _add_prepare(verbs)


def _add_skulls(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "skulls",
        _skulls,
        help="synthetic skulls with defects and implants, in SkullBreak's layout",
        description="Write synthetic skulls with five defects each: volumes, point clouds "
        "and the lists train.csv and test.csv. Existing skulls are kept.",
        root="folder of the data set",
    )
    parser.add_argument("--skulls", type=positive, default=20, help="how many skulls")
    parser.add_argument("--side", type=side_length, default=64, help="voxels along a side")
    parser.add_argument("--points", type=positive, default=8000, help="points of a cloud")
    parser.add_argument("--workers", type=not_negative, default=0, help="worker processes")
    parser.add_argument(
        "--kind", choices=("skulls", "shells"), default="skulls", help="shells: coarse and quick"
    )
    add_seed(parser)


def _add_prepare(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "prepare",
        _prepare,
        help="SkullBreak or SkullFix volumes into point clouds and lists",
        description="Write a point cloud of the surface next to every volume of "
        "ROOT/complete_skull, ROOT/defective_skull and ROOT/implant, and train.csv and test.csv "
        "if they are missing. Existing complete clouds are kept.",
        root="folder of the data set",
    )
    parser.add_argument(
        "--dataset", choices=("skullbreak", "skullfix"), default="skullbreak", help="its layout"
    )
    parser.add_argument("--points", type=positive, default=400_000, help="points of a cloud")
    parser.add_argument("--seed", type=not_negative, default=42, help="seed of points and lists")
    parser.add_argument("--workers", type=not_negative, default=0, help="worker processes")
    parser.add_argument("--force", action="store_true", help="write all clouds again")


def _skulls(options: argparse.Namespace) -> int:
    from overt.data.skulls.synthetic import write_skulls

    written = write_skulls(
        options.root,
        options.skulls,
        options.side,
        options.points,
        options.seed,
        workers=options.workers,
        kind=options.kind,
    )
    print(
        f"{options.root}: {options.skulls} skulls with 5 defects each, {options.side}^3 voxels, "
        f"{options.points} points a cloud; {written} written, {options.skulls - written} were there"
    )
    return 0


def _prepare(options: argparse.Namespace) -> int:
    from overt.data.skulls.prepare import prepare

    done = prepare(
        options.root,
        options.dataset,
        options.points,
        options.seed,
        options.workers,
        options.force,
    )
    print(
        f"{options.root}: {done.written} clouds of {options.points} points written, {done.kept} "
        f"were there, {len(done.problems)} could not be made"
    )
    for problem in done.problems:
        print(f"  {problem}")
    return 1 if done.problems else 0
