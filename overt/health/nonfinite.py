"""The search for the module that produced NaN or Inf, and for parameters without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from overt.errors import ConfigError
from overt.nested import tensors_in


def idle_parameters(model: nn.Module) -> str | None:
    """After a backward pass: a message about parameters that got no gradient, if there are any."""
    idle = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    if not idle:
        return None
    return (
        f"{len(idle)} parameter(s) got no gradient, first {', '.join(idle[:5])}: the loss does not "
        "depend on them, and DistributedDataParallel would wait for them forever. Give them a "
        "loss, or set requires_grad_(False)."
    )


def check_gradients(model: nn.Module, several_ranks: bool, say: Callable[[str], None]) -> None:
    """Refuse parameters without a gradient on several ranks, after a first backward pass."""
    message = idle_parameters(model)
    if message and several_ranks:
        raise ConfigError(message)
    if message:
        say(f"one process trains anyway, several would not: {message}")


def first_nonfinite_module(model: nn.Module, run: Callable[[], Tensor]) -> str | None:
    """Run a batch again and name the first module that turned finite numbers into NaN or Inf.

    `run` computes the loss. Neither gradients nor buffers of the model are changed. None where
    everything was finite this time.
    """
    watch = _Watch()
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        for name, module in model.named_modules():
            watch.follow(name, module)
        with torch.enable_grad():
            loss = run()
        if watch.culprit is None and torch.isfinite(loss):
            watch.follow_gradients(loss)
            parameters = [value for value in model.parameters() if value.requires_grad]
            torch.autograd.grad(loss, parameters, allow_unused=True)
        elif watch.culprit is None:
            watch.culprit = watch.bad_input or "the loss, after the model's last module"
    finally:
        for handle in watch.handles:
            handle.remove()
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    return watch.culprit


class _Watch:
    """Hooks on modules for the forward pass, on the nodes they made for the backward pass.

    Not torch's backward hooks of modules: these forbid operations in place, and do not see a
    gradient that only reaches a parameter.
    """

    def __init__(self) -> None:
        self.culprit: str | None = None
        self.bad_input: str | None = None
        self.handles: list[RemovableHandle] = []
        self.maker: dict[Node, str] = {}  # the innermost module that made a node of the graph
        self.borders: list[set[Node]] = []  # of the modules now at work: what made their inputs

    def follow(self, name: str, module: nn.Module) -> None:
        label, kind = name or "the model", type(module).__name__

        def enter(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if not self.bad_input and not _is_finite((arguments, named)):
                self.bad_input = f"the input of {label} ({kind}), before any module"
            self.borders.append(_makers((arguments, named)))

        def leave(
            _: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: object
        ) -> None:
            for node in _graph(_makers(output), border=self.borders.pop()):
                self.maker.setdefault(node, f"{label} ({kind}, backward)")
            if self.culprit is None and _is_finite((arguments, named)) and not _is_finite(output):
                self.culprit = f"{label} ({kind}, forward)"

        self.handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        self.handles.append(module.register_forward_hook(leave, with_kwargs=True))

    def follow_gradients(self, loss: Tensor) -> None:
        def check(maker: str) -> Callable[..., None]:
            def hook(outgoing: object, incoming: object) -> None:
                if self.culprit is None and _is_finite(incoming) and not _is_finite(outgoing):
                    self.culprit = maker

            return hook

        for node in _graph(_makers(loss), border=set()):
            maker = self.maker.get(node, "the gradient of the loss, after the model's last module")
            self.handles.append(node.register_hook(check(maker)))


def _graph(nodes: set[Node], border: set[Node]) -> set[Node]:
    """Return all nodes of the autograd graph below `nodes`, these included, up to the border."""
    reached: set[Node] = set()
    todo = list(nodes - border)
    while todo:
        node = todo.pop()
        if node not in reached:
            reached.add(node)
            todo += {below for below, _ in node.next_functions if below is not None} - border
    return reached


def _makers(value: object) -> set[Node]:
    return {tensor.grad_fn for tensor in tensors_in(value) if tensor.grad_fn is not None}


def _is_finite(value: object) -> bool:
    return all(
        bool(torch.isfinite(tensor).all())
        for tensor in tensors_in(value)
        if tensor.is_floating_point()
    )
