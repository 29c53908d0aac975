"""overt/ops/raster/api.py: the definition on the CPU, and no waiting for the device on CUDA."""

import pytest
import torch

from overt.ops.raster.api import nearest_faces
from overt.ops.raster.plain import nearest_faces_plain

PIXELS = torch.tensor([[[2.0, 3.0], [2.0, 13.0], [12.0, 3.0]]])
DEPTH, FACES, SIZE = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0, 1, 2]]), (16, 18)


@pytest.mark.parametrize("perspective", [True, False])
def test_the_cpu_has_the_definition(perspective: bool) -> None:
    drawn = nearest_faces(PIXELS, DEPTH, FACES, SIZE, perspective)
    expected = nearest_faces_plain(PIXELS, DEPTH, FACES, SIZE, perspective)
    for found, known in zip(drawn, expected, strict=True):
        assert torch.equal(found, known)
    assert [part.shape for part in drawn] == [(1, 16, 18), (1, 16, 18), (1, 16, 18, 3)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_graph_records_it() -> None:
    mesh = [part.cuda() for part in (PIXELS, DEPTH, FACES)]
    expected = nearest_faces(*mesh, SIZE)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = nearest_faces(*mesh, SIZE)
    graph.replay()
    for found, known in zip(drawn, expected, strict=True):
        assert torch.equal(found, known)
