import sys
from collections import namedtuple
from types import SimpleNamespace

import pytest
from benchmark_scripts import run


def test_without_psutil_there_is_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert "psutil is not installed" in run("system.py")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_both_are_read_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = namedtuple("Disk", "read_bytes write_bytes")(1, 2)
    card = namedtuple("Card", "bytes_recv bytes_sent")(3, 4)
    memory = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=5e9))
    fake = SimpleNamespace(
        Process=lambda: memory,
        getloadavg=lambda: (1.5, 0, 0),
        disk_usage=lambda _: SimpleNamespace(free=7e9),
        virtual_memory=lambda: SimpleNamespace(percent=25.0),
        disk_io_counters=lambda: disk,
        net_io_counters=lambda pernic: {"lo": card, "eth0": card},
        cpu_percent=lambda: 50.0,
    )
    monkeypatch.setitem(sys.modules, "psutil", fake)
    lines = run("system.py", "--rounds", "2", "--pause", "0.01").splitlines()
    table = {line.split()[0]: line.split()[-1] for line in lines[1:]}
    assert float(table["memory_gb"]) == 5
    assert float(table["host_memory_share"]) == 0.25
    assert lines[-2].startswith("milliseconds a reading")
