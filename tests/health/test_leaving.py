"""The end of a process: its exit code, whatever its threads are at."""

import subprocess
import sys

# Threads that always wait for an answer of the store: Python's own exit aborts, with code 134.
SCRIPT = """
import atexit, sys, threading, time
from torch.distributed import TCPStore
from overt.health.leaving import leave

server = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)

def ask() -> None:
    store = TCPStore("127.0.0.1", server.port, 1, is_master=False)
    while True:
        store.check(["asked"])

def save() -> None:
    time.sleep(0.2)
    print("saved")

for _ in range(4):
    threading.Thread(target=ask, daemon=True).start()
threading.Thread(target=save).start()
atexit.register(print, "closed")
time.sleep(0.1)
leave(85)
"""


def test_a_thread_in_the_store_does_not_abort_the_exit() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (85, "")
    assert done.stdout.split() == ["saved", "closed"]  # threads first, as at any exit
