"""The same small training in plain PyTorch, overt, Fabric, Accelerate and the Lightning Trainer.

    pip install 'overt[bench]'
    python benchmarks/peers.py                        all, taking turns: some minutes on two cores
    python benchmarks/peers.py --frameworks plain overt --rounds 1 --steps 300
    python benchmarks/peers.py --speed                only the steps; CPU time bears a busy machine

A perceptron with dropout learns 4,096 points in batches of 32 with AdamW, clipped gradients and a
log line every 50 steps; the user's code of each lies in benchmarks/peer_code. Printed as a table:
time and CPU time of a step, time of the import and until the first step is done; lines of user
code; whether a run that is stopped in the middle of an epoch and resumed ends with the same bits;
and whether the mean loss over 101 samples is the same number with 1, 2 and 3 processes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CODE = HERE / "peer_code"
# Module of the user's code, what it imports, and the files that count as the user's.
FRAMEWORKS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "plain": ("plain", "torch", ("plain.py",)),
    "overt": ("with_overt", "overt.engine.trainer", ("with_overt.py",)),
    "fabric": ("with_fabric", "lightning.fabric", ("with_fabric.py",)),
    "accelerate": ("with_accelerate", "accelerate", ("with_accelerate.py",)),
    "lightning": ("with_lightning", "lightning.pytorch", ("with_lightning.py",)),
}
WARM_UP = 100  # steps before the clock counts
STOP, END = 75, 150  # steps: an epoch has 128


def one(task: str, framework: str, steps: int, folder: Path) -> Any:
    """What a separate process does, and its answer."""
    module, imported, _ = FRAMEWORKS[framework]
    if task == "import":
        began = time.perf_counter()
        import_module(imported)
        return time.perf_counter() - began
    sys.path.insert(0, str(CODE))
    code = import_module(module)
    if task == "evaluate":
        return code.evaluate()
    import torch

    torch.set_num_threads(1)
    model = code.train(steps, folder)
    if task == "train":
        weights = (value.numpy().tobytes() for value in model.state_dict().values())
        return hashlib.sha256(b"".join(weights)).hexdigest()
    shared = import_module("shared")
    times = shared.TIMES
    return {
        "step": mean_step(times),
        "cpu": mean_step(shared.CPU_TIMES),
        # The second loss begins when the first step has ended.
        "first": time.time() - time.perf_counter() + times[1] - float(os.environ["SPAWNED"]),
    }


def mean_step(times: list[float]) -> float:
    """Return the seconds from one loss to the next, after the warm-up."""
    return (times[-1] - times[WARM_UP]) / (len(times) - 1 - WARM_UP)


def call(task: str, framework: str, steps: int, folder: Path, processes: int = 1) -> Any:
    """Run `one` in fresh processes; the answer of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--one", task, framework, str(steps), str(folder)]
    group = []
    for rank in range(processes):
        environment = dict(os.environ) | {"SPAWNED": repr(time.time()), "OMP_NUM_THREADS": "1"}
        if task == "evaluate":  # as torchrun starts processes
            environment |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes), "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "peers",
                "ACCELERATE_USE_CPU": "true",
            }  # fmt: skip
        group.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
            )
        )
    answers = [process.communicate() for process in group]
    for process, (_, errors) in zip(group, answers, strict=True):
        if process.returncode:
            raise RuntimeError(f"{task} with {framework} failed:\n{errors[-2000:]}")
    return json.loads(answers[0][0].splitlines()[-1])


def resumes_exactly(framework: str) -> bool:
    """Whether stopping in the middle of an epoch leaves no trace in the weights."""
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        undisturbed = call("train", framework, END, Path(whole))
        call("train", framework, STOP, Path(parts))
        return bool(undisturbed == call("train", framework, END, Path(parts)))


def lines_of_code(files: tuple[str, ...]) -> int:
    """Lines that are neither blank nor comment nor docstring of one line."""
    lines = [line.strip() for name in files for line in (CODE / name).read_text().splitlines()]
    return sum(bool(line) and not line.startswith(("#", '"""')) for line in lines)


def table(results: dict[str, dict[str, Any]]) -> str:
    rows = [
        "| | µs per step | CPU µs per step | import s | first step s | lines | same bits after "
        "resume mid-epoch | mean loss with 1, 2, 3 processes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        cells = [
            name,
            f"{result['step'] * 1e6:.0f}",
            f"{result['cpu'] * 1e6:.0f}",
            f"{result['import']:.2f}",
            f"{result['first']:.2f}",
            str(result["lines"]),
            *verdicts(result),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def verdicts(result: dict[str, Any]) -> tuple[str, str]:
    """Return the cells of resume and scores; empty where they were not tried."""
    if "scores" not in result:
        return "", ""
    scores = result["scores"]
    near = max(scores) - min(scores) < 1e-6
    verdict = "the same" if len(set(scores)) == 1 else "rounding" if near else "differs"
    shown = ", ".join(f"{score:.6f}" for score in scores)
    return "yes" if result["resumes"] else "no", f"{verdict}: {shown}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frameworks", nargs="+", choices=tuple(FRAMEWORKS), default=[*FRAMEWORKS])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speed", action="store_true", help="try neither resume nor evaluation")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        task, framework, steps, folder = options.one
        print("\n" + json.dumps(one(task, framework, int(steps), Path(folder))))
        return 0
    if min(options.steps, options.rounds) < 1:
        parser.error("--steps and --rounds take integers of at least 1")
    for name in options.frameworks:
        package = FRAMEWORKS[name][1].partition(".")[0]
        if find_spec(package) is None:
            parser.error(f"{package} is not installed; pip install 'overt[bench]', or leave {name}")
    times: dict[str, dict[str, list[float]]] = {
        name: {"step": [], "cpu": [], "first": [], "import": []} for name in options.frameworks
    }
    for _ in range(options.rounds):  # taking turns, so that all see the same machine
        for name, lists in times.items():
            with tempfile.TemporaryDirectory() as folder:
                speed = call("speed", name, options.steps, Path(folder))
            for key in ("step", "cpu", "first"):
                lists[key].append(speed[key])
            lists["import"].append(call("import", name, 0, HERE))
            print(f"{name}: {lists}", file=sys.stderr)
    results: dict[str, dict[str, Any]] = {}
    for name, lists in times.items():
        results[name] = {
            **{key: statistics.median(values) for key, values in lists.items()},
            "lines": lines_of_code(FRAMEWORKS[name][2]),
        }
        if not options.speed:
            results[name] |= {
                "scores": [call("evaluate", name, 0, HERE, count) for count in (1, 2, 3)],
                "resumes": resumes_exactly(name),
            }
        print(f"{name}: {results[name]}", file=sys.stderr)
    print(table(results))
    print(f"\n{os.cpu_count()} CPU cores, {platform.machine()}, Python {platform.python_version()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
