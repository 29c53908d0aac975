"""One task at a time in a thread, whose error is never lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class BackgroundWriter:
    """Runs one task at a time in a thread, and keeps its error until someone waits for it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, task: Callable[[], None]) -> None:
        """Start `task` when the one before has ended; raises that one's error."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(task,), name="overt-checkpoint")
        self._thread.start()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # handed over to the thread that waits
            self._error = error

    def wait(self) -> None:
        """Wait for the task in progress, and raise its error."""
        # The thread itself runs this if it held the last reference to the manager.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def report(self) -> None:
        """Wait at the end of the process, where no caller is left to catch the error: log it."""
        try:
            self.wait()
        except Exception as error:
            logger.error("the last checkpoint was NOT saved: %s", error)
