"""Every verb names a module with a `main`, says what it does, and has examples that are right."""

import argparse
from importlib.util import find_spec

import pytest
from doc_commands import try_command

from overt.commands.data import images, people, skulls, tracking
from overt.commands.launch import BACKENDS
from overt.verbs import EXAMPLES, VERBS, examples_of


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_a_module_and_a_line(verb: str) -> None:
    module, text = VERBS[verb]
    assert find_spec(module) is not None
    assert 10 < len(text) < 70
    assert text[0].islower()
    assert not text.startswith(("a ", "an ", "the "))


def test_every_verb_has_examples_and_a_subcommand_its_own() -> None:
    assert {key.partition(" ")[0] for key in EXAMPLES} == set(VERBS)
    assert "--side 256" in next(iter(examples_of(["data", "pack", "--help"])))
    assert examples_of(["data", "--help"]) == EXAMPLES["data"]
    verbs = argparse.ArgumentParser().add_subparsers()
    for field in (tracking, images, skulls, people):
        field.add_verbs(verbs)
    names = [f"data {name}" for name in verbs.choices] + [f"launch {name}" for name in BACKENDS]
    assert len(names) > 15
    for name in names:
        assert all(f"overt {name} " in command for command in EXAMPLES[name]), name


@pytest.mark.parametrize(
    "command",
    [
        command
        for key, commands in EXAMPLES.items()
        for command in commands
        if key != "completion"  # a line of a shell's own file
    ],
)
def test_an_example_is_accepted_by_its_own_parser(command: str) -> None:
    try_command(command)
