"""overt/health/system.py: rates from a host's counters, and what a session runs on."""

import mmap
import shutil
from pathlib import Path

import pytest

from overt.health.system import SystemMeter, commit_of, environment, resident_bytes

DISKS = [
    path.name
    for path in sorted(Path("/sys/block").glob("*"))
    if path.name[:3] not in ("loo", "ram")
]


def write_proc(folder: Path, busy: int, idle: int, sectors: int, received: int) -> None:
    (folder / "net").mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
    (folder / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n")
    lines = [
        f"254 0 {DISKS[0]} 1 0 {sectors} 0 1 0 {2 * sectors} 0",
        f"254 1 {DISKS[0]}p9 1 0 777 0 1 0 7 0",
    ]
    (folder / "diskstats").write_text("\n".join(lines) + "\n")
    loopback = "lo: 999 0 0 0 0 0 0 0 999 0 0 0 0 0 0 0"
    card = f"eth0: {received} 0 0 0 0 0 0 0 {3 * received} 0 0 0 0 0 0 0"
    (folder / "net" / "dev").write_text(f"Inter-| x\n face | y\n{loopback}\n{card}\n")


@pytest.mark.skipif(not DISKS, reason="needs Linux and a disk")
def test_rates_are_those_between_two_readings(tmp_path: Path) -> None:
    times = iter([10.0, 14.0])
    meter = SystemMeter(tmp_path, proc=tmp_path, clock=lambda: next(times))
    write_proc(tmp_path, busy=100, idle=100, sectors=0, received=0)
    first = meter.host()
    assert first["host_memory_share"] == 0.75
    assert first["disk_free_gb"] == pytest.approx(shutil.disk_usage(tmp_path).free / 1e9, rel=0.1)
    assert not any("per_second" in name or name == "cpu_share" for name in first)
    write_proc(tmp_path, busy=130, idle=110, sectors=1_000_000, received=8_000_000)
    second = meter.host()
    assert second["cpu_share"] == 0.75
    assert second["network_received_mb_per_second"] == 2.0
    assert second["network_sent_mb_per_second"] == 6.0
    assert second["disk_written_mb_per_second"] == 2 * second["disk_read_mb_per_second"]


def test_without_proc_there_are_no_rates(tmp_path: Path) -> None:
    meter = SystemMeter(tmp_path, proc=tmp_path / "none")
    assert set(meter.host()) == set(meter.host()) == {"memory_gb", "cpu_load", "disk_free_gb"}


def test_memory_of_this_process_grows_with_what_it_holds() -> None:
    before = resident_bytes()
    # Mapped, not allocated: an allocator may hand out memory that it has kept.
    with mmap.mmap(-1, 50_000_000) as block:
        block.write(b"1" * len(block))
        assert resident_bytes() - before > 0.8 * len(block)


def test_the_environment_names_commit_and_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert not {"commit", "slurm_job"} & set(environment())
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert environment()["slurm_job"] == "12"


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) is None
