"""overt/health/compiling.py: compilers survive a signal to the whole job, and no exit waits."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor
from torch._inductor.async_compile import AsyncCompile, shutdown_compile_workers

from overt.engine.strategy.blocks import compile_in_place
from overt.errors import StoppedAtStart
from overt.health.compiling import end_compilers
from overt.health.preemption import SIGNALS, stop_within


def masked() -> bool:
    """Return whether a process started now by this thread would not get the signals."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= set(SIGNALS)


class Double(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return 2 * inputs


def compile_with(call: Callable[[], object]) -> nn.Module:
    """Return a module whose compilation makes this call."""

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        call()
        return graph.forward

    module = Double()
    compile_in_place([module], backend, 1.0)  # type: ignore[arg-type]
    return module


def test_what_is_started_during_a_compilation_does_not_get_the_signals() -> None:
    during: list[bool] = []
    module = compile_with(lambda: during.append(masked()))
    assert not masked()
    module(torch.ones(1))
    assert during == [True]
    assert not masked()


def test_a_compilation_that_a_stop_breaks_off_leaves_the_signals_as_they_were() -> None:
    """Torch reports a failure of the compiler; overt/engine/ending.py looks for the cause."""
    asked = StoppedAtStart("SIGTERM")

    def leave() -> None:
        raise asked

    with pytest.raises(RuntimeError) as raised:
        compile_with(leave)(torch.ones(1))
    assert stop_within(raised.value) is asked
    assert not masked()


@pytest.mark.long
def test_the_compile_server_survives_signals_and_is_killed_at_work_by_an_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch waits indefinitely for a dead one: an evaluation that compiled after SIGTERM hung."""
    monkeypatch.setattr(inductor, "compile_threads", 2)
    monkeypatch.setattr(inductor, "worker_start_method", "subprocess")
    shutdown_compile_workers()  # of other tests
    compile_with(AsyncCompile.warm_pool)(torch.ones(1))
    pool = AsyncCompile.process_pool()
    try:
        worker = pool.submit(os.getpid).result(120)
        for number in SIGNALS:
            for process in (pool.process.pid, worker):
                os.kill(process, number)
        assert pool.submit(max, 1, 2).result(30) == 2
        assert pool.process.poll() is None
        pool.submit(time.sleep, 1000)
        end_compilers()
        assert pool.process.wait(30) == -signal.SIGKILL
    finally:
        pool.process.kill()
        shutdown_compile_workers()
