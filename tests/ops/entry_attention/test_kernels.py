"""overt/ops/entry_attention/kernels.py against the definition."""

import pytest
import torch
from kernel_tests import DEVICE, ON_GPU, kernel_test
from torch import Tensor

from overt.ops.entry_attention.plain import entry_attention_plain

SIZES = [(1, 1, 1, 16), (4, 3, 12, 256), (3, 5, 20, 40)]  # heads, rows, entries, features


def inputs(sizes, dtype: torch.dtype, has_embedding: bool) -> tuple[list[Tensor], Tensor]:
    heads, rows, length, width = sizes
    generator = torch.Generator().manual_seed(rows)
    shapes = [(heads, rows, width), (rows, length, width), (length, width)]
    tensors = [torch.randn(shape, generator=generator) * 0.5 for shape in shapes]
    ignore = torch.rand(rows, length, generator=generator) < 0.3
    ignore[:, 0] = False
    kept = tensors if has_embedding else tensors[:2]
    # The embedding is a weight: it stays in float32.
    dtypes = [dtype, dtype, torch.float32]
    return [tensor.to(DEVICE, kind) for tensor, kind in zip(kept, dtypes, strict=False)], ignore.to(
        DEVICE
    )


def results(function, tensors: list[Tensor], ignore, seed, rate: float) -> list[Tensor]:
    """Both results and the gradient of each input, for fixed gradients of both."""
    own = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    embedding = own[2] if len(own) == 3 else None
    read, sums = function(own[0], own[1], embedding, ignore, seed, 5, rate)
    generator = torch.Generator().manual_seed(1)
    gradients = [
        torch.randn(part.shape, generator=generator).to(part.device, part.dtype)
        for part in (read, sums)
    ]
    return [read, sums, *torch.autograd.grad([read, sums], own, gradients)]


@kernel_test
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("has_embedding", [True, False])
@pytest.mark.parametrize(("rate", "ignores"), [(0.0, False), (0.25, True)])
def test_the_kernels_compute_what_the_definition_computes(
    sizes, has_embedding: bool, rate: float, ignores: bool
) -> None:
    from overt.ops.entry_attention.kernels import attend_entries

    tensors, ignore = inputs(sizes, torch.float32, has_embedding)
    given = (ignore if ignores else None, torch.tensor(77, device=DEVICE) if rate else None, rate)
    found = results(attend_entries, tensors, *given)
    expected = results(entry_attention_plain, tensors, *given)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@kernel_test
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16] if ON_GPU else [torch.float16])
def test_in_16_bits_they_are_as_exact_as_the_definition(dtype: torch.dtype) -> None:
    from overt.ops.entry_attention.kernels import attend_entries

    tensors, ignore = inputs((4, 16, 12, 256), dtype, has_embedding=True)
    tensors[0] *= 0.1
    seed = torch.tensor(2**40 + 5, device=DEVICE)

    def as_autocast(*arguments):
        with torch.autocast(DEVICE, dtype):
            return entry_attention_plain(*arguments)

    exact = results(entry_attention_plain, [t.float() for t in tensors], ignore, seed, 0.1)
    found = results(attend_entries, tensors, ignore, seed, 0.1)
    plain = results(as_autocast, tensors, ignore, seed, 0.1)
    for ours, theirs, true in zip(found, plain, exact, strict=True):
        assert ours.dtype == theirs.dtype
        bound = 1.5 * (theirs.float() - true).abs().mean() + 1e-3 * true.abs().mean()
        assert (ours.float() - true).abs().mean() <= bound


@kernel_test
def test_entries_may_lie_entry_by_entry_and_so_do_their_gradients() -> None:
    from overt.ops.entry_attention.kernels import attend_entries

    (queries, entries), _ = inputs((2, 3, 5, 16), torch.float32, has_embedding=False)
    frames = entries.transpose(0, 1).contiguous().requires_grad_()  # (J, R, C)
    rows = entries.clone().requires_grad_()
    read, _ = attend_entries(queries, frames.transpose(0, 1), None, None, None, 0, 0.0)
    expected, _ = attend_entries(queries, rows, None, None, None, 0, 0.0)
    assert torch.equal(read, expected)
    (found,) = torch.autograd.grad(read.square().sum(), frames)
    (gradient,) = torch.autograd.grad(expected.square().sum(), rows)
    assert torch.equal(found, gradient.transpose(0, 1))
    assert found.is_contiguous()
    gaps = torch.cat([entries, entries], dim=2)[..., :16]  # neither order
    assert torch.equal(attend_entries(queries, gaps, None, None, None, 0, 0.0)[0], expected)


@kernel_test
def test_entries_of_another_type_and_gradients_of_one_result() -> None:
    from overt.ops.entry_attention.kernels import attend_entries

    (queries, entries), _ = inputs((4, 6, 4, 64), torch.float32, has_embedding=False)
    queries = queries.half().requires_grad_()
    entries.requires_grad_()
    read, sums = attend_entries(queries, entries, None, None, None, 0, 0.0)
    assert (read.dtype, sums.dtype) == (torch.float16, torch.float32)
    to_queries, to_entries = torch.autograd.grad(read.float().sum(), [queries, entries])
    assert (to_queries.dtype, to_entries.dtype) == (torch.float16, torch.float32)
    weights = torch.einsum("hrc,rjc->rhj", queries.float(), entries).softmax(-1)
    # Without a gradient of scores this would be all; the rest vanishes summed over entries.
    torch.testing.assert_close(
        read.float(), torch.einsum("rhj,rjc->hrc", weights, entries), rtol=2e-3, atol=2e-3
    )
    _, again = attend_entries(queries, entries, None, None, None, 0, 0.0)
    (to_queries,) = torch.autograd.grad(again.sum(), [queries])
    assert to_queries.abs().max() < 1e-3  # the sums are one, whatever the query


@kernel_test
def test_the_operator_keeps_its_promises_to_compile() -> None:
    from overt.ops.entry_attention.kernels import attend_entries

    tensors, ignore = inputs((2, 3, 5, 16), torch.float32, has_embedding=True)
    own = [tensor.requires_grad_() for tensor in tensors]
    seed = torch.tensor(3, device=DEVICE)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for given in ((own[2], ignore, seed), (None, None, None)):
        torch.library.opcheck(attend_entries, (own[0], own[1], *given, 1, 0.1), test_utils=checks)


@kernel_test
@pytest.mark.skipif(not ON_GPU, reason="compiles for a GPU")
def test_compiled_it_gives_the_same() -> None:
    from overt.ops.entry_attention.api import entry_attention

    tensors, ignore = inputs((4, 50, 12, 256), torch.float32, has_embedding=True)
    seed = torch.tensor(9, device=DEVICE)
    found = results(torch.compile(entry_attention), tensors, ignore, seed, 0.1)
    expected = results(entry_attention, tensors, ignore, seed, 0.1)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
