"""`overt ckpt inspect` and `overt ckpt export`: read any checkpoint without executing code."""

from __future__ import annotations

import argparse
import math
import shlex
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from overt.commands.arguments import configure_model, export_options
from overt.errors import CheckpointError, ConfigError
from overt.tasks import Exportable, need_task

if TYPE_CHECKING:
    from torch import Tensor

    from overt.files.key_maps import KeyRule

PARTS = ("model", "ema", "optimizer", "rng")
DESCRIPTION = "Inspect a checkpoint of any format, or export its weights."


class Entry(NamedTuple):
    """One tensor, without its values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: int
    size: int  # bytes


MODULES = ("onnx", "torchscript")  # what can be written of a whole module
TARGETS = ("safetensors", "torch", *MODULES, "hub")


def main(arguments: list[str]) -> int:
    """Run one of the verbs; returns 1 where `inspect` finds the checkpoint broken."""
    parser = argparse.ArgumentParser(prog="overt ckpt", description=DESCRIPTION)
    verbs = parser.add_subparsers(dest="verb", required=True)
    inspecting = verbs.add_parser("inspect", help="show what is in a checkpoint")
    inspecting.add_argument("file", type=Path, help="checkpoint folder, safetensors or torch file")
    inspecting.add_argument("--keys", action="store_true", help="list every tensor")
    exporting = verbs.add_parser(
        "export",
        help="write the weights with clean keys to a file, or to a folder for the Hub",
        parents=[export_options()],
    )
    exporting.add_argument("file", type=Path, help="checkpoint folder, safetensors or torch file")
    exporting.add_argument("--to", required=True, choices=TARGETS)
    exporting.add_argument(
        "--output", required=True, type=Path, help="the file to write; hub: the folder"
    )
    exporting.add_argument("--force", action="store_true", help="replace an existing file")
    exporting.add_argument("--half", action="store_true", help="store weights in 16 bits")
    exporting.add_argument("--prefix", default="", help="prefix of every key: model.module.")
    exporting.add_argument(
        "--key", metavar="NAME", help="torch: store the weights under this key, such as model_state"
    )
    exporting.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, for onnx or torchscript",
    )
    exporting.add_argument(
        "--license", default="unknown", metavar="NAME", help="hub: such as apache-2.0"
    )
    options = parser.parse_args(arguments)
    if options.verb == "export" and options.to != "hub":
        options.part = options.part or "model"
        if options.license != "unknown":
            raise ConfigError(f"--license is for --to hub; drop it for {options.to}")
    if options.verb == "export" and options.to in MODULES:
        for name in ("half", "prefix", "key"):
            if getattr(options, name):
                raise ConfigError(f"--{name} is for files of weights; drop it for {options.to}")
        return export_module(options)
    if options.verb == "export":
        for name in ("recipe", "package", "set"):
            if getattr(options, name):
                raise ConfigError(
                    f"--{name} is for --to onnx and torchscript; drop it for {options.to}"
                )
        if options.key and options.to != "torch":
            raise ConfigError(f"--key is for --to torch; drop it for {options.to}")
        if options.to == "hub":
            return export_hub(options)
        return export(
            options.file,
            options.to,
            options.output,
            options.part,
            options.force,
            options.prefix,
            options.half,
            options.key,
            options.rename,
        )
    return inspect(options.file, options.keys)


def inspect(path: Path, keys: bool = False) -> int:
    """Print what a checkpoint holds."""
    from overt.checkpoint.reading import is_of_others, read_tensors
    from overt.files.weight_files import is_safetensors
    from overt.files.weight_folders import is_index

    if path.is_dir() and not is_of_others(path):
        return _inspect_folder(path, keys)
    if path.is_dir() or is_index(path):
        tensors, stored = read_tensors(path)
        print(f"{path}\nformat      Hugging Face folder")
        _print_facts(stored)
        entries = [_entry(name, tensor) for name, tensor in tensors.items()]
    elif path.is_file() and is_safetensors(path):
        entries, metadata = _read_entries(path)
        metadata.pop("format", None)  # which framework wrote it: pt, whatever the file is
        print(f"{path}\nformat      safetensors")
        _print_facts(metadata)
    else:
        tensors, stored = read_tensors(path)
        kind = "zip archive" if zipfile.is_zipfile(path) else "before torch 1.6"
        print(f"{path}\nformat      torch file ({kind})")
        _print_facts(stored)
        entries = [_entry(name, tensor) for name, tensor in tensors.items()]
    _print_tensors("model", entries, keys)
    return 0


def export(
    path: Path,
    to: str,
    output: Path,
    part: str = "model",
    force: bool = False,
    prefix: str = "",
    half: bool = False,
    key: str | None = None,
    rename: Sequence[KeyRule] = (),
) -> int:
    """Write the weights of a checkpoint as one file with the keys of the bare model.

    `rename` maps the keys of other projects first. A safetensors file records the
    recipe and its settings, if they are known and can load it. A torch file holds the weights
    directly, or below `key` beside an epoch, where training scripts that save
    {"epoch": ..., "model_state": ...} look for them.
    """
    _check_output(output, force)
    from overt.checkpoint.reading import read_tensors
    from overt.checkpoint.recorded import metadata_of
    from overt.checkpoint.tensor_files import TensorFile, write_file
    from overt.checkpoint.writing import megabytes, write_whole_file
    from overt.files.key_maps import rename_keys
    from overt.files.weight_files import clean_keys

    weights, _ = read_tensors(path, part)
    weights = rename_keys(weights, rename, str(path), "--rename")
    names = clean_keys(weights, str(path))
    tensors = {
        prefix + names[name]: _alone(_halved(name, tensor) if half else tensor.detach())
        for name, tensor in weights.items()
    }
    if to == "safetensors":
        file = TensorFile(tensors, {"format": "pt"} | ({} if prefix else metadata_of(path)))
        write_whole_file(output, lambda hidden: write_file(hidden, file), file.size)
    else:  # which holds what safetensors cannot, such as complex numbers
        content: dict[str, Any] = {"epoch": 0, key: tensors} if key else tensors
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        write_whole_file(output, lambda hidden: _save(content, hidden), size)
    print(f"{len(tensors)} tensors written to {output} ({megabytes(output.stat().st_size)})")
    return 0


def export_hub(options: argparse.Namespace) -> int:
    """Write a folder for the Hugging Face Hub: weights, configuration, model card."""
    if options.prefix or options.force:
        raise ConfigError("--prefix and --force are not for --to hub; drop them")
    from overt.tools.hub.folder import check_target, write_hub_folder

    check_target(options.output)
    from overt.checkpoint.reading import folder_parts, read_tensors
    from overt.files.key_maps import rename_keys

    path: Path = options.file
    has_average = path.is_dir() and "ema" in folder_parts(path)
    part = options.part or ("ema" if has_average else "model")
    read, _ = read_tensors(path, part)
    read = rename_keys(read, options.rename, str(path), "--rename")
    tensors = {
        name: _alone(_halved(name, tensor) if options.half else tensor.detach())
        for name, tensor in read.items()
    }
    facts = write_hub_folder(path, options.output, tensors, options.license, part)
    print(
        f"{options.output}: model.safetensors ({len(tensors)} tensors), config.yaml, config.json "
        f"and a model card for {facts.recipe} at step {facts.step:,}\n"
        "read README.md before you share it; use it as "
        + shlex.quote(f"checkpoint={options.output}")
    )
    return 0


def export_module(options: argparse.Namespace) -> int:
    """Write the recipe's step for one frame or sample, with its weights, for other runtimes."""
    from overt.checkpoint.trained import load_model
    from overt.config import build_recipe

    _check_output(options.output, options.force)
    config = configure_model(options.file, options.recipe, options.set, options.package)
    recipe = build_recipe(config)
    exportable = need_task(recipe, Exportable, config.recipe.name)
    from overt.checkpoint.writing import megabytes, write_whole_file
    from overt.files.onnx_file import write_onnx
    from overt.files.torchscript_file import write_torchscript

    model, report = load_model(recipe, options.file, options.part, options.rename)
    print(report)
    step = exportable.export_step(model)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())

    def write(hidden: Path) -> None:
        if options.to == "torchscript":
            write_torchscript(hidden, step.module, step.example)
            return
        names = step.input_names, step.output_names
        axis = step.points_axis, step.axis_name
        write_onnx(hidden, step.module, step.example, *names, *axis)

    write_whole_file(options.output, write, size)
    print(
        f"{options.output} ({megabytes(options.output.stat().st_size)}): {step.note}\n"
        f"  inputs   {', '.join(step.input_names)}\n  outputs  {', '.join(step.output_names)}"
    )
    return 0


def _halved(key: str, tensor: Tensor) -> Tensor:
    """Return a tensor of floats in float16; refused where a value would overflow."""
    if not tensor.is_floating_point():
        return tensor.detach()
    result = tensor.detach().half()
    if bool((result.isinf() & tensor.isfinite()).any()):
        raise CheckpointError(
            f"{key} holds {float(tensor.abs().max()):.3g}, more than float16 can; drop --half"
        )
    return result


def _check_output(output: Path, force: bool) -> None:
    if output.is_dir():
        raise CheckpointError(f"{output} is a folder; name the file to write with --output")
    if output.exists() and not force:
        raise CheckpointError(
            f"{output} exists; choose another --output, or replace it with --force"
        )
    if not output.parent.is_dir():
        raise CheckpointError(f"the folder {output.parent} of --output does not exist; create it")


def _alone(tensor: Tensor) -> Tensor:
    """Copy a view of a larger memory: torch.save would write all of that memory."""
    import torch

    if tensor.layout is not torch.strided:  # a sparse tensor has no single memory
        return tensor
    owns_all = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if owns_all else tensor.clone()


def _save(content: Mapping[str, Any], path: Path) -> None:
    import torch

    try:
        with path.open("wb") as file:
            torch.save(dict(content), file)
    except RuntimeError as error:  # torch's complaint about a file that could not be written
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def _inspect_folder(folder: Path, keys: bool) -> int:
    from overt.checkpoint import plain_values
    from overt.checkpoint.manifest import MANIFEST, SHARDS, read_manifest, verify
    from overt.checkpoint.writing import megabytes

    if not (folder / MANIFEST).exists() and (folder / "latest").is_dir():
        folder = folder / "latest"
    manifest = read_manifest(folder)
    verification = verify(folder)
    print(f"{folder.resolve()}\nformat      overt checkpoint, version {manifest['format']}")
    print(f"check       {verification}")
    facts = {name: manifest[name] for name in ("step", "epoch", "world_size", "is_best")}
    if verification.good:
        facts["metrics"] = plain_values.decode((folder / "state.json").read_bytes())["metrics"]
    facts["versions"] = manifest["versions"]
    files = manifest["files"]
    if SHARDS in files:
        facts["shards"] = f"one file for each of {manifest['world_size']} ranks"
    if manifest["config_sha256"] is not None:
        facts["config"] = f"config.yaml, SHA-256 {manifest['config_sha256'][:16]}"
    for base in manifest.get("stands_on", []):
        module = f" for {base['module']}" if base["module"] else ""
        facts["stands on"] = f"{base['path']}, SHA-256 {base['sha256'][:16]}{module}"
    _print_facts(facts)
    for name, file in files.items():
        print(f"  {name:24} {megabytes(file['size']):>14}")
    if not verification.good:
        return 1
    sharded = _read_sharded(folder) if SHARDS in files else {}
    for part in PARTS:
        if f"{part}.safetensors" in files:
            entries, _ = _read_entries(folder / f"{part}.safetensors")
            _print_tensors(part, entries, keys)
        elif part in sharded:
            _print_tensors(part, sharded[part], keys)
    return 0


def _read_sharded(folder: Path) -> dict[str, list[Entry]]:
    """List the tensors of a sharded checkpoint by part, each counted once."""
    from overt.checkpoint.shard_index import read_index
    from overt.checkpoint.tensor_files import DTYPE_NAMES

    parts: dict[str, list[Entry]] = {}
    for key, saved in read_index(folder).items():
        part, _, name = key.partition("/")
        values = math.prod(saved.shape)
        dtype, size = DTYPE_NAMES[saved.dtype], values * saved.dtype.itemsize
        parts.setdefault(part, []).append(Entry(name, saved.shape, dtype, values, size))
    return parts


def _read_entries(path: Path) -> tuple[list[Entry], dict[str, str]]:
    """List the tensors of a safetensors file by its header alone."""
    from overt.checkpoint.tensor_files import read_header

    header = read_header(path)
    metadata: dict[str, str] = header.pop("__metadata__", {})
    entries = []
    for name, about in header.items():
        start, end = about["data_offsets"]
        shape = tuple(about["shape"])
        entries.append(Entry(name, shape, about["dtype"], math.prod(shape), end - start))
    return entries, metadata


def _entry(name: str, tensor: Tensor) -> Entry:
    dtype = str(tensor.dtype).removeprefix("torch.")
    size = tensor.numel() * tensor.element_size()
    return Entry(name, tuple(tensor.shape), dtype, tensor.numel(), size)


def _print_facts(facts: Mapping[str, Any]) -> None:
    """Print numbers and words; of anything else its type."""
    for name, value in facts.items():
        if isinstance(value, Mapping) and all(_is_plain(item) for item in value.values()):
            text = ", ".join(f"{key} {_shown(item)}" for key, item in value.items()) or "none"
        elif isinstance(value, str) and value.count("\n") > 1:  # settings as YAML
            text = f"({value.count(chr(10))} lines)"
        elif _is_plain(value):
            text = str(value)
        else:
            length = f" of {len(value)}" if hasattr(value, "__len__") else ""
            text = f"({type(value).__name__}{length})"
        print(f"{name:11} {text}")


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _print_tensors(part: str, entries: list[Entry], keys: bool) -> None:
    """Print totals, the branches of the module tree, and on request every key."""
    from overt.checkpoint.writing import megabytes

    dtypes = Counter(entry.dtype for entry in entries)
    print(
        f"\n{part}: {len(entries)} tensors, {sum(entry.values for entry in entries):,} values, "
        f"{megabytes(sum(entry.size for entry in entries))} "
        f"({', '.join(f'{dtype} x {count}' for dtype, count in dtypes.most_common())})"
    )
    for branch, members in _branches(entries).items():
        count = sum(entry.values for entry in members)
        tensors = "1 tensor" if len(members) == 1 else f"{len(members)} tensors"
        print(f"  {branch:40} {count:>15,} values in {tensors}")
    if keys:
        for entry in entries:
            print(f"    {entry.name:60} {entry.dtype:10} {list(entry.shape)}")


def _branches(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Group tensors by top-level module, below the prefix that all of them have."""
    paths = [entry.name.split(".") for entry in entries]
    depth = 1
    while paths and all(len(path) > depth and path[:depth] == paths[0][:depth] for path in paths):
        depth += 1
    branches: dict[str, list[Entry]] = {}
    for path, entry in zip(paths, entries, strict=True):
        branches.setdefault(".".join(path[:depth]), []).append(entry)
    return branches
