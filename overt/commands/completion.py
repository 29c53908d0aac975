"""`overt completion SHELL`: print a script that completes verbs, options, keys and values.

bash: `eval "$(overt completion bash)"` in ~/.bashrc; zsh: the same in ~/.zshrc, after compinit;
fish: `overt completion fish > ~/.config/fish/completions/overt.fish`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Sequence
from importlib import import_module

from overt.config import CONF
from overt.config.choices import CHOICES
from overt.config.explain import explanations
from overt.files.shipped import shipped
from overt.verbs import EXAMPLES, VERBS

SCRIPTS = {
    "bash": """_overt() {
    local IFS=$'\\n' word="${COMP_LINE:0:COMP_POINT}"
    COMPREPLY=($(overt completion --words "$word" 2>/dev/null))
    # Readline splits words at "=": it expects what follows it.
    local current="${word##* }"
    if [[ "$current" == *=* && "$COMP_WORDBREAKS" == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%%=*}="}")
    fi
    [[ "${COMPREPLY[0]}" == *= || "${COMPREPLY[0]}" == *. ]] && compopt -o nospace
}
complete -o default -F _overt overt
""",
    "zsh": """_overt() {
    local -a candidates
    candidates=("${(@f)$(overt completion --words "${BUFFER[1,CURSOR]}" 2>/dev/null)}")
    compadd -Q -S '' -- $candidates
}
compdef _overt overt
""",
    "fish": """complete -c overt -f -a '(overt completion --words (commandline -cp) 2>/dev/null)'
complete -c overt -F -n 'not string match -q "*=*" -- (commandline -ct)'
""",
}
SUBCOMMANDS = {
    "data": [key.partition(" ")[2] for key in EXAMPLES if key.startswith("data ")],
    "ckpt": ["inspect", "export"],
    "launch": ["slurm", "local", "systemd"],
    "prove": ["resume", "world", "loss"],
    "completion": ["bash", "zsh", "fish"],
    "help": list(VERBS),
}
TAKE_SETTINGS = ("train", "evaluate", "config", "plan", "launch", "prove", "doctor")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="overt completion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", nargs="?", choices=tuple(SCRIPTS), help="the shell")
    parser.add_argument("--words", metavar="LINE", help="print the candidates for a command line")
    options = parser.parse_args(arguments)
    if options.words is not None:
        print("\n".join(candidates(options.words)))
        return 0
    if options.shell is None:
        parser.error(f"name a shell: {', '.join(SCRIPTS)}")
    print(SCRIPTS[options.shell], end="")
    return 0


def candidates(line: str) -> list[str]:
    """Return what the last word of a command line can become."""
    words = line.split(" ")
    before, current = [word for word in words[1:-1] if word], words[-1]
    if not before:
        return sorted(verb for verb in VERBS if verb.startswith(current))
    if current.startswith("-"):
        return [option for option in options_of(before) if option.startswith(current)]
    if len(before) == 1 and "=" not in current:
        inside = sorted(name for name in names_after(before[0]) if name.startswith(current))
        if inside or before[0] not in TAKE_SETTINGS:
            return inside
    if before[0] not in TAKE_SETTINGS:
        return []
    key, separator, _ = current.partition("=")
    if separator:
        options = [f"{key}={value}" for value in values_of(key, before)]
    else:
        options = keys(before)
        # One level at a time: hundreds of keys are unreadable.
        depth = current.count(".") + 1
        options = sorted({_cut(option, depth) for option in options})
    return [option for option in options if option.startswith(current)]


def names_after(verb: str) -> list[str]:
    """Return what can follow a verb: its sub-commands, the pages of `docs`, the `examples`."""
    if verb == "docs":
        return [page.stem for page in shipped("docs").rglob("*.md")]
    if verb == "examples":
        return [page.parent.name for page in shipped("examples").glob("*/README.md")]
    return SUBCOMMANDS.get(verb, [])


def options_of(before: Sequence[str]) -> list[str]:
    """Return the options in the help of a verb or of its sub-command."""
    verb, *rest = before
    if verb not in VERBS:
        return []
    inside = [word for word in rest[:1] if word in SUBCOMMANDS.get(verb, [])]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        import_module(VERBS[verb][0]).main([*inside, "--help"])
    return sorted(set(re.findall(r"(?<=[\s,\[])--\w[\w-]*", shown.getvalue())))


def _cut(key: str, depth: int) -> str:
    parts = key.split(".")
    return f"{key}=" if len(parts) <= depth else ".".join(parts[:depth]) + "."


def groups() -> dict[str, list[str]]:
    """Return the configuration groups and their options."""
    return {
        folder.name: sorted(file.stem for file in folder.glob("*.yaml"))
        for folder in CONF.iterdir()
        if folder.is_dir() and folder.name != "launch"
    }


def sections(before: Sequence[str]) -> dict[str, type]:
    """Return the dataclass of each section; with a recipe in `before`, its own sections too."""
    from overt.config import load, schema_of
    from overt.errors import OvertError

    chosen = [word for word in before if word.startswith("recipe=")]
    if chosen:
        try:
            return schema_of(load([*chosen, "data.root=."]))
        except OvertError:
            pass  # a half-typed recipe: the engine's keys are still right
    return schema_of(None)


def keys(before: Sequence[str]) -> list[str]:
    """Return every key of the configuration, and the groups."""
    known = sections(before)
    names = [
        f"{section}.{name}".lstrip(".")
        for section, kind in known.items()
        for name in explanations(kind)
    ]
    return [*groups(), *(name for name in names if name not in known)]


def values_of(key: str, before: Sequence[str]) -> list[str]:
    """Return the values that a key can have, where these are few."""
    options = groups().get(key)
    if options is not None:
        return options
    if key in CHOICES:
        return list(CHOICES[key])
    section, _, name = key.rpartition(".")
    kind = sections(before).get(section)
    meaning = "" if kind is None else explanations(kind).get(name, "")
    hint, _, text = meaning.partition(": ")
    values = ["true", "false"] if "bool" in hint else []
    # The comment of a choice begins with its values: "auto, cpu or cuda; ...".
    choice = re.match(r"((?:\w+(?: \([^)]*\))?, )*\w+(?: \([^)]*\))?) or (\w+)", text)
    if "str" in hint and choice:
        listed = re.sub(r" \([^)]*\)", "", choice.group(1))
        values += [*listed.split(", "), choice.group(2)]
    return [*values, *(["null"] if "None" in hint else [])]
