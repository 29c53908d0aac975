"""Operations that dominate a model's time: plain PyTorch definitions, Triton twins for CUDA.

Each is a package. `api.py` is what callers import, `plain.py` the definition, `kernels.py` the
Triton twin and its registration. Which of the two runs is decided in `dispatch.py` alone.
"""
