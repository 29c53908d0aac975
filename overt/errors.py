"""The errors that a user can fix: each says what is wrong, what is allowed, what to do.

The command line prints them without a traceback; anything else that escapes is a bug of overt.
"""

from __future__ import annotations

import difflib
import errno
import os
from collections.abc import Sequence
from pathlib import Path

# Exit code of a run that was asked to stop and has saved: a batch script requeues it.
PREEMPTED_EXIT_CODE = 85
FAILED_EXIT_CODE = 1
# An unknown verb, option, key or value: a restart does not help.
USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130  # Ctrl-C
# A run that ends with one of these was asked to: not an error.
STOPPED_EXIT_CODES = (PREEMPTED_EXIT_CODE, INTERRUPTED_EXIT_CODE)


SHOW_TRACEBACK = "OVERT_TRACEBACK"  # an environment variable: also for errors that are explained


class OvertError(Exception):
    """Something the user can fix; the message says how."""


class ConfigError(OvertError):
    """A key, type or value of the configuration or an option, refused before anything starts."""


class LaunchError(OvertError):
    """The process was started in a way that cannot work (contradicting ranks, missing devices)."""


class DataError(OvertError):
    """A data set, or one file of it, that cannot be used."""


class LoaderError(DataError):
    """A process that loads data has died; the message says how, and what helps."""


class CheckpointError(OvertError):
    """A checkpoint that is missing, broken, unsafe, or of another model."""


class StopError(OvertError):
    """Training cannot continue. Raised on all ranks at the same step, so that they can save."""


class NonFiniteError(StopError):
    """Training met NaN or Inf and the configuration says to stop."""


class NonFiniteWeightsError(NonFiniteError):
    """The weights themselves hold NaN or Inf: they are not saved, and training cannot continue."""


class OutOfMemory(OvertError):  # noqa: N818  (its name says it)
    """The device or the host has no memory left; the message names the settings that need less."""


class Preempted(StopError):  # noqa: N818  (it is none)
    """The run was asked to stop by a signal: everything is saved, the same command resumes."""


class Interrupted(Preempted):
    """Ctrl-C asked the run to stop: as `Preempted`, but no launcher shall start it again."""


class StoppedAtStart(Preempted):
    """A signal came while the run was starting: nothing was trained yet, so nothing is saved."""


def exit_code_of(error: BaseException | None) -> int:
    """Return the exit code of a command or run that ends with `error`, or with none."""
    match error:
        case None:
            return 0
        case KeyboardInterrupt() | Interrupted():
            return INTERRUPTED_EXIT_CODE
        case Preempted():
            return PREEMPTED_EXIT_CODE
        case ConfigError():
            return USAGE_EXIT_CODE
    return FAILED_EXIT_CODE


def error_of(exit_code: int) -> type[OvertError]:
    """Return the kind of error for a command that was started and ended with this code."""
    return ConfigError if exit_code == USAGE_EXIT_CODE else OvertError


# What helps against a full disk, by the error that the system reports.
_FULL_DISK = {
    errno.ENOSPC: "Free space (`df -h` shows how full each disk is)",
    errno.EDQUOT: "Free space or ask for a larger quota (`quota -s` shows yours)",
}


def full_disk_problem(error: BaseException) -> str | None:
    """Explain an error that a full disk or an exhausted quota has caused; None for any other."""
    for code, remedy in _FULL_DISK.items():
        cause: BaseException | None = error
        while cause is not None:
            # A SafetensorError has no errno: only its message tells.
            if getattr(cause, "errno", None) == code or os.strerror(code) in str(cause):
                name = getattr(cause, "filename", None)
                where = "on a disk that the system does not name" if name is None else f"for {name}"
                return (
                    f"{os.strerror(code)}, {where}. {remedy}, or write to another disk; "
                    f"{SHOW_TRACEBACK}=1 shows where this happened"
                )
            # An archive that fails to close hides the error of its last write.
            cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def file_problem(error: BaseException) -> str | None:
    """Explain a full disk, or a file that cannot be read or written; None for any other error."""
    if (full := full_disk_problem(error)) is not None:
        return full
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        problem = f"{error.filename}: {error.strerror or error}"
    # Of pathlib before Python 3.13.
    elif isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):
        problem = str(error)
    else:
        return None
    return (
        f"{problem}. Check the path, its permissions and the space left; {SHOW_TRACEBACK}=1 shows "
        "where this happened"
    )


def _alike(word: str, words: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(word, words, n=1, cutoff=0.75)


def nearest(word: str, words: Sequence[str]) -> str:
    """` (did you mean X?)` with the closest of `words`, or nothing where none is close."""
    last_part = word.rpartition(".")[2]
    last = {name: name.rpartition(".")[2] for name in words}
    # Of dotted keys the last part has to be alike: sections alone say nothing.
    alike = [name for name in words if last_part == word or _alike(last_part, [last[name]])]
    close = difflib.get_close_matches(word, alike, n=1, cutoff=0.5)
    if not close:  # the right key in the wrong section
        best = _alike(last_part, list(last.values()))
        close = [name for name in words if last[name] in best][:1]
    return f" (did you mean {close[0]}?)" if close else ""


def need_folder(key: str, path: Path) -> Path:
    """Return the path, refused where it, or a folder above it, is a file."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # a name that no file system takes
        raise ConfigError(f"{key}={str(path)[:200]!r} cannot be a folder: {error}") from None
    above = next((folder for folder in (path, *path.parents) if folder.exists()), path)
    if above.exists() and not above.is_dir():
        problem = "is a file" if above == path else f"cannot be a folder: {above} is a file"
        raise ConfigError(f"{key}={path} {problem}; name a new or existing folder")
    if above.exists() and not os.access(above, os.W_OK):
        raise ConfigError(f"{key}={path}: you may not write to {above}; name another folder")
    return path
