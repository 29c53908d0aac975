"""Loader processes: the server they are forked from, and what happens when one of them dies.

torch's loader shares a queue and an event with its processes. If one is killed in the middle of a
message, or while it holds their locks, the training process would wait forever: with a
`LoaderContext` the other processes end as well, and with them the wait.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.queues import Queue
from types import ModuleType
from typing import Any, TypeVar

from overt.errors import LoaderError

Value = TypeVar("Value")

NEWS_SECONDS = 5.0  # until the server has reported the end of a process, on a busy machine too
SERVER_IS_GONE = 255  # what multiprocessing takes for the exit code of its processes then
EXIT_SECONDS = 2.0  # that processes have to end by themselves when this one exits


class Flag:
    """An event without a lock, set when a pipe is readable: no killed process can hold it."""

    def __init__(self) -> None:
        self.reader, self._writer = multiprocessing.Pipe(duplex=False)

    def set(self) -> None:
        if not self.is_set():
            self._writer.send_bytes(b"x")

    def is_set(self) -> bool:
        return self.reader.poll()

    def __getstate__(self) -> dict[str, Any]:
        return {"reader": self.reader}  # loader processes only ask


class LoaderContext(ForkServerContext):
    """The context of the processes of one loader; it monitors them."""

    def __init__(self) -> None:
        self._processes: list[ForkServerProcess] = []
        self._queues: list[Queue[Any]] = []
        self._flags: list[Flag] = []
        self._watcher: threading.Thread | None = None
        self._death: str | None = None  # what happened, as a message
        self.closing = self.Event()  # set: the processes may be ended

    # The interface that torch's loader expects of a context.

    def Process(self, *arguments: Any, **options: Any) -> ForkServerProcess:  # type: ignore[override]  # noqa: N802
        process = ForkServerProcess(*arguments, **options)
        self._processes.append(process)
        return process

    def Queue(self, maxsize: int = 0) -> Queue[Any]:  # noqa: N802
        queue: Queue[Any] = Queue(maxsize, ctx=self)
        self._queues.append(queue)
        return queue

    def Event(self) -> Flag:  # type: ignore[override]  # noqa: N802
        flag = Flag()
        self._flags.append(flag)
        return flag

    def read(self, loader: Iterable[Value]) -> Iterator[Value]:
        """Yield what a loader with this context reads; end its processes in any case."""
        batches: Iterator[Value] | None = None
        try:
            with self._explained():
                batches = iter(loader)  # starts the processes
                self._watch()
                yield from batches
        finally:
            self.closing.set()
            # Torch's own shutdown first: it ends the thread that reads from the processes before
            # them.
            getattr(batches, "_shutdown_workers", lambda: None)()
            self.end()

    def _watch(self) -> None:
        atexit.register(self.end)
        self._watcher = threading.Thread(
            target=self._end_together, name="overt-loader", daemon=True
        )
        self._watcher.start()

    def _end_together(self) -> None:
        """Wait until one process has died, then end all."""
        sentinels = {process.sentinel: process for process in self._processes}
        ready = wait([*sentinels, *(flag.reader for flag in self._flags)])
        if any(flag.is_set() for flag in self._flags):  # they have been told to end
            return
        dead = [sentinels[sentinel] for sentinel in ready if isinstance(sentinel, int)]
        self._death = _in_words(dead[0].pid, dead[0].exitcode)
        self._kill()
        # Nobody can complete a truncated message: readers waiting for the rest see its end.
        self._queues[0]._writer.close()  # type: ignore[attr-defined]  # the queue of all results

    def _kill(self) -> None:
        for process in self._processes:
            # If the server itself was killed, processes that have "ended" may be alive.
            if process.pid is not None and process.exitcode in (None, SERVER_IS_GONE):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise a LoaderError instead of what torch's loader raises after a death."""
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:
            if self._watcher is None:
                if isinstance(error, ConnectionError | EOFError):
                    raise LoaderError(_in_words(None, None)) from error
                raise
            # Errors from reading a sample come here as well: then all processes are alive.
            self._watcher.join(NEWS_SECONDS)
            if self._death is None:
                raise
            raise LoaderError(self._death) from error

    def end(self) -> None:
        """End the processes: gracefully, or by force if they do not respond."""
        atexit.unregister(self.end)
        self.closing.set()
        if self._watcher is not None:
            self._watcher.join()
        give_up = time.monotonic() + EXIT_SECONDS
        started = [process for process in self._processes if process.pid is not None]
        if len(started) < len(self._processes):
            _end_server()
        for process in started:
            process.terminate()
        for process in started:
            process.join(max(give_up - time.monotonic(), 0.0))
        self._kill()


def _end_server() -> None:
    """End the server where an interrupt came while it was asked for a process.

    It would start that process when it has imported everything, with a traceback: this process, and
    the locks that both would share, are gone by then. The next loader starts another server.
    """
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _in_words(pid: int | None, code: int | None) -> str:
    """Return what happened to a loader process, and a remedy."""
    if pid is None:
        ended = "a loader worker died while it was started"
    elif code is not None and code < 0:
        ended = f"loader worker {pid} was killed by {signal.Signals(-code).name}"
    elif code == 1:  # Python's, after an error
        return (
            f"loader worker {pid} ended with an error, which is printed above. Loader processes "
            "import the script that trains: put what it does under `if __name__ == '__main__':`, "
            "or set training.num_workers=0."
        )
    else:
        ended = f"loader worker {pid} ended unexpectedly with exit code {code}"
    return (
        f"{ended}. The system kills processes when memory runs out (see `dmesg`), and with "
        "SIGBUS when /dev/shm is full: set a smaller training.num_workers, or 0 to read samples in "
        "the training process. The same command resumes."
    )


def loader_context(module: str) -> LoaderContext:
    """Return the context of loader processes of a module, whose server imports what they need.

    Otherwise each worker imports it by itself, and in turn: a pickled data set is larger than a
    pipe's buffer, so the start of a worker waits until the one before has read its own. With 14
    workers on 16 cores the first step of `simclr_cifar` took 79 seconds; it takes 4. The rest of
    this process, the engine and torch's compiler, would take the server as long again to import;
    only if the main script imports them, every worker does so too.
    """
    context = LoaderContext()
    needed = {name for name in sys.modules if name.startswith(("overt.data.", "overt.recipes."))}
    context.set_forkserver_preload(["torch", module, *sorted(needed | _imported_by_main())])
    return context


def _imported_by_main() -> set[str]:
    """Return the modules of overt that the main script has names from."""
    values = list(vars(sys.modules["__main__"]).values())
    names = (
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        for value in values
    )
    return {name for name in names if isinstance(name, str) and name.startswith("overt.")}
