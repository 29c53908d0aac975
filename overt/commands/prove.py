"""`overt prove resume recipe=NAME ...`: kill and resume a short run, compare every bit.

`overt prove world recipe=NAME ... --processes 2`: compare one process with several.
`overt prove loss recipe=NAME ...`: check that the loss is pure.
Exit code 0: proved; 1: not proved, and the first difference is shown; 2: invalid command line.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from overt.commands.arguments import config_options, finite_number, whole_number
from overt.config import Config, load
from overt.errors import ConfigError

TOLERANCE = 1e-5


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overt prove",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[config_options()],
    )
    parser.add_argument("claim", choices=("resume", "world", "loss"))
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="recipe=NAME, ..."
    )
    parser.add_argument("--steps", type=int, default=12, help="length of each run (12)")
    parser.add_argument("--save-every", type=int, default=3, help="steps between checkpoints (3)")
    parser.add_argument("--kill-at", default="random", help="step to kill at (random)")
    processes = whole_number(1, most=4096)
    parser.add_argument("--processes", type=processes, help="on this host (resume: 1, world: 2)")
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, help="selects step and process to kill"
    )
    parser.add_argument(
        "--tolerance",
        type=finite_number(0),
        default=TOLERANCE,
        help="world: relative tolerance of the losses",
    )
    parser.add_argument(
        "--deadline", type=finite_number(0, above=True), default=3600.0, help="seconds for each run"
    )
    parser.add_argument("--folder", type=Path, help="keep the runs here (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    return parser


def main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_intermixed_args(arguments)
    if options.processes is None:
        options.processes = 1 if options.claim == "resume" else 2
    _check(options)
    config = load(options.overrides, options.config, options.package)
    if options.claim == "loss":
        return _prove_loss(config, options.json)

    from overt.tools.proof.runs import Plan, choose_kill, prove_resume, prove_world

    folder = options.folder or Path(tempfile.mkdtemp(prefix="overt-prove-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"--folder {folder} is not empty; choose a new one")
    plan = Plan(
        options.overrides,
        options.package,
        options.config,
        folder.resolve(),
        options.steps,
        options.save_every,
        options.processes,
        options.deadline,
    )

    def say(line: str) -> None:
        if not options.json:
            print(f"  {line}", flush=True)

    if not options.json:
        title = f"overt prove {options.claim}: {config.recipe.name}, {options.steps} steps"
        print(f"{title}, {options.processes} process(es), in {folder}")
    if options.claim == "resume":
        kill_at, victim = choose_kill(
            options.kill_at, options.steps, options.save_every, options.processes, options.seed
        )
        verdict = prove_resume(plan, kill_at, victim, say)
        proved = "PROVED: killed and resumed, the run ends with the same bits"
    else:
        size = _batch_size(config, options.processes)
        verdict = prove_world(plan, size, options.tolerance, say)
        proved = "PROVED: one process and several compute the same losses"
    if options.json:
        print(json.dumps({"proved": verdict.difference is None, **verdict._asdict()}, indent=1))
    elif verdict.difference is None:
        print(proved)
    else:
        print(f"NOT PROVED: {verdict.difference}\n{_hint(config, options.claim)}")
        print(f"The runs and their logs are in {folder}.")
    if verdict.difference is None and options.folder is None:
        shutil.rmtree(folder)
    return 0 if verdict.difference is None else 1


def _prove_loss(config: Config, as_json: bool) -> int:
    """Call the loss on one batch, in this process."""
    from overt.distributed import init_distributed
    from overt.tools.proof.purity import check_purity

    purity = check_purity(config, init_distributed(config.training.device))
    verdict = {"facts": {"compared": purity.compared}, "difference": purity.difference}
    if as_json:
        print(json.dumps({"proved": purity.difference is None, **verdict}, indent=1))
    else:
        print(f"overt prove loss: {config.recipe.name}\n  compared     {purity.compared}")
        if purity.difference is None:
            print("PROVED: loss changes nothing, and returns the same when it is called again")
        else:
            print(f"NOT PROVED: {purity.difference}")
            print("Hand tensors on by StepOutput.carry (see `overt docs add_a_recipe`).")
    return 0 if purity.difference is None else 1


def _check(options: argparse.Namespace) -> None:
    least = 2 if options.claim == "world" else 1
    if options.processes < least:
        raise ConfigError(f"--processes {options.processes}; {options.claim} takes {least} or more")
    if options.steps < 2:
        raise ConfigError(f"--steps {options.steps}; it must be at least 2")
    if not 0 < options.save_every < options.steps:
        raise ConfigError(
            f"--save-every {options.save_every} with --steps {options.steps}; use 1 to "
            f"{options.steps - 1}, so that there is something to resume from"
        )


def _batch_size(config: Config, processes: int) -> int:
    """Samples per process and micro-batch, as configured or as the global batch leaves them."""
    training = config.training
    return training.batch_size or max((training.global_batch_size or 1) // processes, 1)


def _hint(config: Config, claim: str) -> str:
    if claim == "world":
        return (
            "Dropout and other random numbers of the model differ between ranks: try without "
            "them. Otherwise the recipe's loss is not normalized over the global batch (see "
            "`overt docs add_a_recipe`)."
        )
    if not config.training.deterministic:
        return "On CUDA add training.deterministic=true: without it even equal runs differ."
    return (
        "State that the computation depends on is not saved: a random generator of the recipe, or "
        "state outside of model and optimizer."
    )
