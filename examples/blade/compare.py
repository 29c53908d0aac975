"""What the tiny chain has learned, against what it must beat, on people that no run has seen.

    overt stages examples/blade/stages_tiny.yaml
    python examples/blade/compare.py --runs runs/blade_tiny

Renders fresh people, then prints: the relative depth error of stage 1 beside that of the best
constant (chosen on the training people), the same for a DepthNet trained and tested on parallel
rays, which show no depth, and the pose error of stage 2 beside that of a PoseNet that is not told
the depth. The two controls are trained by this script with the settings of the chain.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from overt.data.people.human_data import HumanData
from overt.geometry.body_capsule import capsule_body
from overt.recipes.blade.people import RootJoint


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/blade_tiny"))
    parser.add_argument("--data", type=Path, default=Path("data/blade_people"))
    parser.add_argument("--count", type=int, default=1000, help="fresh people")
    parser.add_argument("--seed", type=int, default=100, help="of the fresh people")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="for the controls")
    options = parser.parse_intermixed_args()
    fresh, parallel = options.runs / "fresh", options.runs / "parallel"
    make_people(fresh, options)
    make_people(parallel / "fresh", options, "--orthographic")

    constant = best_constant(options.data, fresh)
    depth = evaluate(options.runs / "depth", fresh)["relative_Tz"]
    print(f"relative depth error: constant {constant:.3f}, DepthNet {depth:.3f}", flush=True)
    print(f"  DepthNet / constant = {depth / constant:.3f} (at most 0.85)", flush=True)

    words = ["data.synthetic.orthographic=true", f"data.root={parallel / 'people'}"]
    train("blade_depthnet_tiny", options.runs, "control_parallel", [*words, *options.overrides])
    control = evaluate(options.runs / "control_parallel", parallel / "fresh")["relative_Tz"]
    flat = best_constant(parallel / "people", parallel / "fresh")
    print(f"parallel rays: constant {flat:.3f}, DepthNet {control:.3f}", flush=True)
    print(f"  DepthNet / constant = {control / flat:.3f} (at least 0.95)", flush=True)

    words = ["model.tz_conditioning=false", f"data.root={options.data}"]
    train("blade_posenet_tiny", options.runs, "control_untold", [*words, *options.overrides])
    told, untold = (evaluate(options.runs / name, fresh) for name in ("pose", "control_untold"))
    for name in ("mpjpe_mm", "pa_mpjpe_mm", "pve_mm"):
        print(f"{name}: told the depth {told[name]:.1f}, not told {untold[name]:.1f}", flush=True)
    return 0


def overt(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "overt", *words], check=True, stdout=subprocess.DEVNULL)


def make_people(root: Path, options: argparse.Namespace, *extra: str) -> None:
    if not (root / "preprocessed_datasets" / "people_test.npz").exists():
        words = ["--name", "people_test", "--count", str(options.count), "--size", "64"]
        words += ["--seed", str(options.seed), "--framing", "portrait", "--fixed-colors"]
        words += ["--body", "capsule"]
        overt("data", "people", str(root), *words, *extra)


def train(recipe: str, runs: Path, name: str, words: list[str]) -> None:
    overt("train", f"recipe={recipe}", f"output_dir={runs}", f"exp_name={name}", *words)


def evaluate(run: Path, root: Path) -> dict[str, float]:
    """Scores of a run's best checkpoint on the people below `root`."""
    output = run / f"scores_{root.name}"
    overt(
        "evaluate",
        f"checkpoint={run / 'checkpoints' / 'best'}",
        f"evaluation.dataset_root={root}",
        "evaluation.max_samples=null",
        f"output={output}",
    )
    scores: dict[str, float] = json.loads((output / "scores.json").read_text())["scores"]
    return scores


def best_constant(training: Path, test: Path) -> float:
    """The relative error on `test` of the constant that is best on the training people."""
    known = depths(training, "people_train")
    guesses = np.linspace(known.min(), known.max(), 1000)
    best = guesses[np.argmin([np.mean(np.abs(guess - known) / known) for guess in guesses])]
    unseen = depths(test, "people_test")
    return float(np.mean(np.abs(best - unseen) / unseen))


def depths(root: Path, name: str) -> np.ndarray:
    columns = HumanData.load(root / "preprocessed_datasets" / f"{name}.npz").columns
    rest = RootJoint(capsule_body())(np.asarray(columns["smplx/betas"]))
    return np.asarray(columns["smplx/transl"][:, 2] + rest[:, 2])


if __name__ == "__main__":
    raise SystemExit(main())
