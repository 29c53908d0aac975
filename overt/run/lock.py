"""One training process group per run folder: a lock that a killed process does not keep.

The file names its owner: host, pid, since when. On the same host the owner is checked by its pid;
elsewhere by a heartbeat, the file's modification time. Made with O_EXCL, which NFS honors, and
compared by the file server's own clock. The lock of a dead owner is replaced, never removed: while
several starts find it dead, none can make a new one beside it. It names its own path as well, since
a run folder may be copied while it trains. Imports no torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from overt.errors import LaunchError
from overt.files.atomic import hidden_name, is_copy, new_file

BEAT_SECONDS = 10.0
STALE_SECONDS = 90.0  # without a beat, on another host
LOOK_SECONDS = 2.0  # between two looks at a heartbeat that may be dead

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Owner:
    """The process that holds a lock. Two owners differ in their token."""

    host: str
    pid: int
    since: float  # seconds since 1970
    token: str
    # Distinguishes the owner from a reused pid, and from containers that share a host name.
    machine: str = ""
    started: str = ""
    job: str = ""  # of Slurm
    restart: int = 0  # of that job
    path: str = ""  # of the lock: a run folder may be copied while it trains

    def __str__(self) -> str:
        try:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        except (ValueError, OverflowError, OSError):  # no time that a calendar holds
            since = "an unknown time"
        return f"pid {self.pid} on {self.host}, since {since}"


def this_process(path: str = "") -> Owner:
    """Describe this process as the owner of a new lock at `path`."""
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    return Owner(
        socket.gethostname(),
        os.getpid(),
        time.time(),
        secrets.token_hex(8),
        _machine(),
        _start_of(os.getpid()) or "",
        os.environ.get("SLURM_JOB_ID", ""),
        int(restart) if restart.isdigit() else 0,
        path,
    )


class RunLock:
    """Holds the lock of a run folder from `acquire` to `release`."""

    def __init__(
        self,
        path: Path,
        stale_seconds: float = STALE_SECONDS,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self.owner = this_process(os.path.realpath(path))
        self._stale_seconds, self._wait = stale_seconds, wait
        self._closing = threading.Event()
        self._beating: threading.Thread | None = None
        self._taken_by: Owner | None = None

    def acquire(self) -> None:
        """Take the lock, also from a dead owner; refused while another one lives."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not (self._create() or self._replace_dead()):
            continue  # another start was faster, or the owner has just ended
        self._beating = threading.Thread(target=self._beat, name="overt-lock", daemon=True)
        self._beating.start()

    def check(self) -> None:
        """Refuse to write where another start has taken the run over, as after a long SIGSTOP."""
        if self._taken_by is not None:
            raise LaunchError(
                f"{self.path.parent} was taken over by {self._taken_by} while this process did not "
                "respond; it stops here and writes nothing more"
            )

    def release(self) -> None:
        """Give the lock back, where it is still this one."""
        self._closing.set()
        if self._beating is not None:
            self._beating.join()
            self._beating = None
            if self._is_mine():
                self.path.unlink(missing_ok=True)

    # --- taking ------------------------------------------------------------------------------

    def _create(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            with open(descriptor, "wb") as file:
                file.write(self._content())
                file.flush()
                os.fsync(file.fileno())
        except OSError:  # a full disk: an empty lock has no owner
            self.path.unlink(missing_ok=True)
            raise
        return True

    def _replace_dead(self) -> bool:
        """Take the place of a dead owner; raises where the owner lives."""
        # NFS locks only what is open for writing; the file of another user may be read-only.
        mode = "r+b" if os.access(self.path, os.W_OK) else "rb"
        try:
            file: IO[bytes] = self.path.open(mode)
        except FileNotFoundError:
            return False
        with file:
            owner = _owner_in(file)
            if not self._is_dead(owner):
                raise LaunchError(
                    f"{self.path.parent} is being trained by another process"
                    f"{'' if owner is None else f' ({owner})'}. Wait for it, stop it, or choose "
                    "another exp_name."
                )
            with contextlib.suppress(OSError):  # a file system without such locks
                fcntl.flock(file, fcntl.LOCK_EX)
            # Another start may have judged the same file, and have replaced it already.
            if not self._is_still(file, owner):
                return False
            logger.info("taking over %s from %s, which is gone", self.path.parent, owner)
            with new_file(self.path, durable=True) as mine:
                mine.write_bytes(self._content())
        return True

    def _is_still(self, file: IO[bytes], owner: Owner | None) -> bool:
        """Return whether the lock is the file that was opened before, with the same owner."""
        try:
            with self.path.open("rb") as now:  # opening asks an NFS server again
                is_same = os.path.samestat(os.fstat(now.fileno()), os.fstat(file.fileno()))
                return is_same and _owner_in(now) == owner
        except OSError:  # replaced or removed
            return False

    def _content(self) -> bytes:
        return json.dumps(asdict(self.owner)).encode()

    def _is_dead(self, owner: Owner | None) -> bool:
        me = self.owner
        if owner is not None:
            if is_copy(self.path, owner.path):
                return True  # it trains in the folder that this one is a copy of
            if owner.job and owner.job == me.job and owner.restart < me.restart:
                return True  # Slurm requeues a job when its processes have ended
            if (owner.host, owner.machine) == (me.host, me.machine):
                # This very process: an earlier run of a notebook that was not closed.
                return owner.pid == me.pid or not _lives(owner.pid, owner.started)
        return self._heartbeat_is_stale()

    def _heartbeat_is_stale(self) -> bool:
        """Watch the heartbeat until it moves (alive) or is too old (dead)."""
        first = self._beat_time()
        while first is not None and self._server_time() - first < self._stale_seconds:
            self._wait(LOOK_SECONDS)
            now = self._beat_time()
            if now is not None and now != first:
                return False
            first = now
        return True

    def _beat_time(self) -> float | None:
        try:
            with self.path.open("rb") as file:  # opening asks an NFS server again
                return os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None

    def _server_time(self) -> float:
        """Return the time by the clock that dates the files of this folder."""
        probe = hidden_name(self.path)
        try:
            probe.touch()
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    # --- keeping -----------------------------------------------------------------------------

    def _is_mine(self) -> bool:
        owner = read_owner(self.path)
        return owner is not None and owner.token == self.owner.token

    def _beat(self) -> None:
        while not self._closing.wait(BEAT_SECONDS):
            self.beat()

    def beat(self) -> None:
        """Show that the owner lives; a disk that fails now may work at the next beat."""
        with contextlib.suppress(OSError):
            owner = read_owner(self.path)
            if owner is not None and owner.token != self.owner.token:
                self._taken_by = owner
            elif self.path.exists():
                os.utime(self.path)
            else:  # a person removed it
                self._create()


def read_owner(path: Path) -> Owner | None:
    """Return the owner of a lock file; None if it does not exist or is incomplete."""
    try:
        with path.open("rb") as file:
            return _owner_in(file)
    except OSError:
        return None


def _owner_in(file: IO[bytes]) -> Owner | None:
    try:
        fields: Any = json.loads(file.read(1 << 15))  # a path takes up to 4096 letters
        return Owner(
            host=str(fields["host"]),
            pid=int(fields["pid"]),
            since=float(fields["since"]),
            token=str(fields["token"]),
            machine=str(fields.get("machine", "")),
            started=str(fields.get("started", "")),
            job=str(fields.get("job", "")),
            restart=int(fields.get("restart", 0)),
            path=str(fields.get("path", "")),
        )
    except (
        OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError
    ):  # fmt: skip
        return None


def _machine() -> str:
    """Identify this boot of this machine, and this container, by Linux's identifiers."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start_of(pid: int) -> str | None:
    """Return when a process of this host started; None where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def _lives(pid: int, started: str) -> bool:
    """Tell whether a process of this host exists and is the one that started then."""
    if started:
        return _start_of(pid) == started
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # alive, and of another user
        return True
    return True
