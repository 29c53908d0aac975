"""How fast training samples are read: each section times one loader against its plain form.

    python benchmarks/loader.py sequences                  24 frames of 512 x 512, PNGs or one file
    python benchmarks/loader.py clips --frames 120         training clips of CoTracker3
    python benchmarks/loader.py images --size 750 1000     views of JPEGs, in CPU time
    python benchmarks/loader.py sequences --count 2 --frames 4 --size 64 64   to try the script

One process reads; files are in the system's cache after the first round, as they are in training
from memory-rich machines. Times are medians per sample.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from command import positive
from PIL import Image

from overt.config import load
from overt.data.images.folder import ImageFolder
from overt.data.images.transforms import TrainingTransform
from overt.data.rng import sample_rng
from overt.data.tracking.clips import Clip, read_clip
from overt.data.tracking.kubric import list_sequences
from overt.data.tracking.kubric import read_tracks as read_tracks_of
from overt.data.tracking.packed import (
    STORAGES,
    find_sequences,
    pack_sequences,
    read_frames,
    read_tracks,
)
from overt.data.tracking.synthetic_kubric import write_sequences
from overt.recipes.cotracker3.data import draw_clip, frame_indices, random_crop
from overt.recipes.hjepa.data import read_view

CLIPS = 12


def median_seconds(
    work: Callable[[int], object],
    count: int,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The median over `rounds` passes of the seconds per item, after one pass to warm up."""
    times = []
    for number in range(rounds + 1):
        began = clock()
        for index in range(count):
            work(index)
        if number:
            times.append((clock() - began) / count)
    return statistics.median(times)


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def sequences(options: argparse.Namespace) -> None:
    """Whole sequences with their tracks: folders of PNGs against packed files."""
    height, width = options.size
    with tempfile.TemporaryDirectory() as scratch:
        folders = Path(scratch) / "folders"
        write_sequences(
            folders,
            options.count,
            frames=options.frames,
            height=height,
            width=width,
            points=options.points,
        )
        roots = {"folder of PNGs": folders}
        for storage in STORAGES:
            roots[f"packed, {storage}"] = Path(scratch) / storage
            pack_sequences(folders, Path(scratch) / storage, storage)
        print(
            f"{options.count} sequences of {options.frames} frames, {height}x{width}, "
            f"{options.points} tracks; one process"
        )
        baseline = None
        for name, root in roots.items():
            found = find_sequences(root)

            def read(index: int, found: list[Path] = found) -> np.ndarray:
                read_tracks(found[index])
                return read_frames(found[index], range(options.frames))

            seconds = median_seconds(read, len(found), options.rounds)
            baseline = baseline or seconds
            size = folder_bytes(root) / options.count / 1e6
            print(
                f"  {name:16} {1000 * seconds:8.1f} ms a sequence  {baseline / seconds:6.2f} x  "
                f"{size:7.2f} MB"
            )


def clips(options: argparse.Namespace) -> None:
    """Clips of CoTracker3: the frames that are used, against all frames and then the cut."""
    height, width = options.size
    with tempfile.TemporaryDirectory() as scratch:
        write_sequences(
            scratch,
            options.count,
            frames=options.frames,
            height=height,
            width=width,
            points=options.points,
        )
        crop = [height * 3 // 4, width]
        longest = options.frames // 2
        overrides = [
            "recipe=cotracker3_offline",
            f"data.root={scratch}",
            "data.held_out=0",
            "data.augment=false",
            f"data.crop_size={crop}",
            f"data.sequence_len={longest}",
            f"data.random_sequence_len={max(1, longest // 2)}",
            f"data.traj_per_sample={min(512, options.points // 4)}",
        ]
        settings = load(overrides).settings.data
        sequences = list_sequences(Path(scratch))

        def used(index: int) -> object:
            return draw_clip(sequences[index % len(sequences)], settings, sample_rng(0, 0, index))

        def every(index: int) -> object:
            sequence = sequences[index % len(sequences)]
            whole = read_clip(sequence, read_tracks_of(sequence), np.arange(options.frames))
            rng = sample_rng(0, 0, index)
            chosen = frame_indices(options.frames, settings, rng, sequence)
            part = Clip(whole.frames[chosen], whole.coords_xy[:, chosen], whole.visible[:, chosen])
            return random_crop(part, settings.crop_size, rng, sequence)

        print(
            f"clips of {longest // 2} to {longest - 1} frames, {crop[0]}x{crop[1]}, from "
            f"{options.count} sequences of {options.frames} frames, {height}x{width}; one process"
        )
        # Lengths are drawn: many clips, the same ones for both.
        plain = median_seconds(every, CLIPS, options.rounds)
        ours = median_seconds(used, CLIPS, options.rounds)
        print(f"  all frames, then the cut  {1 / plain:7.2f} clips/s")
        print(f"  the frames that are used  {1 / ours:7.2f} clips/s  {plain / ours:.2f} x")


def images(options: argparse.Namespace) -> None:
    """Views of JPEGs, 224 x 224: decoded whole, and no larger than the view needs."""
    height, width = options.size
    transform = TrainingTransform((224, 224), scale=(0.3, 1.0))
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "class").mkdir()
        for index in range(options.count):
            coarse = sample_rng(0, 0, index).integers(
                0, 256, (height // 8, width // 8, 3), np.uint8
            )
            picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
            picture.save(Path(scratch) / "class" / f"{index}.jpg", quality=90)
        source = ImageFolder(scratch)
        ways: dict[str, Callable[[int], object]] = {
            "decoded whole": lambda n: transform(source.read(n)[0], sample_rng(1, 0, n)),
            "reduced_decode": lambda n: read_view(source, n, transform, sample_rng(1, 0, n))[0],
        }
        print(f"{options.count} JPEGs of {height}x{width}; one process")
        baseline = None
        for name, view in ways.items():
            seconds = median_seconds(view, options.count, options.rounds, time.process_time)
            baseline = baseline or seconds
            print(f"  {name:16} {1 / seconds:8.1f} images/s  {baseline / seconds:6.2f} x")


SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "sequences": sequences,
    "clips": clips,
    "images": images,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", choices=tuple(SECTIONS))
    parser.add_argument("--count", type=positive, default=4, help="sequences")
    parser.add_argument("--frames", type=positive, default=24)
    parser.add_argument("--size", type=positive, nargs=2, default=(512, 512), metavar=("H", "W"))
    parser.add_argument("--points", type=positive, default=2048)
    parser.add_argument("--rounds", type=positive, default=3)
    options = parser.parse_args(arguments)
    SECTIONS[options.section](options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
