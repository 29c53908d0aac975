# One image for GPU and CPU: the default wheels of torch for Linux carry CUDA, cuDNN and NCCL.
#
#   docker build -t overt .
#   docker run --rm --gpus all --shm-size=8g -v "$PWD/runs:/home/overt/runs" overt train recipe=cotracker3_tiny
#   docker run --rm -v "$PWD/runs:/home/overt/runs" overt train recipe=cotracker3_tiny training.device=cpu
#
# For GPUs the host needs a driver and the NVIDIA container toolkit. Loader processes share memory
# through /dev/shm: --shm-size. A smaller image without CUDA: --build-arg TORCH_INDEX=URL with the
# index of torch's CPU wheels.
FROM python:3.12-slim

ARG TORCH_INDEX=""
ARG EXTRAS=onnx

# Triton compiles a small C launcher at run time; git names the commit of a run.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev git \
    && rm -rf /var/lib/apt/lists/*

RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch>=2.11,<2.14"

COPY . /src
RUN pip install --no-cache-dir "/src[$EXTRAS]" && rm -rf /src

RUN useradd --create-home --uid 1000 overt
USER overt
WORKDIR /home/overt

# Fails the build where the package cannot be imported or lacks its pages.
RUN overt -V && overt docs index > /dev/null

ENTRYPOINT ["overt"]
CMD ["--help"]
