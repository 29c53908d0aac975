"""`overt data`: videos with tracks."""

from __future__ import annotations

import argparse
from typing import Any

from overt.commands.arguments import whole_number
from overt.commands.data.arguments import (
    Verbs,
    add_seed,
    add_verb,
    not_negative,
    positive,
    side_length,
    speed,
)
from overt.data.tracking.procedural_settings import MOST_POINTS
from overt.errors import ConfigError


def add_verbs(verbs: Verbs) -> None:
    """Add the verbs of this field."""
    _add_kubric(verbs)
    _add_tapvid(verbs)
    _add_photographs(verbs)
    _add_kubric_lbm(verbs)


def _add_kubric(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "kubric",
        _kubric,
        help="synthetic sequences in Kubric's format, with exact tracks",
        description="Write synthetic sequences in Kubric's on-disk format: textured shapes that "
        "move over a moving background, with exact tracks and occlusions. Existing sequences are "
        "kept, so an interrupted or larger set continues where it stopped.",
        root="folder of the data set",
    )
    parser.add_argument("--sequences", type=positive, default=64, help="how many sequences")
    _add_scene(parser, points=256)


def _add_tapvid(verbs: Verbs) -> None:
    parser = add_verb(
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
    parser.add_argument("--videos", type=positive, default=4, help="how many videos")
    _add_scene(parser, points=32)


def _add_photographs(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "photographs",
        _photographs,
        help="photographs that move by known transforms, as a test set in TAP-Vid's layout",
        description="Write videos of layered photographs that move, with exact tracks and "
        "occlusions, into ROOT/tapvid_davis: the clips of data=procedural, with all queries in "
        "the first frame. Use photographs that are not in the training data.",
        root="folder of the data set",
        textures="folder of photographs",
    )
    parser.add_argument("--videos", type=positive, default=10, help="how many videos")
    parser.add_argument("--frames", type=positive, default=24, help="frames of each")
    parser.add_argument(
        "--side", type=side_length, default=256, help="height and width, a multiple of 8"
    )
    points = whole_number(1, most=MOST_POINTS)
    parser.add_argument("--points", type=points, default=64, help="tracks of each")
    add_seed(parser)


def _add_kubric_lbm(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "kubric_lbm",
        _kubric_lbm,
        help="sequences of 24 frames for LBM, cut from Kubric in CoTracker's layout",
        description="Cut the sequences of SOURCE into runs of equal length and write each as a "
        "sequence of OUT. Images are linked where the file system allows it. What is too short or "
        "shows no track is skipped and listed; existing sequences are kept.",
        source="folder of sequences",
        out="folder of the new data set",
    )
    parser.add_argument("--frames", type=positive, default=24, help="frames of each")
    parser.add_argument(
        "--tracks", type=positive, default=2048, help="maximum number of tracks per sequence"
    )
    parser.add_argument("--runs", type=positive, help="of each sequence; default: all that fit")


def _add_scene(parser: argparse.ArgumentParser, points: int) -> None:
    parser.add_argument("--frames", type=positive, default=24, help="frames of each")
    parser.add_argument(
        "--size",
        type=side_length,
        nargs=2,
        default=(96, 128),
        metavar=("HEIGHT", "WIDTH"),
        help="pixels of a frame",
    )
    parser.add_argument("--points", type=positive, default=points, help="tracks of each")
    add_seed(parser)
    parser.add_argument(
        "--shapes", type=not_negative, default=6, help="moving shapes in front of the background"
    )
    parser.add_argument(
        "--speed", type=speed, default=2.5, help="pixels per frame of the fastest shape"
    )


def _scene(options: argparse.Namespace) -> dict[str, Any]:
    height, width = options.size
    names = ("frames", "points", "seed", "shapes", "speed")
    return {"height": height, "width": width, **{name: getattr(options, name) for name in names}}


def _kubric(options: argparse.Namespace) -> int:
    from overt.data.tracking.synthetic_kubric import write_sequences

    written = write_sequences(options.root, options.sequences, **_scene(options))
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

    values = OmegaConf.load(CONF / "scene" / "procedural.yaml")
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


def _kubric_lbm(options: argparse.Namespace) -> int:
    from overt.data.tracking.kubric_lbm import convert

    result = convert(options.source, options.out, options.frames, options.tracks, options.runs)
    print(
        f"{options.out}: {len(result.written)} sequences of {options.frames} frames written, "
        f"{result.kept} were there, {len(result.left_out)} skipped"
    )
    for name, reason in result.left_out.items():
        print(f"  skipped: {name}: {reason}")
    return 0
