"""Loader processes: what they know when they begin, and what follows when one of them dies."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fcntl import ioctl
from multiprocessing import forkserver
from pathlib import Path
from struct import pack, unpack
from termios import FIONREAD
from types import ModuleType

import pytest
import torch
from torch.utils.data import DataLoader
from toy_runs import TOY

from overt.config import load
from overt.data import workers
from overt.data.workers import LoaderContext, loader_context
from overt.engine.trainer import Trainer
from overt.errors import LoaderError

# Only the main process imports the recipe and the engine: workers know the first from their server,
# or not, and never the second.
PROGRAM = """
import sys
from torch.utils.data import DataLoader
from overt.data.workers import loader_context

class HasRecipe:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        compiles = "torch._dynamo" in sys.modules  # which takes as long to import as torch
        return "overt.recipes.lbm.recipe" in sys.modules and not compiles

if __name__ == "__main__":
    import overt.engine.trainer, overt.recipes.lbm.recipe
    context = CONTEXT
    loader = DataLoader(HasRecipe(), None, num_workers=2, multiprocessing_context=context)
    print(all(loader))
"""


@pytest.mark.parametrize(
    ("context", "known"),
    [
        ("loader_context('overt.evaluation')", "True"),
        pytest.param("'forkserver'", "False", marks=pytest.mark.long),
    ],
)
def test_workers_are_forked_with_the_modules_of_their_training_process(tmp_path, context, known):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("CONTEXT", context))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, known), done.stderr


def test_what_the_main_script_imports_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    script.load = load  # type: ignore[attr-defined]
    script.Trainer = Trainer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", script)
    preloaded: list[str] = []
    monkeypatch.setattr(
        LoaderContext, "set_forkserver_preload", lambda _, names: preloaded.extend(names)
    )
    loader_context("overt.evaluation")
    assert {"torch", "overt.evaluation", load.__module__, Trainer.__module__} <= set(preloaded)


class Items:
    """Items say which process has read them, and hold a tensor or a message larger than a pipe."""

    def __init__(self, large: bool) -> None:
        self.large = large

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[int, bytes | torch.Tensor]:
        return os.getpid(), bytes(2**20) if self.large else torch.zeros(3)


def read_items(
    large: bool, pins: bool = False
) -> tuple[LoaderContext, Iterator[tuple[int, object]]]:
    context = loader_context(__name__)
    loader = DataLoader(
        Items(large),  # type: ignore[arg-type]
        batch_size=None,
        num_workers=1,
        multiprocessing_context=context,
        pin_memory=pins,
    )
    return context, context.read(loader)


def unread_bytes(context: LoaderContext) -> int:
    reader = context._queues[0]._reader  # type: ignore[attr-defined]
    return int(unpack("i", ioctl(reader.fileno(), FIONREAD, pack("i", 0)))[0])


ON_GPU = pytest.param(
    True, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
)


@pytest.mark.parametrize("pins", [False, ON_GPU])
@pytest.mark.parametrize("large", [False, True])
def test_a_killed_process_is_explained_even_in_the_middle_of_a_message(
    large: bool, pins: bool
) -> None:
    context, items = read_items(large, pins)
    pid, _ = next(items)
    while not pins and not unread_bytes(context):  # the next one, which may not fit into the pipe
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LoaderError, match=f"loader worker {pid} was killed by SIGKILL"):
        list(items)  # waited forever for the rest of the message


def test_a_stopped_process_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    monkeypatch.setattr(workers, "EXIT_SECONDS", 0.1)
    _, items = read_items(large=False)
    pid, _ = next(items)
    ended = os.pidfd_open(pid)
    os.kill(pid, signal.SIGSTOP)
    items.close()
    select.select([ended], [], [])
    os.close(ended)


def test_a_server_that_is_asked_for_a_process_by_one_that_was_interrupted_ends() -> None:
    context = LoaderContext()
    forkserver.ensure_running()
    first = forkserver._forkserver._forkserver_pid
    context.Process(target=print, args=("not started yet",))
    context.end()
    for _ in range(1000):
        # Not reaped here: the module itself looks how its server has ended.
        ended = os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if ended is not None:
            break
        time.sleep(0.01)
    assert ended is not None
    assert ended.si_status == signal.SIGKILL
    forkserver.ensure_running()
    assert forkserver._forkserver._forkserver_pid != first


def test_a_script_that_its_loaders_import_is_told_so(tmp_path: Path) -> None:
    words = ["recipe=toy", f"output_dir={tmp_path}", "training.num_workers=1"]
    script = tmp_path / "script.py"
    script.write_text(
        "from overt import Trainer, init_distributed\n"
        "from overt.config import build_recipe, load\n"
        f"config = load({words}, packages=[{str(TOY)!r}])\n"
        "Trainer(config, build_recipe(config), init_distributed('cpu')).train()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "LoaderError: loader worker" in last
    assert "put what it does under `if __name__ == '__main__':`" in last
