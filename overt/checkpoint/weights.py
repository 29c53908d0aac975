"""Weights of any checkpoint into a model: to evaluate it, or to start a new run from.

Wrapper prefixes are removed on both sides, and what did not fit is reported. A model may declare:
- `computed_tensors`, on the class of any of its modules: the names of that module's own tensors
  that follow from its settings, such as a sinusoidal table. Where a file has one of another shape,
  the model keeps its own. A property, where it depends on the instance.
- `adapt_tensors(tensors, settings) -> tensors`: rename and resize the tensors of other files.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from overt.checkpoint.named_tensors import memory_of
from overt.checkpoint.reading import read_tensors
from overt.errors import CheckpointError, ConfigError
from overt.files.key_maps import KeyRule, rename_keys
from overt.files.weight_files import clean_key, clean_keys, refuse_collisions, some
from overt.nn.base import check_base


@dataclass
class LoadReport:
    """What became of every tensor of a file and of every key of a model."""

    source: str
    mapped: list[tuple[str, str]] = field(default_factory=list)  # (key in file, key in model)
    missing: list[str] = field(default_factory=list)  # keys of the model that the file lacks
    unexpected: list[str] = field(default_factory=list)  # keys of the file that the model lacks
    skipped: list[str] = field(default_factory=list)  # keys whose values in the model are kept

    @property
    def renamed(self) -> int:
        return sum(file_key != model_key for file_key, model_key in self.mapped)

    def __str__(self) -> str:
        lines = [f"{self.source}: {len(self.mapped)} tensors loaded, {self.renamed} renamed"]
        for name in ("missing", "unexpected", "skipped"):
            keys: list[str] = getattr(self, name)
            lines.append(f"  {name}: {len(keys)}" + (f" ({some(keys)})" if keys else ""))
        return "\n".join(lines)


def load_weights(
    path: str | Path,
    model: nn.Module,
    strict: bool = False,
    *,
    part: str = "model",
    allow_shape_mismatch: bool = False,
    rename: Sequence[KeyRule] = (),
) -> LoadReport:
    """Load the weights of any checkpoint into `model`; `strict` refuses missing and unexpected.

    `rename` are pairs of a regular expression and what takes its place in the keys of the file;
    None drops a key. Public as `overt.load_checkpoint`.

    Examples:
        >>> model = torch.nn.Linear(2, 1)
        >>> torch.save(model.state_dict(), "weights.pth")
        >>> report = overt.load_checkpoint("weights.pth", torch.nn.Linear(2, 1), strict=True)
    """
    return load_tensors(
        _read_adapted(path, model, part, rename, "rename"),
        model,
        strict,
        source=str(path),
        allow_shape_mismatch=allow_shape_mismatch,
    )


def load_tensors(
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    strict: bool = False,
    *,
    source: str,
    allow_shape_mismatch: bool = False,
) -> LoadReport:
    """Load named tensors into `model`, whatever wrappers either side has been through."""
    match = _match(tensors, model, source)
    if match.misfits and not allow_shape_mismatch:
        raise CheckpointError(
            f"{source}: {len(match.misfits)} tensor(s) have another shape than in the model:\n  "
            + "\n  ".join(match.misfits.values())
            + "\nSet the sizes in the configuration to those of the checkpoint; a folder of overt "
            "has them in its config.yaml, and `overt evaluate` without recipe= takes them from "
            "there. In Python, allow_shape_mismatch=True keeps the model's own values for these."
        )
    report = match.report
    if strict and (report.missing or report.unexpected):
        raise CheckpointError(
            f"{report}\nWith strict=True every key must be on both sides. Check the model's "
            "configuration, or load with strict=False."
        )
    model.load_state_dict(match.chosen, strict=False)
    check_base(model, source)
    return report


def load_initial(
    path: str | Path,
    model: nn.Module,
    skip: Sequence[str] = (),
    optional: Sequence[str] = (),
    rename: Sequence[KeyRule] = (),
) -> LoadReport:
    """Load the weights that a new run starts from, so that no trained tensor stays random unseen.

    `skip` (`checkpoint.init_skip`): keys or prefixes that keep the model's fresh values.
    `optional`: prefixes that the file may omit, such as a recipe's `unscored`.
    `rename` (`checkpoint.init_map`): see `load_weights`.
    """
    tensors = _read_adapted(path, model, "model", rename, "checkpoint.init_map")
    match = _match(tensors, model, str(path), keys_to_skip(skip, model))
    trained = trained_keys(model)
    missing = [
        key
        for key in match.report.missing
        if key in trained and not clean_key(key).startswith(tuple(optional))
    ]
    if match.misfits or missing:
        lines = [*match.misfits.values(), *(f"{key}: not in the file" for key in missing)]
        keys = [clean_key(key) for key in (*match.misfits, *missing)]
        model_keys = [clean_key(key) for key in model.state_dict()]
        raise CheckpointError(
            f"{path} does not fill {len(lines)} tensor(s) of the model, which would start from "
            f"random values:\n  {_first_lines(lines)}\nSet the section model to that of the file "
            "(a folder of overt has it in its config.yaml), or let these start from random values "
            f"with\n  'checkpoint.init_skip=[{','.join(shortest_prefixes(keys, model_keys))}]'"
        )
    model.load_state_dict(match.chosen, strict=False)
    check_base(model, str(path))
    return match.report


def trained_keys(model: nn.Module) -> set[str]:
    """Return the keys of the parameters that training changes."""
    return {key for key, weight in model.named_parameters() if weight.requires_grad}


def computed_tensors(model: nn.Module) -> set[str]:
    """Return the clean keys of the tensors that modules declare as computed; never trained ones."""
    keys = set()
    for path, module in model.named_modules():
        # Declared by the class: a compiled module would pass on the attributes of its inner one.
        if not hasattr(type(module), "computed_tensors"):
            continue
        registered = {**module._parameters, **module._buffers}
        for name in module.computed_tensors:
            if name not in registered:
                raise CheckpointError(
                    f"{type(module).__name__}.computed_tensors names {name!r}, which is not a "
                    f"tensor of the module itself; it has {', '.join(registered) or 'none'}"
                )
            tensor = registered[name]
            if tensor is not None and not tensor.requires_grad:
                keys.add(clean_key(f"{path}.{name}" if path else name))
    return keys


# --- checkpoint.init_skip --------------------------------------------------------------------


def keys_to_skip(entries: Sequence[str], model: nn.Module) -> set[str]:
    """Return the clean keys that `checkpoint.init_skip` names, each by itself or by a prefix."""
    model_keys = [clean_key(key) for key in model.state_dict()]
    prefixes = list(dict.fromkeys(prefix for key in model_keys for prefix in _prefixes(key)))
    skipped = set()
    for entry in entries:
        if entry.rstrip(".") not in prefixes:
            close = difflib.get_close_matches(entry, prefixes, n=1, cutoff=0.5)
            top = dict.fromkeys(key.partition(".")[0] for key in model_keys)
            hint = f"did you mean {close[0]}?" if close else f"the model has {', '.join(top)}"
            raise ConfigError(
                f"checkpoint.init_skip: {entry!r} is neither a tensor of the model nor a module "
                f"with tensors ({hint})"
            )
        skipped |= {key for key in model_keys if f"{key}.".startswith(f"{entry.rstrip('.')}.")}
    if model_keys and skipped == set(model_keys):
        raise ConfigError(
            "checkpoint.init_skip names every tensor of the model; set checkpoint.init_from=null "
            "to start from random values"
        )
    return skipped


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def shortest_prefixes(keys: Iterable[str], all_keys: Iterable[str]) -> list[str]:
    """Return as few prefixes as cover `keys` and none of the others, in the order of `keys`."""
    covered_keys = list(keys)
    others = set(all_keys) - set(covered_keys)
    prefixes: dict[str, None] = {}
    for key in covered_keys:
        covered = (
            prefix
            for prefix in _prefixes(key)
            if not any(f"{other}.".startswith(f"{prefix}.") for other in others)
        )
        prefixes[next(covered, key)] = None
    return list(prefixes)


def _first_lines(lines: Sequence[str], count: int = 8) -> str:
    more = [f"and {len(lines) - count} more"] if len(lines) > count else []
    return "\n  ".join([*lines[:count], *more])


# --- matching --------------------------------------------------------------------------------


@dataclass
class _Match:
    """Which tensor of a file belongs to which key of a model; nothing is loaded yet."""

    report: LoadReport
    chosen: dict[str, Tensor] = field(default_factory=dict)  # by key of the model
    misfits: dict[str, str] = field(default_factory=dict)  # by key of the model: both shapes


def _match(
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    source: str,
    skipped: Iterable[str] = (),  # clean keys that keep the model's own values
) -> _Match:
    model_tensors = {
        key: value for key, value in model.state_dict().items() if isinstance(value, Tensor)
    }
    model_keys = {clean: key for key, clean in clean_keys(model_tensors, "the model").items()}
    file_keys = _match_leading_model(clean_keys(tensors, source), model_keys)
    skipped_keys, computed = set(skipped), computed_tensors(model)
    report = LoadReport(
        source, skipped=[model_keys[clean] for clean in model_keys if clean in skipped_keys]
    )
    match = _Match(report)
    fitting = 0
    for key, clean in file_keys.items():
        if clean not in model_keys:
            report.unexpected.append(key)
            continue
        fits = tensors[key].shape == model_tensors[model_keys[clean]].shape
        fitting += fits
        if clean in skipped_keys:
            continue
        if fits:
            match.chosen[model_keys[clean]] = tensors[key]
            report.mapped.append((key, model_keys[clean]))
            continue
        report.skipped.append(model_keys[clean])
        if clean not in computed:
            in_file, in_model = tensors[key].shape, model_tensors[model_keys[clean]].shape
            match.misfits[model_keys[clean]] = (
                f"{key}: {tuple(in_file)} in the file, {tuple(in_model)} in the model"
            )
    if not fitting:
        raise CheckpointError(
            f"{source} is a checkpoint of another model: none of its {len(tensors)} tensors fits. "
            f"The file has {some(tensors)}; the model has {some(model_tensors)}. Check the model's "
            "configuration, or give the checkpoint that belongs to it."
        )
    parameters = {key for key, _ in model.named_parameters()}
    _refuse_other_kinds(source, report.mapped, tensors, model_tensors, parameters)
    report.missing = _without_tied(
        [key for key in model_tensors if key not in match.chosen and key not in report.skipped],
        match.chosen,
        model_tensors,
    )
    return match


def _refuse_other_kinds(
    source: str,
    mapped: Iterable[tuple[str, str]],  # keys of the file and of the model
    tensors: Mapping[str, Tensor],
    model_tensors: Mapping[str, Tensor],
    parameters: Collection[str],
) -> None:
    """Refuse values that a copy would silently change, such as weights stored as int8."""
    wrong = []
    for file_key, model_key in mapped:
        ours, theirs = model_tensors[model_key], tensors[file_key]
        dense = theirs.layout is torch.strided and not theirs.is_quantized
        if not theirs.is_floating_point() and model_key in parameters:
            fits = theirs.is_complex() == ours.is_complex() and not ours.is_floating_point()
        else:  # a mask may be saved as any kind of number
            fits = ours.is_complex() or not theirs.is_complex()
        if not (dense and fits):
            kinds = f"{theirs.dtype}" if dense else f"{theirs.dtype}, not dense,"
            wrong.append(f"{file_key}: {kinds} in the file, {ours.dtype} in the model")
    if wrong:
        raise CheckpointError(
            f"{source}: {len(wrong)} tensor(s) hold another kind of numbers than the model:\n  "
            f"{_first_lines(wrong)}\nQuantized, complex or sparse weights cannot be copied into "
            "others. Convert them with the program that wrote the file, and save "
            "`model.state_dict()` again."
        )


def _read_adapted(
    path: str | Path, model: nn.Module, part: str, rename: Sequence[KeyRule], rename_key: str
) -> Mapping[str, Tensor]:
    """Read a checkpoint, under the model's keys and in its sizes where rules or model know how."""
    tensors, metadata = read_tensors(path, part)
    if rename:
        tensors = rename_keys(tensors, rename, str(path), rename_key)
    adapt = getattr(model, "adapt_tensors", None)
    if adapt is None:
        return tensors
    names = clean_keys(tensors, str(path))
    clean = {names[key]: value for key, value in tensors.items()}
    try:
        adapted: Mapping[str, Tensor] = adapt(clean, metadata.get("settings"))
    except CheckpointError as error:  # the model does not know the file's name
        raise CheckpointError(f"{path}: {error}") from None
    return adapted


def _match_leading_model(cleaned: dict[str, str], model_keys: Mapping[str, str]) -> dict[str, str]:
    """Remove a leading `model.` from the file's keys, or add one, where that makes more match."""
    candidates = [
        cleaned,
        {key: clean.removeprefix("model.") for key, clean in cleaned.items()},
        {key: f"model.{clean}" for key, clean in cleaned.items()},
    ]
    best = max(candidates, key=lambda names: sum(clean in model_keys for clean in names.values()))
    refuse_collisions(best, "the checkpoint, matched to the model")
    return best


def _without_tied(
    missing: list[str], chosen: Iterable[str], model_tensors: dict[str, Tensor]
) -> list[str]:
    """Drop the keys whose memory was loaded under another name."""
    loaded = {memory_of(model_tensors[key]) for key in chosen if model_tensors[key].numel() > 0}
    return [key for key in missing if memory_of(model_tensors[key]) not in loaded]
