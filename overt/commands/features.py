"""`overt features IMAGES --checkpoint PATH --output FILE`: write image features to a file.

IMAGES is a folder with one subfolder per class, a pack made by `overt data`, or a .npz archive.
FILE is a safetensors file with `features` (n, D), `labels` (n,) and the names; in Python,
`overt.metrics.features.load_features` reads it. On several processes (`torchrun -m overt features
...`) each image is encoded once. Unreadable images are skipped and reported.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overt.checkpoint.trained import load_model
from overt.commands.arguments import configure_model, model_options, whole_number
from overt.config import build_recipe
from overt.errors import ConfigError, DataError, need_folder
from overt.progress import shown
from overt.tasks import ImageEncoder, need_task

if TYPE_CHECKING:
    from overt.data.images.folder import ReadableImages
    from overt.metrics.features import Features


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt features",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[model_options()],
    )
    parser.add_argument("images", type=Path, metavar="IMAGES")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="safetensors")
    parser.add_argument(
        "--unlabeled", "--unlabelled", action="store_true", help="images without classes"
    )
    parser.add_argument("--batch-size", type=whole_number(1), default=256, help="default: 256")
    parser.add_argument(
        "--workers", type=whole_number(0), default=min(4, len(os.sched_getaffinity(0))),
        help="loader processes (up to 4, one per core)",
    )  # fmt: skip
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings to change"
    )
    options = parser.parse_intermixed_args(arguments)
    if options.output.is_dir():
        raise DataError(f"--output {options.output} is a folder; name a file in it")
    if options.output.suffix not in ("", ".safetensors"):  # who opens an .npy expects an array
        raise ConfigError(
            f"--output {options.output}: features are written as safetensors; use a name such as "
            f"{options.output.with_suffix('.safetensors')}"
        )
    need_folder("--output, its folder", options.output.parent)  # before hours of encoding
    if any(word.startswith("data.labeled=") for word in options.overrides):
        raise ConfigError(
            "data.labeled belongs to the training images; here --unlabeled reads IMAGES without "
            "classes"
        )
    config = configure_model(options.checkpoint, options.recipe, options.overrides, options.package)

    import torch

    from overt.data.images.folder import ReadableImages
    from overt.data.images.opening import open_images
    from overt.distributed import init_distributed, shutdown
    from overt.engine.precision import AUTOCAST, set_precision
    from overt.evaluation import own_batches, read_ahead
    from overt.metrics.features import Features, export_features, gather_features

    images = ReadableImages(open_images(str(options.images), not options.unlabeled))
    world = init_distributed(config.training.device)
    recipe = build_recipe(config)
    encoder = need_task(recipe, ImageEncoder, config.recipe.name)
    model = load_model(recipe, options.checkpoint, options.part, options.rename)[0].to(world.device)
    set_precision(config.training.precision, config.training.deterministic)
    dtype = AUTOCAST.get(config.training.precision)
    batches = own_batches(world, len(images), options.batch_size)
    ahead = read_ahead(partial(_read, images, encoder), batches, options.workers)

    def compute(_: range) -> Features:
        ids, pixels, labels = next(ahead)
        if len(ids):
            pixels = encoder.encode_images(model, pixels.to(world.device)).float().cpu()
        return Features(ids, pixels, labels)

    with (
        shown() if world.is_main else nullcontext(),
        torch.inference_mode(),
        torch.autocast(world.device.type, dtype, enabled=dtype is not None),
    ):
        features = gather_features(world, len(images), options.batch_size, compute)
    if world.is_main:
        names = [images.names[index] for index in features.ids.tolist()]
        options.output.parent.mkdir(parents=True, exist_ok=True)
        export_features(options.output, features.values, features.labels, names)
        left_out = len(images) - len(names)
        print(f"{options.output}: {len(names)} x {features.values.shape[1]}; {left_out} skipped")
    shutdown()
    return 0


def _read(images: ReadableImages, encoder: Any, positions: range) -> Features:
    """Return indices, prepared pixels (n, 3, H, W) and labels of the images that can be read."""
    import torch

    from overt.metrics.features import Features

    read = [(position, images.try_read(position)) for position in positions]
    readable = [(position, *image) for position, image in read if image is not None]
    if not readable:
        return Features(torch.empty(0), torch.empty(0), torch.empty(0))
    ids, pixels, labels = zip(*readable, strict=True)
    prepared = torch.stack([encoder.prepare_image(image) for image in pixels])
    return Features(torch.tensor(ids), prepared, torch.tensor(labels))
