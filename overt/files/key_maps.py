"""Tensors under other names, by rule: projects call the same layer differently."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from overt.errors import CheckpointError, ConfigError
from overt.files.weight_files import some

# (regular expression found in a key, what takes its place; None drops the key)
KeyRule = tuple[str, str | None]


def rename_keys(
    tensors: Mapping[str, Tensor], rules: Sequence[KeyRule], source: str, key: str
) -> dict[str, Tensor]:
    """Return the tensors under new names: every rule, in order, is applied to every key.

    A rule that fits no key is refused, since it is a slip: the tensors would stay random. `key`
    names the rules in a message.
    """
    _refuse_other_shapes(rules, key)
    names = {name: name for name in tensors}  # name in the file to name so far
    for index, (pattern, replacement) in enumerate(rules):
        try:
            expression = re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"{key}.{index}.match={pattern} is not a regular expression: {error}"
            ) from None
        fitting = {name for name, new_name in names.items() if expression.search(new_name)}
        if not fitting:
            raise CheckpointError(
                f"{key}.{index}.match={pattern} fits no tensor of {source}; at this point it has "
                f"{some(names.values(), 6)}. Correct the expression, or remove the rule"
            )
        for name in fitting:
            if replacement is None:
                del names[name]
                continue
            try:
                names[name] = expression.sub(replacement, names[name])
            except (re.error, IndexError) as error:
                raise ConfigError(
                    f"{key}.{index}.to={replacement} does not fit {pattern}: {error}; groups are "
                    r"\1, \2, ..."
                ) from None
    owners: dict[str, str] = {}
    for name, new_name in names.items():
        if new_name in owners:
            raise CheckpointError(
                f"{key}: {owners[new_name]} and {name} of {source} both become {new_name}; make "
                "the expressions narrower, or drop one of them with `to: null`"
            )
        owners[new_name] = name
    return {new_name: tensors[name] for new_name, name in owners.items()}


def _refuse_other_shapes(rules: Any, key: str) -> None:
    """Refuse rules that are not pairs: the keys of a dict of two letters would unpack as such."""
    given = [rules] if isinstance(rules, str | Mapping) else rules
    for rule in given:
        match rule:
            case (str(), str() | None):
                continue
        raise ConfigError(
            f"{key}: expected pairs [(match, to), ...] of a regular expression and its replacement "
            f"or None, got {rule!r}"
        )
