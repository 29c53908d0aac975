"""Which optimizer class steps which parameters: the rules of `optimizer.rules`, and the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from overt.config.schema import OptimizerRule, OptimizerSection
from overt.errors import ConfigError

MATRICES = "matrices"


@dataclass(frozen=True)
class Assignment:
    """Parameter groups of one optimizer class, and the key of its settings."""

    key: str  # of its settings: optimizer, or optimizer.rules.0
    target: str
    weight_decay: float
    arguments: dict[str, Any]
    groups: list[dict[str, Any]]


def assign(
    section: OptimizerSection, model: nn.Module, groups: Sequence[dict[str, Any]]
) -> list[Assignment]:
    """Return which class steps which parts of `groups`: the section's own first, then each rule's.

    The first rule that matches a parameter takes it. A group of which a rule takes a part is split;
    both parts keep its settings.
    """
    decay = section.weight_decay
    default = Assignment("optimizer", section._target_, decay, section.arguments, [])
    if not section.rules:
        default.groups.extend(groups)
        return [default]
    assignments = [
        Assignment(
            f"optimizer.rules.{number}",
            rule._target_,
            decay if rule.weight_decay is None else rule.weight_decay,
            rule.arguments,
            [],
        )
        for number, rule in enumerate(section.rules)
    ]
    tables = _embeddings(model)
    for group in groups:
        by_rule: dict[int | None, list[tuple[str, Tensor]]] = {}
        for name, parameter in group["params"]:
            matches = (
                number
                for number, rule in enumerate(section.rules)
                if _matches(rule, name, parameter, tables)
            )
            by_rule.setdefault(next(matches, None), []).append((name, parameter))
        for number, pairs in by_rule.items():
            part = {**group, "params": pairs}
            if number is None:
                default.groups.append(part)
            else:
                part |= _settings(section, number, group)
                assignments[number].groups.append(part)
    for assignment, rule in zip(assignments, section.rules, strict=True):
        if not assignment.groups:
            raise ConfigError(_no_match(assignment.key, rule, groups))
    return [assignment for assignment in (default, *assignments) if assignment.groups]


def _matches(rule: OptimizerRule, name: str, parameter: Tensor, tables: set[Tensor]) -> bool:
    if rule.skip is not None and re.search(rule.skip, name):
        return False
    if rule.match != MATRICES:
        return re.search(rule.match, name) is not None
    # Torch calls what multiplies `weight` (`in_proj_weight`); other 2-D parameters are tables, of
    # positions for example. A single row or column is a vector.
    is_weight = name.rpartition(".")[2].endswith("weight") and parameter not in tables
    return is_weight and parameter.ndim == 2 and min(parameter.shape) > 1


def _embeddings(model: nn.Module) -> set[Tensor]:
    """Return the weights of embeddings, also of those that another module shares."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return {module.weight for module in model.modules() if isinstance(module, kinds)}


def _settings(section: OptimizerSection, number: int, group: dict[str, Any]) -> dict[str, Any]:
    """Return what a rule changes in a group; factors of the group's own are multiplied."""
    rule = section.rules[number]
    factor = rule.lr_scale if rule.lr is None else rule.lr / section.lr
    changes: dict[str, Any] = {"lr_scale": group["lr_scale"] * factor}
    if rule.weight_decay is not None and section.weight_decay_schedule is not None:
        if section.weight_decay == 0:
            raise ConfigError(
                f"optimizer.rules.{number}.weight_decay={rule.weight_decay} with "
                "optimizer.weight_decay=0: optimizer.weight_decay_schedule keeps the ratio of the "
                "two, so optimizer.weight_decay must be above 0; or remove the schedule"
            )
        changes["decay_scale"] = rule.weight_decay / section.weight_decay
    return changes


def _no_match(key: str, rule: OptimizerRule, groups: Sequence[dict[str, Any]]) -> str:
    names = [name for group in groups for name, _ in group["params"]]
    exception = f" but {rule.skip}" if rule.skip is not None else ""
    return (
        f"{key}.match={rule.match}{exception} matches no trainable parameter, or earlier rules "
        f"have taken all; the names are {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}. "
        f"Change {key}.match, or remove the rule"
    )
