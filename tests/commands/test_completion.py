"""Completion: candidates of a line, and the scripts in real shells."""

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from overt.cli import main
from overt.commands.completion import SCRIPTS, candidates


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("overt tra", ["track", "train"]),
        ("overt train rec", ["recipe.", "recipe="]),
        ("overt train recipe=lbm", ["recipe=lbm", "recipe=lbm_photographs", "recipe=lbm_tiny"]),
        ("overt train training.strat", ["training.strategy="]),
        ("overt train training.precision=b", ["training.precision=bf16"]),
        ("overt train training.drop_last=t", ["training.drop_last=true"]),
        ("overt train recipe=lbm_tiny data.synth", ["data.synthetic."]),
        ("overt train recipe=lbm_tiny data.synthetic.cou", ["data.synthetic.count="]),
        ("overt train training.hang=", ["training.hang=report", "training.hang=stop"]),
        ("overt data im", ["imagenet", "images", "implants"]),
        ("overt prove re", ["resume"]),
        ("overt prove resume recipe=lbm_t", ["recipe=lbm_tiny"]),
        ("overt help rep", ["report"]),
        ("overt track vid", []),
        ("overt train --conf", ["--config"]),
        ("overt data pack --si", ["--side"]),
        ("overt docs check", ["checkpoints"]),
        ("overt examples own", ["own_recipe"]),
    ],
)
def test_candidates(line: str, expected: list[str]) -> None:
    assert candidates(line) == expected


def test_each_shell_has_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SCRIPTS:
        assert main(["completion", shell]) == 0
        assert "overt completion --words" in capsys.readouterr().out


SETUP = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(overt completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -U compinit; compinit -u -D; eval "$(overt completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "overt completion fish | source"),
}
TYPED = {  # what a person types before TAB, and what stands on the line afterwards
    "overt repo": "overt report",
    "overt train recipe=lbm_t": "overt train recipe=lbm_tiny",
    "overt train training.prec": "overt train training.precision=",
    "overt train training.precision=b": "overt train training.precision=bf16",
}


@pytest.mark.parametrize("shell", [name for name in SETUP if shutil.which(name)])
def test_a_real_shell_completes_verbs_recipes_keys_and_values(shell: str, tmp_path: Path) -> None:
    program = tmp_path / "overt"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m overt "$@"\n')
    program.chmod(0o755)
    command, setup = SETUP[shell]
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb" if shell != "fish" else "xterm",
        "PS1": "$ ",
    }
    if shell == "fish":  # it answers what a TAB would offer, without a screen to read
        for typed, completed in TYPED.items():
            script = f"{setup}; complete -C {shlex.quote(typed)}"
            answer = subprocess.run(
                ["fish", "--no-config", "-c", script],
                capture_output=True,
                text=True,
                env=environment,
                check=True,
            )
            assert completed.rpartition(" ")[2] in answer.stdout.split()
        return
    main_end, shell_end = pty.openpty()
    with subprocess.Popen(
        command,
        stdin=shell_end,
        stdout=shell_end,
        stderr=shell_end,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(shell_end)
        type_and_wait(main_end, f"{setup}; echo rea''dy\n", "ready")
        for typed, completed in TYPED.items():
            type_and_wait(main_end, f"{typed}\t", completed)
            type_and_wait(main_end, "\x15echo em''pty\n", "empty")  # Ctrl-U clears the line
        os.write(main_end, b"exit\n")
        process.wait(60)
    os.close(main_end)


def type_and_wait(terminal: int, text: str, expected: str) -> None:
    """Type into a terminal, and read what it shows until the expected text is there."""
    os.write(terminal, text.encode())
    shown = ""
    while expected not in shown:
        readable, _, _ = select.select([terminal], [], [], 60)
        assert readable, f"{expected!r} did not appear in {shown!r}"
        shown += re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|[\r\x07\x08]", "", os.read(terminal, 4096).decode())
