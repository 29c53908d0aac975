"""What one reading of the host costs: overt's meter of /proc against psutil, and do they agree?

    pip install psutil; python benchmarks/system.py

Both read memory, load, disk and network; the readings alternate.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from command import positive

from overt.health.system import GIGABYTE, MEGABYTE, SystemMeter

RATES = ("disk_read", "disk_written", "network_received", "network_sent")


class PsutilMeter:
    """Does what SystemMeter does, by psutil."""

    def __init__(self, psutil: Any, folder: Path) -> None:
        self._psutil, self._folder = psutil, folder
        self._process = psutil.Process()
        self._last: list[float] | None = None

    def host(self) -> dict[str, float]:
        psutil = self._psutil
        numbers = {
            "memory_gb": self._process.memory_info().rss / GIGABYTE,
            "cpu_load": psutil.getloadavg()[0],
            "disk_free_gb": psutil.disk_usage(str(self._folder)).free / GIGABYTE,
            "host_memory_share": psutil.virtual_memory().percent / 100,
        }
        disk, cards = psutil.disk_io_counters(), psutil.net_io_counters(pernic=True)
        outside = [card for name, card in cards.items() if name != "lo"]
        now = [
            time.monotonic(),
            disk.read_bytes,
            disk.write_bytes,
            sum(card.bytes_recv for card in outside),
            sum(card.bytes_sent for card in outside),
        ]
        busy = psutil.cpu_percent() / 100  # since the last call
        if self._last is not None:
            numbers["cpu_share"] = busy
            seconds, *amounts = (
                after - before for after, before in zip(now, self._last, strict=True)
            )
            for name, amount in zip(RATES, amounts, strict=True):
                numbers[f"{name}_mb_per_second"] = amount / MEGABYTE / seconds
        self._last = now
        return numbers


def run(rounds: int, pause: float) -> None:
    """Print both readings after `pause` seconds, then what a reading takes."""
    try:
        start = time.perf_counter()
        psutil = importlib.import_module("psutil")
        imported = time.perf_counter() - start
    except ImportError:
        print("psutil is not installed, so there is nothing to compare with: pip install psutil")
        return
    meters: dict[str, SystemMeter | PsutilMeter] = {
        "overt": SystemMeter(Path()),
        "psutil": PsutilMeter(psutil, Path()),
    }
    for meter in meters.values():
        meter.host()
    time.sleep(pause)
    readings = {name: meter.host() for name, meter in meters.items()}
    print(f"{'':32}{'overt':>12}{'psutil':>12}")
    for key in readings["overt"]:
        print(f"{key:32}" + "".join(f"{readings[name].get(key, 0):12.4g}" for name in meters))
    seconds: dict[str, list[float]] = {name: [] for name in meters}
    for _ in range(rounds):
        for name, meter in meters.items():
            start = time.perf_counter()
            meter.host()
            seconds[name].append(time.perf_counter() - start)
    medians = (f"{1000 * statistics.median(values):12.3f}" for values in seconds.values())
    print(f"{'milliseconds a reading':32}" + "".join(medians))
    print(f"{'milliseconds to import':32}{0:12.3f}{1000 * imported:12.3f}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=positive, default=300)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two readings")
    options = parser.parse_args(arguments)
    run(options.rounds, options.pause)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
