"""Making data: a folder belongs to one set of settings, and several processes may fill it.

The settings are in the folder's manifest; processes may claim it at once. Imports no torch.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from overt.errors import DataError
from overt.files.atomic import hidden_name, is_unfinished, remove_left_overs

MANIFEST = "synthetic.json"
STOPPING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)  # ask a run to stop

Item = TypeVar("Item")
Result = TypeVar("Result")


def claim_folder(root: Path, settings: Mapping[str, Any], content: str) -> None:
    """Claim `root` for data with these settings; reject it if it contains anything else.

    `content` names the data in the error: "sequences", for example.
    """
    manifest = root / MANIFEST
    # The manifest is written before any content, so it exists if others are filling the folder.
    if not manifest.is_file() and _has_content(root) and not manifest.is_file():
        raise DataError(
            f"{root} exists and was not made by this command (it has no {MANIFEST}); synthetic "
            f"{content} are not mixed into other data. Choose a new or empty folder."
        )
    if not manifest.is_file():
        root.mkdir(parents=True, exist_ok=True)
        _write_once(manifest, json.dumps(settings, indent=2) + "\n")
    _compare(manifest, settings, content)
    remove_left_overs(root)


def _has_content(root: Path) -> bool:
    if not root.exists():
        return False
    return not root.is_dir() or not all(map(is_unfinished, root.iterdir()))


def _write_once(path: Path, text: str) -> None:
    """Write a file atomically; if another process was faster, its file is kept."""
    hidden = hidden_name(path)
    hidden.write_text(text)
    try:
        os.link(hidden, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not path.exists():
            os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


def _compare(manifest: Path, settings: Mapping[str, Any], content: str) -> None:
    try:
        stored = json.loads(manifest.read_text())
    except ValueError:
        stored = None
    if stored == settings:
        return
    detail = f"{MANIFEST} is not readable"
    if isinstance(stored, dict):
        keys = [key for key in {**settings, **stored} if settings.get(key) != stored.get(key)]
        detail = ", ".join(
            f"{key} {stored.get(key)} there, {settings.get(key)} requested" for key in keys
        )
    raise DataError(
        f"{manifest.parent} holds other synthetic {content} ({detail}); sets are not mixed. Choose "
        "another folder, or remove this one."
    )


def map_in_processes(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    workers: int,
    start: str = "forkserver",
    initializer: Callable[[], object] | None = None,
) -> Iterator[Result]:
    """Yield the results in order: of this process if `workers` is 0, else of that many.

    Workers end at once when this process stops asking for results, or dies.
    """
    if workers == 0:
        yield from map(work, items)
        return
    context = get_context(start)
    lifeline, held = context.Pipe(duplex=False)
    begin = partial(_begin_worker, lifeline, initializer)
    with held, lifeline, ProcessPoolExecutor(workers, context, begin) as pool:
        try:
            # Not `pool.map`, which cancels what is left: a pool that breaks does not expect that.
            futures = deque(pool.submit(work, item) for item in items)
            while futures:
                yield futures.popleft().result()
        except BrokenProcessPool as error:
            raise DataError(
                f"one of {workers} worker processes died. The system kills processes when memory "
                "runs out (see `dmesg`): use fewer workers, or 0 for none. In a script of your "
                "own, put the call under `if __name__ == '__main__':`; workers import the script."
            ) from error
        except BaseException:  # a signal, Ctrl-C, or a caller who has enough
            held.close()
            raise


def _begin_worker(lifeline: Connection, initializer: Callable[[], object] | None) -> None:
    """In a worker: end with the process that made it, which is the one to decide on signals.

    A terminal, Slurm and launchers signal all processes of a job.
    """
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    if initializer is not None:
        initializer()


def _end_with(lifeline: Connection) -> None:
    """Exit once the other end is closed, whatever this process is doing."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)
