"""Operations that dominate a model's time: plain PyTorch definitions, Triton twins for CUDA."""

from importlib.util import find_spec

HAS_TRITON = find_spec("triton") is not None
