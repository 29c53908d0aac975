"""`overt data`: skulls with defects and implants."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from overt.commands.arguments import finite_number
from overt.commands.data.arguments import (
    Verbs,
    add_seed,
    add_verb,
    not_negative,
    positive,
    side_length,
)
from overt.errors import ConfigError

# Options of one source only, with their defaults and what to do instead with the other source.
_SYNTHETIC = {
    "side": (64, "the size of its voxels is set by --voxel-mm"),
    "kind": ("skulls", "the skull is that of the scan"),
}
_SCANNED = {
    "voxel_mm": (1.0, "the resolution of a synthetic skull is set by --side"),
    "threshold": (None, "synthetic skulls are masks"),
    "spacing": (None, "the resolution of a synthetic skull is set by --side"),
}
# Settings that `overt data implants` makes itself.
_OPTION_OF = {
    "data.root": "is set by ROOT",
    "data.test_list": "is set by --list",
    "evaluation.ensemble": "is set by --samples",
    "evaluation.cases": "stays null, as all skulls of --list are completed",
}


def add_verbs(verbs: Verbs) -> None:
    """Add the verbs of this field."""
    _add_skulls(verbs)
    _add_prepare(verbs)
    _add_implants(verbs)


def _add_skulls(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "skulls",
        _skulls,
        help="synthetic skulls with defects and implants, in SkullBreak's layout",
        description="Write synthetic skulls with five defects each: volumes, point clouds "
        "and the lists train.csv and test.csv. With --scan, cut the defects out of a real skull, "
        "to score models on it. Existing skulls are kept.",
        root="folder of the data set",
    )
    parser.add_argument(
        "--skulls",
        type=positive,
        help="how many skulls; with --scan, how many rounds of five defects; default: 20, 2",
    )
    parser.add_argument("--side", type=side_length, help="voxels along a side; default: 64")
    parser.add_argument("--points", type=positive, default=8000, help="points of a cloud")
    parser.add_argument("--workers", type=not_negative, default=0, help="worker processes")
    parser.add_argument(
        "--kind",
        choices=("skulls", "shells"),
        help="shells: coarse and quick; default: skulls",
    )
    parser.add_argument(
        "--scan", type=Path, metavar="SCAN", help="a complete head, as `overt complete` reads it"
    )
    above_zero = finite_number(0, above=True)
    parser.add_argument(
        "--voxel-mm", type=above_zero, metavar="MM", help="of --scan, resampled; default: 1.0"
    )
    parser.add_argument(
        "--threshold",
        type=finite_number(-10_000),
        metavar="HU",
        help="of --scan: lowest intensity of bone; default: 300 in CT",
    )
    parser.add_argument(
        "--spacing", type=above_zero, nargs=3, metavar="MM", help="of a .npy volume of --scan"
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


def _add_implants(verbs: Verbs) -> None:
    parser = add_verb(
        verbs,
        "implants",
        _implants,
        help="implants that a trained model samples for listed skulls, to train a refinement",
        description="Sample implants for every skull of a list, and write them next to its cloud "
        "as NNN_implants.npy, (samples, points, 3) in the cloud's coordinates. Existing ones are "
        "replaced. Training uses them with data.errors.sampled.",
        root="folder of the data set",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a trained model")
    parser.add_argument("--recipe", metavar="NAME", help="of a file that does not name it")
    parser.add_argument("--list", default="train.csv", help="of skulls, below ROOT")
    parser.add_argument("--samples", type=positive, default=1, help="implants for each skull")
    parser.add_argument("--batch", type=positive, default=32, help="skulls sampled at a time")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the model to change"
    )


def _skulls(options: argparse.Namespace) -> int:
    if options.scan is not None:
        return _cut(options)
    from overt.data.skulls.synthetic import write_skulls

    _settle(options, _SYNTHETIC, _SCANNED, "belongs to --scan", "add --scan SCAN")
    count = options.skulls or 20
    written = write_skulls(
        options.root,
        count,
        options.side,
        options.points,
        options.seed,
        workers=options.workers,
        kind=options.kind,
    )
    print(
        f"{options.root}: {count} skulls with 5 defects each, {options.side}^3 voxels, "
        f"{options.points} points a cloud; {written} written, {count - written} were there"
    )
    return 0


def _cut(options: argparse.Namespace) -> int:
    from overt.data.skulls.cut import read_complete, write_rounds

    _settle(options, _SCANNED, _SYNTHETIC, "is for synthetic skulls", "drop --scan")
    spacing = None if options.spacing is None else tuple(options.spacing)
    complete, how = read_complete(options.scan, options.voxel_mm, options.threshold, spacing)
    print(f"{options.scan}: {how}")
    count = options.skulls or 2
    written = write_rounds(
        options.root,
        options.scan,
        complete,
        count,
        options.points,
        options.seed,
        workers=options.workers,
    )
    shape = " x ".join(map(str, complete.values.shape))
    print(
        f"{options.root}: {count} rounds of 5 defects, {shape} voxels of {options.voxel_mm:g} mm, "
        f"{options.points} points a cloud; {written} written, {count - written} were there"
    )
    return 0


def _settle(
    options: argparse.Namespace,
    own: Mapping[str, tuple[object, str]],
    others: Mapping[str, tuple[object, str]],
    belongs: str,
    remedy: str,
) -> None:
    """Reject options of the other source; set those of this one to their defaults."""
    for name, (_, instead) in others.items():
        value = getattr(options, name)
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            given = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            raise ConfigError(f"{option} {given} {belongs}: {instead}; drop {option} or {remedy}")
    for name, (default, _) in own.items():
        if getattr(options, name) is None:
            setattr(options, name, default)


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


def _refuse_set(options: argparse.Namespace) -> None:
    """Reject settings by --set of which the summary tells what the options say."""
    for word in options.set:
        key = word.partition("=")[0].lstrip("+~")
        if key in _OPTION_OF:
            raise ConfigError(f"--set {word}: {key} {_OPTION_OF[key]}; drop it from --set")


def _implants(options: argparse.Namespace) -> int:
    import torch

    from overt.checkpoint.trained import load_model
    from overt.commands.arguments import configure_model
    from overt.config import build_recipe
    from overt.config.overrides import quoted
    from overt.data.skulls.lists import SkullList
    from overt.data.skulls.prepare import save_cloud
    from overt.distributed import init_distributed
    from overt.engine.precision import AUTOCAST, set_precision
    from overt.progress import report
    from overt.tasks import ListCompleter, need_task

    _refuse_set(options)
    plain = configure_model(options.checkpoint, options.recipe, (), ())
    need_task(build_recipe(plain), ListCompleter, plain.recipe.name)
    words = [f"data.root={quoted(str(options.root))}", f"data.test_list={quoted(options.list)}"]
    words += [f"evaluation.ensemble={options.samples}", f"evaluation.batch_size={options.batch}"]
    words += ["data.synthetic=null", "evaluation.cases=null", *options.set]
    config = configure_model(options.checkpoint, options.recipe, words, ())
    recipe = build_recipe(config)
    completer = need_task(recipe, ListCompleter, config.recipe.name)
    total = len(SkullList(options.root / options.list, config.settings.data.dataset))
    device = init_distributed(config.training.device).device
    model = load_model(recipe, options.checkpoint)[0].to(device)
    set_precision(config.training.precision, config.training.deterministic)
    # CPUs without 16-bit arithmetic emulate it, at a tenth of the speed.
    dtype = AUTOCAST.get(config.training.precision) if device.type == "cuda" else None
    with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype is not None):
        for number, (file, implants) in enumerate(completer.complete_listed(model), start=1):
            save_cloud(file, implants)
            report("sampling implants", number, total)
    print(f"{options.root}: {options.samples} implant(s) sampled for each of {total} skulls")
    return 0
