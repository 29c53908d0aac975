"""Requested stops: the signal is recorded, all ranks agree on a step, then they save.

A step only reads a flag; the ranks agree in a thread, through the group's store.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from overt.errors import LaunchError, OvertError, StoppedAtStart
from overt.progress import is_expendable

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from overt.distributed import World

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # SIGHUP: the terminal was closed
START_SECONDS = 20.0  # Slurm and torchrun kill after 30: a start that takes longer is left
EVALUATION_SECONDS = 20.0  # an evaluation that takes longer after a signal is broken off
POLL_SECONDS = 0.25  # how often a process asks whether another one was told to stop
EXIT_SECONDS = 10.0  # how long the exit of a process waits for an answer of the store


def stopping_signals() -> list[signal.Signals]:
    """Return the signals that ask this process to stop; under nohup a closed terminal does not."""
    ignores_hangup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if not (ignores_hangup and number == signal.SIGHUP)]


class StopSignal:
    """Records the signals that ask to stop. Within this context they have no other effect.

    It may be entered again inside itself. Python hears signals in its main thread only: in another
    one the context changes nothing.

    A start may take minutes: data are made, a model is compiled. From `limit_start` to
    `start_is_over` a signal ends it after START_SECONDS, and at once while data are made: nothing
    that was trained can be lost.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.asked_at = math.inf  # by the clock of `time.monotonic`
        self.forward: Callable[[int], object] | None = None  # told of every signal as well
        self._before: dict[signal.Signals, Any] = {}
        self._depth = 0
        self._is_starting = False
        self._alarm_before: Any = None  # who heard SIGALRM; set while the alarm is

    def limit_start(self) -> None:
        """From now on a signal ends this process within START_SECONDS; see `start_is_over`."""
        self._is_starting = True
        if self.name is not None:
            self._set_alarm()

    def start_is_over(self) -> None:
        """End the time limit: the first step is done, or the point to stop at is known."""
        self._is_starting = False
        if self._alarm_before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._alarm_before)
            self._alarm_before = None

    def asked_at_start(self) -> StoppedAtStart | None:
        """Return what ends a start that was asked to stop; None where it was not asked."""
        if self.name is None or not self._is_starting:
            return None
        self.stay()
        return StoppedAtStart(
            f"{self.name} asked this run to stop while it was starting: nothing was trained in "
            "this session, and nothing is saved. The same command starts again from the last "
            "checkpoint, if there is one."
        )

    def _set_alarm(self) -> None:
        if self._alarm_before is None and threading.current_thread() is threading.main_thread():
            self._alarm_before = signal.signal(signal.SIGALRM, self._leave) or signal.SIG_DFL
            signal.setitimer(signal.ITIMER_REAL, START_SECONDS)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        reason = self.asked_at_start()
        self.start_is_over()
        if reason is not None:
            raise reason

    def __enter__(self) -> StopSignal:
        self._depth += 1
        if self._depth == 1 and threading.current_thread() is threading.main_thread():
            self._before = {n: signal.signal(n, self._note) for n in stopping_signals()}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.start_is_over()
            for number, handler in self._before.items():
                # None: it was set by other than Python code, which cannot be given back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self._before = {}

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """In here the first Ctrl-C asks for a save, too; the second one stops at once.

        So does the first one of a start: nothing that was trained can be lost.
        """
        before = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        # Python hears signals in its main thread only; a command in the background ignores Ctrl-C.
        if not is_main or before in (None, signal.SIG_IGN):
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, before)
            if self._is_starting:
                if callable(before):
                    before(number, frame)
                return
            self._ask(number)
            words = "interrupted: saving after this step; interrupt again to stop at once"
            print(f"\n{words}", flush=True)

        signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def stay(self) -> None:
        """Keep the handlers: this process is about to exit, and more signals may arrive."""
        self._before = {}

    def _ask(self, number: int) -> None:
        if self.name is None:  # a second signal changes nothing
            self.name, self.asked_at = signal.Signals(number).name, time.monotonic()

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first = self.name is None
        self._ask(number)
        if is_first and self._is_starting:
            self._set_alarm()
        if self.forward is not None:
            self.forward(number)
        if self._is_starting and is_expendable():
            self._leave(number, frame)


def stop_within(error: BaseException | None) -> StoppedAtStart | None:
    """Return the stop that caused this error: torch reports it as a failure of the compiler."""
    while error is not None and not isinstance(error, StoppedAtStart):
        error = error.__cause__ or error.__context__
    return error


@contextmanager
def blocked(*others: signal.Signals) -> Iterator[None]:
    """Processes started in here do not get the signals that stop; for this one they come later.

    Launchers and Slurm signal all processes of a job, and a helper that dies of it would take
    training down before it has saved. `others` are further signals that they do not get.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*SIGNALS, *others})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_until(is_closing: Callable[[], bool]) -> None:
    """In a helper process: SIGTERM has an effect only once `is_closing()`, the others never.

    A terminal tells all processes of a command; the one that trains ends its helpers.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if is_closing():
            os._exit(0)

    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


class Preemption:
    """Says, at points that every process comes by in the same order, whether to stop there.

    A process that was told to stop records it in the store and waits where it is. A thread of each
    process sees that, keeps its process from passing another point, and says which point it can
    still stop at. The latest of these is where all stop; none has passed it.
    """

    def __init__(
        self, stop: StopSignal, world: World, store: Store | None, timeout_minutes: float
    ) -> None:
        self._stop, self._world, self._store = stop, world, store
        self._patience = timeout_minutes * 60
        self._passed = 0  # points come by so far
        self._held_at: int | None = None
        self._asked: str | None = None  # the signal, here or on another process
        self._stop_at: int | None = None
        self._problem = "no answer in time"
        self._decided, self._wake, self._closing = threading.Event(), threading.Event(), False
        self._thread: threading.Thread | None = None

    def asked_at_start(self) -> OvertError | None:
        """Return why this run ends before its first step, where a signal is the reason."""
        return self._stop.asked_at_start()

    def listen(self) -> None:
        """From now on hear of signals that reached other processes."""
        if self._store is not None:
            target = partial(self._listen, self._store)
            self._thread = threading.Thread(target=target, name="overt-stop", daemon=True)
            self._thread.start()

    def signal_here(self) -> str | None:
        """At a point: the name of the signal where all processes are to stop here, else None."""
        self._passed += 1
        if self._stop.name is None and self._asked is None:
            return None
        if self._store is None:
            self._stop.start_is_over()
            return self._stop.name
        self._held_at = self._passed
        self._wake.set()
        if not self._decided.wait(self._patience) or self._stop_at is None:
            raise LaunchError(
                f"{self._stop.name or self._asked} asked this run to stop, but the ranks could not "
                f"agree on a step: {self._problem}. Nothing was saved; the same command resumes "
                "from the last checkpoint."
            )
        self._held_at = None
        self._stop.start_is_over()
        return self._asked if self._passed == self._stop_at else None

    def leave_evaluation(self, stop: Callable[[], None]) -> None:
        """Call `stop` in an evaluation that would make a launcher lose patience.

        Of several processes none may leave alone: they meet at the end of the evaluation.
        """
        late = time.monotonic() - self._stop.asked_at > EVALUATION_SECONDS
        if late and self._store is None:
            stop()

    def _listen(self, store: Store) -> None:
        try:
            while not self._closing and not store.check(["asked"]):
                if self._stop.name is not None:
                    store.set("asked", self._stop.name)
                else:
                    self._wake.wait(POLL_SECONDS)
            self._answer(store)
        except Exception as error:  # the store is gone, and with it some process
            self._problem = str(error)
        self._decided.set()

    def _answer(self, store: Store) -> None:
        if not self._appears(store, "asked"):
            return
        # In this order: the training thread counts a point before it looks whether it was asked.
        # So either it waits at the point it is at, or the count read here includes that point.
        self._asked = store.get("asked").decode()
        point = self._held_at or self._passed + 1
        store.set(f"point/{self._world.rank}", str(point))
        points = [f"point/{rank}" for rank in range(self._world.world_size)]
        if self._world.is_main and self._appears(store, *points):
            store.set("stop", str(max(int(store.get(key)) for key in points)))
        if self._appears(store, "stop"):
            self._stop_at = int(store.get("stop"))

    def _appears(self, store: Store, *keys: str) -> bool:
        """Wait for keys; False if this process has stopped listening."""
        while not self._closing:
            if store.check(list(keys)):
                return True
            time.sleep(POLL_SECONDS / 10)
        return False

    def leave_together(self) -> None:
        """Wait until every process has come here, that is, until everything is written.

        A launcher ends all processes once one of them has left with an error code. This is no
        collective: whoever still writes a file keeps nobody in one.
        """
        if self._store is None:
            return
        give_up = time.monotonic() + self._patience
        try:
            self._store.add("left", 1)
            while self._store.add("left", 0) < self._world.world_size:
                if time.monotonic() > give_up:
                    return
                time.sleep(POLL_SECONDS / 10)
        except Exception as error:  # the process that held the store has left: all is written
            logger.debug("the store is gone: %s", error)

    def close(self) -> None:
        """Stop listening."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            # Not forever: where the link to the store is cut, the thread does not come back.
            self._thread.join(2 * POLL_SECONDS)
            if self._thread.is_alive():  # on a busy machine: see overt.health.leaving
                atexit.register(self._thread.join, EXIT_SECONDS)
            self._thread = None
