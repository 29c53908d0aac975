"""The command `overt VERB ...`: each verb is one file, imported only when it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from overt import __version__
from overt.commands.installed import installed_commands, load_command, owner_in_words
from overt.errors import (
    FAILED_EXIT_CODE,
    SHOW_TRACEBACK,
    USAGE_EXIT_CODE,
    OvertError,
    Preempted,
    exit_code_of,
    file_problem,
    full_disk_problem,
    nearest,
)
from overt.terminal import paint, tell
from overt.verbs import VERBS, examples_of


def usage() -> str:
    texts = {verb: text for verb, (_, text) in VERBS.items()}
    texts |= {
        verb: owner_in_words(entry)
        for verb, entry in installed_commands().items()
        if verb not in VERBS
    }
    lines = [f"  {paint(f'overt {verb:<10}', 'bold')} {text}" for verb, text in texts.items()]
    return "\n".join(
        [
            f"overt {__version__}: explicit distributed training for vision research",
            "",
            *lines,
            "",
            "`overt VERB --help` explains a verb.",
        ]
    )


@contextmanager
def examples_after_help(words: list[str]) -> Iterator[None]:
    """Print examples below the help of a verb; `-h` ends its parser by SystemExit."""
    try:
        yield
    except SystemExit as ended:
        if ended.code in (0, None) and {"-h", "--help"} & set(words):
            print(f"\n{paint('examples:', 'bold')}")
            for command, purpose in examples_of(words).items():
                print(f"  {command}\n      {purpose}")
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:  # `overt help data pack` is `overt data pack --help`
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] in ("-V", "--version"):
        print(__version__)
        return 0
    verb, *rest = words
    if verb not in VERBS and verb not in installed_commands():
        hint = nearest(verb, [*VERBS, *installed_commands()])
        print(f"overt has no verb {verb!r}{hint}; `overt help` lists all verbs", file=sys.stderr)
        return USAGE_EXIT_CODE
    try:
        if verb in VERBS:
            with examples_after_help(words):
                result: int = import_module(VERBS[verb][0]).main(rest)
        else:
            result = load_command(installed_commands()[verb])(rest)
    except OvertError as error:
        kind = paint(type(error).__name__, "red", sys.stderr)
        name = "" if isinstance(error, Preempted) else f"{kind}: "
        tell(f"{name}{error}")
        return exit_code_of(error)
    except KeyboardInterrupt as stopped:
        print("\ninterrupted", file=sys.stderr)
        return exit_code_of(stopped)
    except BrokenPipeError:  # `overt ... | head` has seen enough
        sys.stderr.close()
        return 0
    except MemoryError:
        print("MemoryError: the input of this command does not fit into memory", file=sys.stderr)
        return FAILED_EXIT_CODE
    except Exception as error:
        # What training raises may be a bug of a recipe, whose traceback is needed.
        problem = full_disk_problem(error) if verb == "train" else file_problem(error)
        if problem is None or os.environ.get(SHOW_TRACEBACK):
            raise
        print(problem, file=sys.stderr)
        return FAILED_EXIT_CODE
    return result


if __name__ == "__main__":
    sys.exit(main())
