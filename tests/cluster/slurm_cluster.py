"""A real Slurm of two nodes on this machine: Debian's packages, each node on a host of its own.

python3 tests/cluster/slurm_cluster.py install    the packages, where they are missing (root)
python3 tests/cluster/slurm_cluster.py up DIR     prints `export OVERT_TEST_CLUSTER=DIR`
python3 tests/cluster/slurm_cluster.py down DIR
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from two_hosts import NAMES, Hosts, why_not

sys.path.insert(0, str(Path(__file__).parents[1]))
from debian_packages import install

PACKAGES = ("slurm-wlm", "slurm-client", "munge", "iproute2")
PROGRAMS = ("slurmctld", "slurmd", "munged")
UP_SECONDS = 55
# Generous: it ends a test that hangs, and says nothing about how long one should take.
PATIENCE_SECONDS = 150

CONFIGURATION = """\
ClusterName=overt
SlurmctldHost={host}({subnet}.254)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job may not start before cred_expire has passed; by default that is 120 s.
AuthInfo=socket={state}/munge/socket,cred_expire=5
StateSaveLocation={state}/controller
SlurmctldPidFile={state}/run/slurmctld.pid
SlurmctldLogFile={state}/log/slurmctld.log
SlurmdPidFile={state}/run/slurmd-%n.pid
SlurmdLogFile={state}/log/slurmd-%n.log
SlurmdSpoolDir={state}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
PropagateResourceLimits=NONE
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
MessageTimeout=10
TCPTimeout=2
KillWait=5
MinJobAge=600
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
GresTypes=gpu
NodeName=node1 NodeHostname=node1 NodeAddr={subnet}.1 Port=6818 CPUs=4 RealMemory=4000 Gres=gpu:2
NodeName=node2 NodeHostname=node2 NodeAddr={subnet}.2 Port=6818 CPUs=4 RealMemory=4000 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes=ALL MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""


def why_no_slurm() -> str | None:
    """The reason why Slurm cannot run here, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed; `slurm_cluster.py install` does it as root"
    return why_not()


class Cluster(Hosts):
    """Controller on the machine itself, one slurmd on each host."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.configuration = self.folder / "etc" / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need: this cluster, and no trace of a job that we may be in."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        return {**own, "SLURM_CONF": str(self.configuration)}

    def up(self) -> None:
        super().up()
        for name in ("etc", "run", "log", "controller", "munge", "dev"):
            (self.folder / name).mkdir(exist_ok=True)
        devices = [self.folder / "dev" / f"gpu{number}" for number in range(2)]
        for device in devices:  # GPUs that do nothing: the same as /dev/null
            os.mknod(device, 0o20666, os.makedev(1, 3))
        lines = "".join(f"Name=gpu File={device}\n" for device in devices)
        (self.folder / "etc" / "gres.conf").write_text(lines)
        (self.folder / "etc" / "cgroup.conf").write_text("CgroupMountpoint=/sys/fs/cgroup\n")
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        self.configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname(), subnet=self.subnet, port=port, state=self.folder
            )
        )
        self._start_munge()
        self._run("slurmctld", "-f", str(self.configuration))
        wait_for("the controller", lambda: "is UP" in self.ask("scontrol", "ping"), UP_SECONDS)
        for name in NAMES:
            self.start_node(name)
        wait_for("the nodes", self.is_ready, UP_SECONDS)

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        self._run(
            "munged", "--force", f"--key-file={key}", f"--socket={folder / 'socket'}",
            f"--pid-file={self.folder / 'run' / 'munged.pid'}", f"--seed-file={folder / 'seed'}",
            f"--log-file={self.folder / 'log' / 'munged.log'}",
        )  # fmt: skip
        wait_for("munged", (folder / "socket").exists, UP_SECONDS)

    def is_ready(self) -> bool:
        return self.ask("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").split() == [
            *NAMES
        ]

    def start_node(self, name: str) -> None:
        """Start a node's daemon, as after a boot."""
        (self.folder / "run" / f"slurmd-{name}.pid").unlink(missing_ok=True)
        (self.folder / f"spool-{name}").mkdir(exist_ok=True)
        self._run(*self.on(name, ["slurmd", "-b", "-f", str(self.configuration), "-N", name]))

    def down(self) -> None:
        """End all jobs and daemons. Only what the pid files or the namespaces name is ended."""
        if self._pid("slurmctld"):
            jobs = self.ask("squeue", "-h", "-o", "%A").split()
            if jobs:
                self.ask("scancel", *jobs)
        super().down()
        for name in ("slurmctld", "munged"):
            if pid := self._pid(name):
                os.kill(pid, signal.SIGTERM)
                with suppress(TimeoutError):
                    wait_for(name, lambda name=name: self._pid(name) is None, 10)
            if pid := self._pid(name):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints; nothing where it fails."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, timeout=30, check=False
        )
        return done.stdout if done.returncode == 0 else ""

    def job(self, number: str) -> dict[str, str]:
        """The fields of a job: JobState, Restarts, ExitCode, ..."""
        words = self.ask("scontrol", "-o", "show", "job", number).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def _pid(self, name: str) -> int | None:
        """The daemon's process, if it still is this cluster's daemon: numbers are used again."""
        file = self.folder / "run" / f"{name}.pid"
        with suppress(OSError, ValueError):
            pid = int(file.read_text())
            if str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    def _run(self, *command: str) -> None:
        # Daemons inherit neither a job's variables nor pytest's pipes.
        kept = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        log = self.folder / "log" / "start.log"
        with log.open("a") as file:
            done = subprocess.run(
                command, env={**kept, "SLURM_CONF": str(self.configuration)},
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=30, check=False,
            )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {log.read_text()}")


def wait_for(what: str, is_there: Callable[[], object], seconds: float) -> None:
    """Wait until something is there; TimeoutError names it where it does not come."""
    deadline = time.monotonic() + seconds
    while not is_there():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not there after {seconds} s")
        time.sleep(0.1)


def main(words: list[str]) -> int:
    try:
        match words:
            case ["install"]:
                install((*PROGRAMS, "ip"), PACKAGES)
            case ["up", folder]:
                reason = why_no_slurm()
                if reason is not None:
                    raise RuntimeError(reason)
                cluster = Cluster(Path(folder))
                try:
                    cluster.up()
                except BaseException:
                    cluster.down()
                    raise
                print(f"export OVERT_TEST_CLUSTER={cluster.folder}")
            case ["down", folder]:
                Cluster(Path(folder)).down()
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"slurm_cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
