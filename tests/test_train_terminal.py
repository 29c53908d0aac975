"""`overt train` on a real (pseudo) terminal: live lines, then what was reached and what to type."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from toy_runs import TOY


def test_training_on_a_terminal_is_live_and_ends_with_advice(tmp_path: Path) -> None:
    main, worker = pty.openpty()
    command = [sys.executable, "-m", "overt", "train", "--package", str(TOY), "recipe=toy"]
    command += [f"output_dir={tmp_path}", "training.num_steps=4", "logging.every_steps=2"]
    command += ["training.evaluate_every_steps=2", "training.device=cpu"]
    environment = {**os.environ, "COLUMNS": "110", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        command, stdin=worker, stdout=worker, stderr=worker, env=environment
    ) as process:
        os.close(worker)
        pieces = []
        try:
            while piece := os.read(main, 1 << 16):
                pieces.append(piece)
        except OSError:  # how Linux says that the other end is closed
            pass
        assert process.wait() == 0
    os.close(main)
    text = b"".join(pieces).decode()
    assert "\x1b[1A\x1b[J" in text  # drawn over
    assert "\x1b[36mstep" in text  # in color
    plain = re.sub(r"\x1b\[\d*[A-Zm]", "", text).replace("\r", "")
    assert re.search(r"step 4/4 100% \[=+\]  ETA 0:00:00  [\d.e+]+ samples/s  epoch", plain)
    assert re.search(r"loss \S+  lr \S+  memory \S+ GiB  .*error \S+ \(best \S+\)", plain)
    end = plain[plain.index("done\n") :]
    assert "reached          step 4 of 4" in end
    best = tmp_path / "toy/checkpoints/best"
    assert f"overt evaluate --package {os.path.relpath(TOY)} checkpoint={best}" in end
    assert f"overt report {tmp_path}/toy" in end
