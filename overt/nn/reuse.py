"""A module that runs many times in a step: weights are cast once, their gradients added at once.

Under autocast a compiled module casts every weight in every run, and autograd adds the gradient of
every weight of every run to the sum so far: hundreds of small launches for each run. Here weights
are cast once for all runs, and the gradients of a run are added in a single launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from overt.ops.dispatch import compute_type

Run = Callable[..., Any]


def reused(module: nn.Module) -> Run:
    """The module's call, for all of its runs in one forward pass.

    Where there is nothing to save (no gradient wanted, not on CUDA, weights sharded over processes)
    it is the module itself.
    """
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    plain = all(type(weight) is nn.Parameter and weight.is_cuda for weight in weights)
    return together(module) if weights and plain and torch.is_grad_enabled() else module


def together(module: nn.Module) -> Run:
    """The same wherever the module is."""
    named = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    sums = _Sums()
    # Stands for the weights in autograd's graph: their gradients are asked for after the last run.
    turn = _HandOver.apply(sums, *named.values())  # type: ignore[no-untyped-call]
    used = _cast(module, named)

    def call(*arguments: Any) -> Any:
        leaves_given, shape = tree_flatten(arguments)
        structures: list[Any] = []  # the structure of the result, known after the run

        def run(*leaves: Any) -> tuple[Tensor, ...]:
            arguments = tree_unflatten(list(leaves), shape)
            result, structure = tree_flatten(functional_call(module, used, arguments))
            structures.append(structure)
            return tuple(result)

        results = _Run.apply(run, sums, used, turn, *leaves_given)  # type: ignore[no-untyped-call]
        return tree_unflatten(list(results), structures[0])

    return call


def _cast(module: nn.Module, named: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """Leaves to use in place of the weights; those of linear layers as autocast would have them."""
    linear = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        if isinstance(part, nn.Linear)
        for name in ("weight", "bias")
    }
    return {
        name: weight.detach().to(compute_type(weight) if name in linear else None).requires_grad_()
        for name, weight in named.items()
    }


class _Sums:
    """The gradients so far; without a reference to the graph, which a cycle would keep alive."""

    def __init__(self) -> None:
        self.values: dict[int, Tensor] = {}  # by the number of the weight

    def add(self, gradients: list[Tensor | None]) -> None:
        present = {
            number: gradient for number, gradient in enumerate(gradients) if gradient is not None
        }
        # One launch takes tensors of one type and layout; given others it makes one for each.
        alike: dict[tuple[torch.dtype, bool, bool], list[int]] = {}
        for number, gradient in present.items():
            total = self.values.get(number)
            same_layout = total is None or total.stride() == gradient.stride()
            alike.setdefault((gradient.dtype, total is None, same_layout), []).append(number)
        for (_, first, _), numbers in alike.items():
            ours = [present[number] for number in numbers]
            if first:
                # Copies: two weights may have been handed one and the same tensor.
                copies = torch._foreach_mul(ours, 1.0)
                self.values |= dict(zip(numbers, copies, strict=True))
            else:
                torch._foreach_add_([self.values[number] for number in numbers], ours)

    def take(self) -> dict[int, Tensor]:
        """The sums, which are then the caller's."""
        values, self.values = self.values, {}
        return values


class _HandOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: _Sums, *weights: Tensor) -> Tensor:
        ctx.sums, ctx.types = sums, [weight.dtype for weight in weights]
        return weights[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        sums = ctx.sums.take()
        return None, *(
            sums[index].to(dtype) if index in sums else None
            for index, dtype in enumerate(ctx.types)
        )


class _Run(torch.autograd.Function):
    """One run with a separate graph, whose ends are the run's inputs and the weights."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, sums: _Sums, weights: dict[str, Tensor], turn: Tensor, *leaves: Any
    ) -> tuple[Tensor, ...]:
        inputs = [
            leaf.detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
        with torch.enable_grad():
            results: tuple[Tensor, ...] = run(*inputs)
        ctx.sums, ctx.weights = sums, list(weights.values())
        ctx.inputs, ctx.results = inputs, results
        ctx.set_materialize_grads(False)
        outputs = tuple(
            result.detach() if isinstance(result, Tensor) else result for result in results
        )
        ctx.mark_non_differentiable(
            *(
                out
                for out, result in zip(outputs, results, strict=True)
                if isinstance(result, Tensor) and not result.requires_grad
            )
        )
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        ends = [
            tensor for tensor in ctx.inputs if isinstance(tensor, Tensor) and tensor.requires_grad
        ]
        pairs = [
            (tensor, gradient)
            for tensor, gradient in zip(ctx.results, gradients, strict=True)
            if gradient is not None
        ]
        results = list(
            torch.autograd.grad(
                [tensor for tensor, _ in pairs],
                [*ends, *ctx.weights],
                [gradient for _, gradient in pairs],
                allow_unused=True,
            )
        )
        ctx.sums.add(results[len(ends) :])
        to_inputs = iter(results[: len(ends)])
        back = [
            next(to_inputs) if isinstance(tensor, Tensor) and tensor.requires_grad else None
            for tensor in ctx.inputs
        ]
        # A zero, so that autograd calls this after every run.
        nothing = ctx.weights[0].new_zeros((), dtype=torch.float32)
        ctx.inputs = ctx.results = ctx.weights = None
        return None, None, None, nothing, *back
