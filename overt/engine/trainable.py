"""The parameters that train: chosen when the run is built, narrowed by `only` for one pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from overt.errors import ConfigError, nearest

# Prefixes of parameter names, "critic." or ("neck.", "head."); None: all that train.
Only = str | tuple[str, ...] | None


class Trainable:
    """All parameters of a model by name, and which of them the optimizer was built for."""

    def __init__(self, model: nn.Module) -> None:
        self.named = dict(model.named_parameters())
        self.parameters = [value for value in self.named.values() if value.requires_grad]
        self._flags = [value.requires_grad for value in self.named.values()]
        self._chosen: dict[tuple[str, ...], list[nn.Parameter]] = {}

    def chosen(self, only: Only) -> list[nn.Parameter]:
        """Return the parameters whose names begin with `only`; None: all that train."""
        if only is None:
            return self.parameters
        prefixes = _as_tuple(only)
        if prefixes not in self._chosen:
            trained = {id(parameter) for parameter in self.parameters}
            names = [name for name, value in self.named.items() if id(value) in trained]
            for prefix in prefixes:
                if not any(name.startswith(prefix) for name in names):
                    raise ConfigError(
                        f"only={prefix!r}: no trainable parameter has this prefix"
                        f"{nearest(prefix, names)}; they begin with "
                        + ", ".join(dict.fromkeys(name.partition(".")[0] + "." for name in names))
                    )
            chosen = [self.named[name] for name in names if name.startswith(prefixes)]
            self._chosen[prefixes] = chosen
        return self._chosen[prefixes]

    def gradients_for(self, only: Only) -> AbstractContextManager[list[nn.Parameter]]:
        """Let a pass compute gradients of these parameters alone, which the context gives.

        The others are constants for the pass: gradients flow through them, none is kept for them.
        """
        return nullcontext(self.parameters) if only is None else self._others_constant(only)

    def only_gradients_of(
        self, only: Only, scaled: bool = False
    ) -> AbstractContextManager[list[nn.Parameter]]:
        """Hide the gradients of all other parameters from clipping and the optimizer.

        `scaled`: gradients carry the factor of a loss scaler, which may change with each update, so
        that none can wait for a later one.
        """
        return nullcontext(self.parameters) if only is None else self._others_hidden(only, scaled)

    @contextmanager
    def _others_constant(self, only: Only) -> Iterator[list[nn.Parameter]]:
        chosen = self.chosen(only)
        idle = [parameter for parameter in self._not_chosen(chosen) if parameter.requires_grad]
        for parameter in idle:
            parameter.requires_grad_(False)
        try:
            yield chosen
        finally:
            for parameter in idle:
                parameter.requires_grad_(True)

    @contextmanager
    def _others_hidden(self, only: Only, scaled: bool) -> Iterator[list[nn.Parameter]]:
        chosen = self.chosen(only)
        hidden = {value: value.grad for value in self._not_chosen(chosen) if value.grad is not None}
        if hidden and scaled:
            raise ConfigError(
                f"training.precision=fp16 with update(only={only!r}) while {self._names(hidden)} "
                "wait for their update: this one may change the gradient scale. Call update() "
                "after each add_gradients, or use bf16"
            )
        for parameter in hidden:
            parameter.grad = None
        try:
            yield chosen
        finally:
            for parameter, gradient in hidden.items():
                parameter.grad = gradient

    def check(self) -> None:
        """Refuse what a step has left that the engine would ignore, or not save.

        Cheap, and yet not for every step: called after the first, and before log lines, evaluations
        and checkpoints.
        """
        changed = [
            name
            for (name, value), flag in zip(self.named.items(), self._flags, strict=True)
            if value.requires_grad != flag
        ]
        if changed:
            is_trained = self.named[changed[0]].requires_grad
            raise ConfigError(
                f"requires_grad of {len(changed)} parameter(s) is not what it was at the start, "
                f"first {', '.join(changed[:5])} (now {is_trained}). Optimizer and reduction "
                "of gradients were built for the parameters of the start. Freeze and unfreeze in "
                "build_model; for another phase start a new run from this one's weights "
                "(checkpoint.init_from=RUN/checkpoints/latest). For a single pass use "
                "add_gradients(..., only=...)"
            )
        left = [value for value in self.parameters if value.grad is not None]
        if left:
            raise ConfigError(
                f"a step leaves gradients behind, of {self._names(left)}; a checkpoint does not "
                "hold them, so that a resumed run would differ. A custom_step has to call update() "
                "for them in the same step, and parameter_groups has to put them into a group"
            )

    def _not_chosen(self, chosen: list[nn.Parameter]) -> list[nn.Parameter]:
        chosen_ids = {id(parameter) for parameter in chosen}
        return [parameter for parameter in self.parameters if id(parameter) not in chosen_ids]

    def _names(self, parameters: Iterable[nn.Parameter]) -> str:
        wanted_ids = {id(parameter) for parameter in parameters}
        names = [name for name, value in self.named.items() if id(value) in wanted_ids]
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _as_tuple(only: str | tuple[str, ...]) -> tuple[str, ...]:
    return (only,) if isinstance(only, str) else tuple(only)
