"""overt/tools/launch/systemd.py: a unit that systemd itself finds nothing wrong with."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from overt.tools.launch.systemd import Unit, next_commands, render, write


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    command = [
        sys.executable,
        "-m",
        "overt.train",
        "recipe=toy",
        "exp_name='a b'",
        "x=$HOME",
        "50%",
    ]
    return Unit(
        name="sweep/lr 1",
        run_dir=tmp_path / "run 100%",
        work_dir=tmp_path,
        command=command,
        environment={"A": 'b "c" \\ %d'},
        stop_seconds=130,
        is_system=False,
    )


def section(text: str, name: str) -> list[str]:
    return text.split(f"[{name}]\n")[1].split("\n\n")[0].splitlines()


@pytest.mark.parametrize("is_system", [False, True])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_finds_nothing_wrong(is_system: bool, unit: Unit, tmp_path: Path) -> None:
    unit = replace(unit, is_system=is_system)
    file = tmp_path / unit.file_name
    file.write_text(render(unit))
    manager = [] if is_system else ["--user"]
    done = subprocess.run(
        ["systemd-analyze", *manager, "verify", str(file)], capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)}, check=False,
    )  # fmt: skip
    # The exit code alone says little: what systemd ignores, it only prints.
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stopped_run_is_no_failure_and_an_interrupted_one_goes_on(unit: Unit) -> None:
    lines = section(render(unit), "Service")
    for line in (
        "SuccessExitStatus=85", "RestartForceExitStatus=85", "Restart=on-failure",
        "KillSignal=SIGTERM", "KillMode=mixed", "TimeoutStopSec=130",
    ):  # fmt: skip
        assert line in lines
    assert "StartLimitBurst=5" in section(render(unit), "Unit")


def test_words_stay_words(unit: Unit) -> None:
    """As systemd reads them: no specifier, no variable, no splitting."""
    (line,) = [line for line in section(render(unit), "Service") if line.startswith("ExecStart=")]
    assert line.endswith("""recipe=toy "exp_name='a b'" "x=$$HOME" "50%%\"""")
    assert 'Environment="A=b \\"c\\" \\\\ %%d"' in render(unit)
    assert "run 100%%/systemd.log" in render(unit)


def test_a_unit_of_the_user_and_one_of_the_machine(unit: Unit) -> None:
    machine = replace(unit, is_system=True)
    assert unit.file_name == "overt-sweep-lr-1.service"
    assert unit.path == Path.home() / ".config/systemd/user/overt-sweep-lr-1.service"
    assert machine.path == Path("/etc/systemd/system/overt-sweep-lr-1.service")
    assert "User=" not in render(unit)
    assert "User=" in render(machine)
    assert any("enable-linger" in line for line in next_commands(unit))
    assert "systemctl enable --now overt-sweep-lr-1.service" in next_commands(machine)


def test_writing_makes_the_folder_of_the_log(
    unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write(unit)
    assert unit.path.is_relative_to(tmp_path)
    assert unit.path.read_text() == render(unit)
    assert unit.run_dir.is_dir()
