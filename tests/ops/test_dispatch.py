"""overt/ops/dispatch.py: one rule for all kernels, and what it says when bits must repeat."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import overt.ops
from overt.ops import dispatch
from overt.ops.dispatch import (
    KERNELS,
    REPLACED_IN_TORCH,
    Kernels,
    can_serve,
    compute_type,
    must_replace,
    replaces,
    use_kernels,
)

FOLDER = Path(overt.ops.__file__).parent
SHARED = {"norm_sums"}  # programs that several kernels call
# Of integers: the tensors, and how they are made.
INTEGER_ATOMICS = {
    "jitter": ({"sums"}, "torch.zeros(count, dtype=torch.int64"),
    "point_search": (
        {"counts_of_cloud", "listed", "next_state"},
        "torch.zeros(shape, dtype=torch.int32",
    ),
    "raster": ({"keys"}, "keys = torch.full(shape, EMPTY, dtype=torch.int64"),
}


def sources(operation: str) -> str:
    """The Triton code of an operation."""
    files = [*(FOLDER / operation).glob("*kernels.py"), *(FOLDER / operation).glob("programs.py")]
    return "\n".join(file.read_text() for file in files)


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before, warn_only=True)


def test_every_operation_with_kernels_is_declared() -> None:
    packages = {path.parent.name for path in FOLDER.glob("*/kernels.py")}
    assert packages - SHARED == KERNELS.keys()
    for operation in REPLACED_IN_TORCH:
        assert (FOLDER / operation / "plain.py").exists()


@pytest.mark.parametrize("operation", KERNELS)
def test_kernels_that_add_with_atomics_are_not_declared_repeatable(operation: str) -> None:
    """Unless they add or compare integers, as those of jitter and raster do."""
    atomics = set(re.findall(r"tl\.atomic_\w+\(\s*(\w+)", sources(operation)))
    if operation in INTEGER_ATOMICS:
        names, made = INTEGER_ATOMICS[operation]
        assert atomics == names
        assert made in sources(operation)
        atomics = set()
    assert KERNELS[operation].repeatable == (not atomics)
    assert KERNELS[operation].reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.uint8])
@pytest.mark.parametrize("operation", KERNELS)
def test_no_unrepeatable_kernel_is_chosen_when_bits_must_repeat(
    operation: str, dtype: torch.dtype
) -> None:
    kernels = KERNELS[operation]
    usual = can_serve(kernels, "cuda", dtype, deterministic=False)
    repeating = can_serve(kernels, "cuda", dtype, deterministic=True)
    assert repeating == (usual and kernels.repeatable)
    assert usual == (dtype in kernels.dtypes)


@pytest.mark.parametrize("operation", KERNELS)
def test_the_cpu_and_a_machine_without_triton_have_the_definition(operation: str) -> None:
    kernels = KERNELS[operation]
    dtype = kernels.dtypes[0]
    assert can_serve(kernels, "cuda", dtype, deterministic=False)
    for device_type in ("cpu", "meta", "mps"):
        assert not can_serve(kernels, device_type, dtype, deterministic=False)
    without = can_serve(kernels, "cuda", dtype, deterministic=False, has_triton=False)
    assert without == (not kernels.needs_triton)


def test_size_and_type_decide() -> None:
    kernels = Kernels(True, "a test", (torch.float16,), longest=10, widest=16, alignment=8)

    def serves(dtype: torch.dtype = torch.float16, length: int = 10, width: int = 16) -> bool:
        return can_serve(kernels, "cuda", dtype, deterministic=True, length=length, width=width)

    assert serves()
    assert not serves(dtype=torch.float32)
    assert not serves(length=11)
    assert not serves(width=24)
    assert not serves(width=12)


def test_a_tensor_of_the_cpu_is_never_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    for operation, kernels in KERNELS.items():
        assert not use_kernels(operation, torch.zeros(2, dtype=kernels.dtypes[0]))


def test_torchs_own_give_way_only_on_cuda_with_a_gradient_when_bits_must_repeat() -> None:
    assert must_replace("cuda", deterministic=True, has_gradient=True)
    assert not must_replace("cpu", deterministic=True, has_gradient=True)
    assert not must_replace("cuda", deterministic=False, has_gradient=True)
    assert not must_replace("cuda", deterministic=True, has_gradient=False)


@pytest.mark.usefixtures("deterministic")
def test_what_is_asked_of_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def note(device_type: str, **known: bool) -> bool:
        asked.append(known)
        return True

    monkeypatch.setattr(dispatch, "must_replace", note)
    leaf = torch.zeros(2, requires_grad=True)
    constant = torch.zeros(2)
    assert replaces("resize", constant, leaf)
    assert replaces("resize", constant)
    with torch.no_grad():
        assert replaces("resize", leaf)
    assert [known["has_gradient"] for known in asked] == [True, False, False]
    assert all(known["deterministic"] for known in asked)


def test_the_type_of_products_is_that_of_autocast() -> None:
    x = torch.zeros(2)
    assert compute_type(x) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert compute_type(x) == torch.bfloat16
    assert compute_type(x.half()) == torch.float16
