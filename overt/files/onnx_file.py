"""A module as an ONNX file, for runtimes without Python. Needs the extra `onnx`."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from overt.errors import ConfigError

OPSET = 20  # the first with a GridSample that TensorRT and ONNX Runtime agree on for 4-D inputs
NEEDED = ("onnx", "onnxscript")


def write_onnx(
    path: Path,
    module: nn.Module,
    example: Sequence[Tensor],
    input_names: Sequence[str],
    output_names: Sequence[str],
    free_axis: Mapping[str, int],  # inputs and outputs with an axis of any length, the same for all
    axis_name: str,
) -> None:
    """Trace `module` on `example` and write it as one file, weights included."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"to write ONNX, {' and '.join(missing)} must be installed: pip install 'overt[onnx]'"
        )
    size = torch.export.Dim(axis_name, min=1)
    shapes = tuple({free_axis[name]: size} if name in free_axis else {} for name in input_names)
    with _fast_convolutions_kept(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about its own parts
        program = torch.onnx.export(
            module.eval(),
            tuple(example),
            input_names=list(input_names),
            output_names=list(output_names),
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None, "the exporter was not asked to write a file itself"
    program.save(path, external_data=False)


@contextmanager
def _fast_convolutions_kept() -> Iterator[None]:
    """Switch on again what a failed attempt of the exporter leaves switched off."""
    backends, nnpack = torch.backends, torch._C._get_nnpack_enabled()
    mkldnn, cudnn = backends.mkldnn.enabled, backends.cudnn.enabled
    try:
        yield
    finally:
        backends.mkldnn.enabled, backends.cudnn.enabled = mkldnn, cudnn
        torch._C._set_nnpack_enabled(nnpack)
