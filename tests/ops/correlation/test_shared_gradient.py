"""overt/ops/correlation/shared_gradient.py: gradients meet in one table, which is then free."""

import gc
import weakref

import torch

from overt.ops.correlation.shared_gradient import SharedGradient


def test_shared_gradients_meet_and_leave_nothing_behind() -> None:
    class Triple(torch.autograd.Function):
        """Three times the cells, its gradient left in the shared table."""

        @staticmethod
        def forward(ctx, turn, table, cells):
            ctx.table, ctx.cells = table, cells
            return 3 * cells

        @staticmethod
        def backward(ctx, gradient):
            ctx.table.add_to(ctx.cells).add_(3 * gradient)
            return torch.zeros(()), None, None

    leaf = torch.ones(4, 2, requires_grad=True)
    cells = leaf * 2
    shared = SharedGradient.of(cells)
    first, second = (Triple.apply(*shared, cells.detach()) for _ in range(2))
    (cells.sum() + first.sum() + 10 * second.sum()).backward()
    assert torch.equal(leaf.grad, torch.full((4, 2), 2 * (1 + 3 + 30.0)))
    assert shared.table.sums is None
    # A circle of references would keep a step's whole graph until the garbage collector comes.
    turn = weakref.ref(shared.turn.grad_fn)
    gc.disable()
    try:
        del shared, cells, first, second
        assert turn() is None
    finally:
        gc.enable()
