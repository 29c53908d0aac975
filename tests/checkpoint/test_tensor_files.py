import json
import os
import zlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from overt.checkpoint import tensor_files
from overt.checkpoint.tensor_files import (
    DTYPE_NAMES,
    Bytes,
    Snapshot,
    TensorFile,
    checksum_file,
    write_file,
)
from overt.errors import CheckpointError


def random_bits(shape, dtype, seed=0):
    """Every bit pattern may occur, NaNs with payloads too (booleans are 0 or 1)."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.empty((), dtype=dtype).element_size()
    count = int(torch.Size(shape).numel())
    high = 2 if dtype == torch.bool else 256
    bits = torch.randint(0, high, (max(count, 1) * size,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype)[:count].reshape(shape)


def same_bits(first, second):
    def flat(tensor):
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and torch.equal(flat(first), flat(second))
    )


def snapshot_of(file):
    snapshot = Snapshot()
    snapshot.take(file)
    return snapshot


@pytest.mark.parametrize("through", [lambda file: file, snapshot_of])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(DTYPE_NAMES)), st.lists(st.integers(0, 4), max_size=3)),
        max_size=6,
    )
)
def test_any_tensors_come_back_bit_for_bit(tmp_path, through, kinds):
    tensors = {
        f"layer.{index}": random_bits(tuple(shape), dtype, index)
        for index, (dtype, shape) in enumerate(kinds)
    }
    checksum = write_file(tmp_path / "a", through(TensorFile(tensors, {"who": "me"})))
    assert checksum == f"{zlib.crc32((tmp_path / 'a').read_bytes()):08x}"
    loaded = load_file(tmp_path / "a")
    assert loaded.keys() == tensors.keys()
    assert all(same_bits(loaded[name], tensors[name]) for name in tensors)
    with safe_open(tmp_path / "a", "pt") as file:
        assert file.metadata() == {"who": "me"}


def test_many_pieces_and_strange_strides(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "BLOCK", 4096)
    matrix = torch.randn(70, 90)
    tensors = {
        "long": torch.randn(12345),
        "transposed": matrix.t(),
        "strided": matrix[::2, 1::3],
        "channels_last": torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last),
        "expanded": torch.randn(1, 4).expand(6, 4),
    }
    for content in (TensorFile(tensors), snapshot_of(TensorFile(tensors))):
        path = tmp_path / type(content).__name__
        checksum = write_file(path, content)
        assert checksum == checksum_file(path) == f"{zlib.crc32(path.read_bytes()):08x}"
        assert os.path.getsize(path) == content.size
        loaded = load_file(path)
        assert all(same_bits(loaded[name], tensors[name]) for name in tensors)


def test_snapshot_keeps_its_buffer_and_its_values():
    tensor = torch.arange(1000.0)
    snapshot = Snapshot()
    snapshot.take(TensorFile({"a": tensor}))
    first = bytes(next(snapshot.blocks()))
    where = snapshot._buffer.data_ptr()
    tensor.zero_()
    assert bytes(next(snapshot.blocks())) == first
    snapshot.take(TensorFile({"a": tensor}))
    assert snapshot._buffer.data_ptr() == where
    assert bytes(next(snapshot.blocks())) != first


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097])
def test_small_files(tmp_path, size):
    data = bytes(range(256)) * 17
    write_file(tmp_path / "a", Bytes(data[:size]))
    assert (tmp_path / "a").read_bytes() == data[:size]


def test_file_system_without_direct_writing(tmp_path, monkeypatch):
    real = os.open

    def refuse_direct(path, flags, *rest, **named):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse_direct)
    write_file(tmp_path / "a", TensorFile({"a": torch.ones(5)}))
    assert torch.equal(load_file(tmp_path / "a")["a"], torch.ones(5))


def writes_directly(folder):
    try:
        os.close(os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except (OSError, AttributeError):
        return False
    return True


def test_disk_with_coarser_alignment(tmp_path, monkeypatch):
    """A direct write that is refused, and one that is cut short, go on through the page cache."""
    if not writes_directly(tmp_path):
        pytest.skip("this file system has no direct writing")
    real, calls = os.pwrite, []

    def awkward(descriptor, data, offset):
        calls.append(offset)
        if len(calls) == 1:
            return real(descriptor, data[:4096], offset)
        if len(calls) == 2:
            raise OSError(22, "Invalid argument")
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", awkward)
    values = torch.randn(5000)
    write_file(tmp_path / "a", TensorFile({"a": values}))
    assert torch.equal(load_file(tmp_path / "a")["a"], values)
    assert calls == [0, 4096, 4096]


def test_what_the_format_cannot_hold_is_refused_by_name():
    with pytest.raises(CheckpointError, match=r"spectrum.*complex64"):
        TensorFile({"spectrum": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(CheckpointError, match=r"table.*sparse"):
        TensorFile({"table": torch.zeros(2, 2).to_sparse()})


def test_header_reads_files_of_the_library_and_refuses_others(tmp_path):
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "a", metadata={"k": "v"})
    header = tensor_files.read_header(tmp_path / "a")
    assert header["a"]["shape"] == [2, 3]
    assert header["__metadata__"] == {"k": "v"}
    whole = (tmp_path / "a").read_bytes()
    text = json.dumps([1, 2]).encode()
    damaged = (
        b"",
        b"{",
        whole[:-1],
        whole[:30],
        whole + b"x",
        len(text).to_bytes(8, "little") + text,
    )
    for data in damaged:
        (tmp_path / "b").write_bytes(data)
        with pytest.raises(CheckpointError):
            tensor_files.read_header(tmp_path / "b")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_are_copied_before_later_work_changes_them(tmp_path):
    tensors = {
        "a": torch.randn(1 << 22, device="cuda"),
        "b": torch.randn(300, 200, device="cuda").t(),
        "step": torch.tensor(3.0),
    }
    expected = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
    write_file(tmp_path / "direct", TensorFile(tensors))
    snapshot = snapshot_of(TensorFile({"small": tensors["step"].cuda()}))
    snapshot.take(TensorFile({"on the host": tensors["step"]}))  # unpinned, then pinned again
    snapshot.take(TensorFile(tensors))
    view = tensor_files.bytes_of(snapshot._buffer)  # torch asks where the storage begins
    assert torch.frombuffer(view, dtype=torch.uint8).is_pinned()
    for tensor in tensors.values():
        tensor.zero_()
    write_file(tmp_path / "later", snapshot)
    for name in ("direct", "later"):
        loaded = load_file(tmp_path / name)
        assert all(same_bits(loaded[key], expected[key]) for key in expected)
