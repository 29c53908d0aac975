"""The command `overt VERB ...`: each verb is one file, imported only when it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from overt import __version__
from overt.commands.installed import installed_commands, load_command, owner_in_words
from overt.errors import PREEMPTED_EXIT_CODE, OvertError, Preempted

VERBS = {
    "train": ("overt.train", "train a recipe"),
    "evaluate": ("overt.commands.evaluate", "score a checkpoint on held-out data"),
    "track": ("overt.commands.track", "follow points through a video, and draw them"),
    "complete": ("overt.commands.complete", "an implant for a defective skull"),
    "estimate": ("overt.commands.estimate", "mesh and camera of the person in a picture"),
    "launch": ("overt.commands.launch", "on Slurm, detached, or as a service"),
    "stages": ("overt.commands.stages", "a chain of trainings, each fed by the one before"),
    "plan": ("overt.commands.plan", "batch, memory and time of a run before it is launched"),
    "config": ("overt.commands.config", "print a configuration, explain its keys"),
    "ckpt": ("overt.commands.ckpt", "look into a checkpoint, or export it"),
    "data": ("overt.commands.data", "make, pack and prepare data sets"),
    "runs": ("overt.commands.runs", "list runs: status, step, best score, time left"),
    "watch": ("overt.commands.watch", "follow a run in the terminal"),
    "report": ("overt.commands.report", "one HTML page about runs"),
    "doctor": ("overt.commands.doctor", "check machine, cluster and run before training"),
    "prove": ("overt.commands.prove", "kill and resume a run of yours, compare every bit"),
    "new": ("overt.commands.new", "write a recipe folder to start from"),
    "demo": ("overt.commands.demo", "data, training, scores and a picture in minutes"),
}


def usage() -> str:
    texts = {verb: text for verb, (_, text) in VERBS.items()}
    texts |= {
        verb: owner_in_words(entry)
        for verb, entry in installed_commands().items()
        if verb not in VERBS
    }
    lines = [f"  overt {verb:<10} {text}" for verb, text in texts.items()]
    return "\n".join(
        [
            f"overt {__version__}: explicit distributed training for vision research",
            "",
            *lines,
            "",
            "`overt VERB --help` says more.",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    verb, *rest = words
    if verb not in VERBS and verb not in installed_commands():
        print(f"overt has no verb {verb!r}\n\n{usage()}", file=sys.stderr)
        return 2
    try:
        if verb in VERBS:
            result: int = import_module(VERBS[verb][0]).main(rest)
        else:
            result = load_command(installed_commands()[verb])(rest)
    except Preempted as asked:
        print(asked, file=sys.stderr)
        return PREEMPTED_EXIT_CODE
    except OvertError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `overt ... | head` has seen enough
        sys.stderr.close()
        return 0
    return result


if __name__ == "__main__":
    sys.exit(main())
