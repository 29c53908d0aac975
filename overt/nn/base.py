"""Models on a frozen base: checkpoints hold what was trained, and name the base.

`stand_on(model, path)` fills the frozen tensors of a model from a file, and keeps them out of its
`state_dict`, hence out of every checkpoint. In their place there is `base_sha256`, so that what was
trained is never used on top of another base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from overt.errors import CheckpointError
from overt.files.key_maps import KeyRule, rename_keys
from overt.files.weight_files import some
from overt.nn.pretrained import read_weights

MARK = "base_sha256"


@dataclass(frozen=True)
class Base:
    """The frozen base of a module."""

    path: str
    key: str  # the setting that names it
    sha256: str  # of the tensors that were taken from it
    names: tuple[str, ...]  # of these, below the module


def stand_on(
    model: nn.Module, path: str | Path, key: str = "model.base", rename: Sequence[KeyRule] = ()
) -> Base:
    """Fill every frozen parameter, and each buffer that the file has; save none of them again.

    Call it at the end of `build_model`, when what is not to be trained has `requires_grad=False`.
    `path` is any checkpoint; `key` names the setting in messages; `rename` as in
    `overt.load_checkpoint`.
    """
    tensors: Mapping[str, Tensor] = read_weights(path, key)
    if rename:
        tensors = rename_keys(tensors, rename, str(path), f"{key} (rename)")
    frozen = {name: value for name, value in model.named_parameters() if not value.requires_grad}
    missing = [name for name in frozen if name not in tensors]
    if missing or not frozen:
        raise CheckpointError(
            f"{key}={path} lacks {len(missing)} of the {len(frozen)} frozen parameters "
            f"({some(missing) or 'freeze the base first'}); it has {some(tensors)}. Give the "
            "checkpoint of the base, or rename its tensors"
        )
    targets: dict[str, Tensor] = frozen | {
        name: buffer for name, buffer in model.named_buffers() if name in tensors
    }
    for name, target in targets.items():
        if target.shape != tensors[name].shape:
            raise CheckpointError(
                f"{key}={path}: {name} is {tuple(tensors[name].shape)} in the file and "
                f"{tuple(target.shape)} in the model; set the sizes of the model to those of the "
                "base"
            )
        with torch.no_grad():
            target.copy_(tensors[name])
    digest = _digest({name: targets[name] for name in sorted(targets)})
    base = Base(str(path), key, digest, tuple(targets))
    mark = torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8)  # (32,)
    model.register_buffer(MARK, mark)
    model.stands_on = base  # type: ignore[assignment]
    model.register_state_dict_post_hook(_drop_base)  # type: ignore[no-untyped-call]
    return base


def stands_on(model: nn.Module) -> list[dict[str, str]]:
    """Return the bases of a model and its parts, for a manifest: module, path and hash."""
    return [
        {"module": name, "path": base.path, "sha256": base.sha256}
        for name, _, base in _bases(model)
    ]


def check_base(model: nn.Module, source: str) -> None:
    """Refuse weights, just loaded, that were trained on top of another base."""
    for name, module, base in _bases(model):
        loaded = bytes(module.get_buffer(MARK).cpu().tolist()).hex()
        if loaded != base.sha256:
            raise CheckpointError(
                f"{source} was trained on top of another base{f' ({name})' if name else ''}: on "
                f"one of SHA-256 {loaded[:16]}, and {base.key}={base.path} has "
                f"{base.sha256[:16]}. Set {base.key} to the base that it was trained on; "
                "`overt ckpt inspect` shows its path"
            )


def _bases(model: nn.Module) -> Iterator[tuple[str, nn.Module, Base]]:
    for name, module in model.named_modules():
        base = vars(module).get("stands_on")
        if isinstance(base, Base):
            yield name, module, base


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _drop_base(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    base = vars(module)["stands_on"]
    for name in base.names:
        state.pop(prefix + name, None)
