"""Write what a case consists of: clouds, volumes, meshes, page and facts."""

from __future__ import annotations

import argparse
import platform
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overt.commands.complete.options import finishing_of
from overt.commands.complete.skull import Points, Skull

if TYPE_CHECKING:
    from overt.geometry.implant import Finished


class Clock:
    """Times the stages of a case and prints each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.start = time.perf_counter()

    def end(self, stage: str, note: str = "") -> None:
        now = time.perf_counter()
        self.seconds[stage] = round(now - self.start, 3)
        print(f"{stage:<9} {now - self.start:6.1f} s{'  ' if note else ''}{note}", flush=True)
        self.start = now


def write_clouds(folder: Path, completion: Any, implants: Points) -> list[str]:
    """Write the samples as points of the patient, as the published code does, and as a picture."""
    import torch

    from overt.data.skulls.meshes import write_ply_points
    from overt.tools.report.case_folder import clear_case
    from overt.viz.points import Shown, draw_clouds
    from overt.viz.tracks import save_image

    clear_case(folder)
    folder.mkdir(parents=True, exist_ok=True)
    known, parts = completion.known, completion.implants
    completed = [np.concatenate([known.points, part]) for part in parts.numpy()]
    arrays = {"input": known.points[None], "sample": np.stack(completed)}
    arrays |= {"shift": known.shift[None], "scale": known.scale[None]}
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    for index, points in enumerate(implants):
        write_ply_points(folder / f"sample_{index}.ply", points)
    defective = torch.from_numpy(known.points)
    rows = [Shown(f"implant {index}", defective, part) for index, part in enumerate(parts)]
    save_image(folder / "picture.png", draw_clouds(rows))
    return [*(f"{name}.npy" for name in arrays), f"{len(parts)} sample_N.ply", "picture.png"]


def write_volumes(
    options: argparse.Namespace,
    folder: Path,
    skull: Skull,
    samples: list[NDArray[np.bool_]],
    facts: dict[str, Any],
    clock: Clock,
) -> tuple[Finished, list[str]]:
    """Write the implant that the samples agree on as volume, meshes and page."""
    from overt.geometry.implant import finish
    from overt.tools.report.case_folder import Case, write_case

    volume = skull.volume
    assert volume is not None
    spacing = volume.spacing
    voters = samples if options.vote else samples[:1]
    votes = np.sum(voters, axis=0, dtype=np.int32)
    chosen = np.asarray(votes >= (len(voters) + 1) // 2)
    finished = finish(chosen, volume.values, spacing, finishing_of(options))
    notes = [skull.how, f"Implant by {'vote of ' if options.vote else 'the first of '}"
             f"{len(samples)} sample(s), clearance {options.clearance:g} mm."]  # fmt: skip
    case = Case(options.scan.name, volume, finished, samples, facts | timing(clock), notes)
    written = write_case(folder, case)
    clock.end("write")
    return finished, written


def facts_of(options: argparse.Namespace, skull: Skull, clock: Clock) -> dict[str, Any]:
    """Return what case.json says about the scan and the software."""
    from importlib.metadata import version

    packages = ("overt", "torch", "numpy", "scipy")
    volume = skull.volume
    assert volume is not None
    return {
        "scan": str(options.scan),
        "values": skull.how,
        "shape": list(volume.values.shape),
        "spacing_mm": list(volume.spacing),
        "affine_lps": volume.affine.tolist(),
        "space": "LPS, mm",
        "versions": _versions(packages, version) | {"python": platform.python_version()},
        "finishing": finishing_of(options)._asdict(),
    }


def _versions(packages: Sequence[str], version: Callable[[str], str]) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError

    versions = {}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def timing(clock: Clock) -> dict[str, Any]:
    """Return times and the most memory so far."""
    memory = {"host_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        memory["device_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return {"seconds": dict(clock.seconds), "peak_memory": memory}
