"""Two hosts on one machine: network namespaces on a bridge, with links that can be cut.

Each host has its own address, hostname and /etc/hosts; files and the process table are shared.
"""

import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NAMES = ("node1", "node2")


def why_not() -> str | None:
    """The reason why hosts cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "the command `ip` is missing (Debian package iproute2)"
    allowed = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, check=False
    )
    return None if allowed.returncode == 0 else "this machine allows no network namespaces"


class Hosts:
    """The hosts of one folder. Several folders live side by side: names follow from the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        number = zlib.crc32(str(self.folder).encode())
        self.tag = f"o{number % 65536:04x}"
        self.bridge = f"{self.tag}br"
        self.subnet_file = self.folder / "subnet"

    @property
    def subnet(self) -> str:
        return self.subnet_file.read_text()

    def up(self) -> None:
        """Make bridge, namespaces and links."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self.subnet_file.write_text(self._free_subnet())
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.subnet}.254/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        lines = ["127.0.0.1 localhost", f"{self.subnet}.254 {socket.gethostname()}"]
        for number, name in enumerate(NAMES, start=1):
            space, port = self._space(name), self._port(name)
            ip("netns", "add", space)
            ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", port, "master", self.bridge, "up")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "addr", "add", f"{self.subnet}.{number}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            lines.append(f"{self.subnet}.{number} {name}")
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")

    def down(self) -> None:
        """End what runs on the hosts, and remove them; nothing where there are none."""
        if not self.subnet_file.exists():
            return
        for name in NAMES:
            if Path("/run/netns", self._space(name)).exists():
                self.kill(name)
                ip("netns", "del", self._space(name))
            ip("link", "del", self._port(name), check=False)
        ip("link", "del", self.bridge, check=False)

    def on(self, name: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on a host."""
        inside = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
        return [
            *("nsenter", f"--net=/run/netns/{self._space(name)}"),
            *("unshare", "--uts", "--mount", "--propagation", "slave"),
            *("bash", "-c", inside, "on-host", name, str(self.folder / "hosts"), *command),
        ]

    def cut(self, name: str) -> None:
        """Silent loss: the port of the switch goes dead, packets vanish."""
        ip("link", "set", self._port(name), "nomaster")

    def heal(self, name: str) -> None:
        ip("link", "set", self._port(name), "master", self.bridge)

    def kill(self, name: str) -> None:
        """Power loss: SIGKILL to every process that lives on the host, found by its namespace."""
        while pids := ip("netns", "pids", self._space(name)).split():
            for pid in pids:
                with suppress(ProcessLookupError):  # ended by itself
                    os.kill(int(pid), signal.SIGKILL)

    def _space(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def _port(self, name: str) -> str:
        return f"{self.tag}{name[-1]}"

    def _free_subnet(self) -> str:
        taken = {
            ipaddress.ip_interface(line.split()[3]).network
            for line in ip("-o", "-4", "addr", "show").splitlines()
        }
        first = zlib.crc32(str(self.folder).encode()) // 65536
        for offset in range(200):
            subnet = f"10.214.{(first + offset) % 200 + 10}"
            if ipaddress.ip_network(f"{subnet}.0/24") not in taken:
                return subnet
        raise RuntimeError("no free subnet in 10.214.0.0/16; remove bridges of earlier clusters")


def ip(*words: str, check: bool = True) -> str:
    """What the command `ip` prints."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
