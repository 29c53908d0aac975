"""systemd: a unit that trains, saves when it is stopped, and resumes after a crash or a reboot."""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from overt.errors import PREEMPTED_EXIT_CODE, USAGE_EXIT_CODE, LaunchError


@dataclass(frozen=True)
class Unit:
    """A service of the user, or of the machine."""

    name: str
    run_dir: Path
    work_dir: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    stop_seconds: int
    is_system: bool

    @property
    def file_name(self) -> str:
        return f"overt-{re.sub(r'[^A-Za-z0-9_.-]+', '-', self.name)}.service"

    @property
    def path(self) -> Path:
        if self.is_system:
            return Path("/etc/systemd/system") / self.file_name
        return Path.home() / ".config/systemd/user" / self.file_name


def render(unit: Unit) -> str:
    """Return the text of the unit."""
    online = ["Wants=network-online.target", "After=network-online.target"]
    environment = [
        f"Environment={_quoted(f'{name}={value}')}" for name, value in unit.environment.items()
    ]
    target = "multi-user.target" if unit.is_system else "default.target"
    return "\n".join(
        [
            "# Written by `overt launch systemd`.",
            "[Unit]",
            f"Description=overt: {_literal(unit.name)}",
            *(online if unit.is_system else []),
            "# A run that fails again and again is left alone.",
            "StartLimitIntervalSec=1h",
            "StartLimitBurst=5",
            "",
            "[Service]",
            "Type=exec",
            *([f"User={getpass.getuser()}"] if unit.is_system else []),
            f"WorkingDirectory={_literal(str(unit.work_dir))}",
            *environment,
            f"ExecStart={' '.join(map(_argument, unit.command))}",
            f"StandardOutput=append:{_literal(str(unit.run_dir / 'systemd.log'))}",
            "StandardError=inherit",
            "# The training itself is told, and tells its own processes; then it has time to save.",
            "KillMode=mixed",
            "KillSignal=SIGTERM",
            f"TimeoutStopSec={unit.stop_seconds}",
            f"# {PREEMPTED_EXIT_CODE}: it was asked to stop and has saved. Asked by systemd, it "
            "stays so; by others,",
            "# it resumes. A finished run ends with 0 and is not started again.",
            f"SuccessExitStatus={PREEMPTED_EXIT_CODE}",
            f"RestartForceExitStatus={PREEMPTED_EXIT_CODE}",
            "Restart=on-failure",
            "# A wrong key or value stays wrong.",
            f"RestartPreventExitStatus={USAGE_EXIT_CODE}",
            "RestartSec=10",
            "",
            "[Install]",
            f"WantedBy={target}",
            "",
        ]
    )


def write(unit: Unit) -> None:
    """Write the unit to systemd's folder."""
    unit.run_dir.mkdir(parents=True, exist_ok=True)  # its log's folder must exist
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
        unit.path.write_text(render(unit))
    except OSError as error:
        raise LaunchError(
            f"{unit.path} cannot be written ({error.strerror}); a system unit needs root (sudo), "
            "a user unit needs no --system"
        ) from None


def next_commands(unit: Unit) -> list[str]:
    """Return what starts the unit, now and after every boot."""
    manager = "systemctl" if unit.is_system else "systemctl --user"
    lines = [f"{manager} daemon-reload", f"{manager} enable --now {unit.file_name}"]
    if not unit.is_system:
        lines.append("loginctl enable-linger  # so that it runs while nobody is logged in")
    return lines


def _literal(text: str) -> str:
    return text.replace("%", "%%")  # no specifiers


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_literal(escaped)}"'


def _argument(word: str) -> str:
    """Return a word of ExecStart that stays one word and is not looked up in the environment."""
    plain = re.fullmatch(r"[\w./:=@,+-]+", word)
    return word if plain else _quoted(word).replace("$", "$$")
