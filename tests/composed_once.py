"""Composes each configuration once for all tests of a session: most load the same few recipes.

Importing this is enough. The workers of a session, which inherit the environment of the process
that starts them, share what they have composed in a folder of that process.
Packages in a test's own folder are left out: their files may change.
A test's own folder within a value has a stand-in while values are composed.
"""

import atexit
import hashlib
import os
import pickle
import re
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig

import overt.config.compose

PROJECT = Path(__file__).parents[1]
COMPOSE = overt.config.compose._compose
OWN_FOLDER = re.compile(r"/[^\s=,:\[\]{}()'\"]*/pytest-\d+(?:/popen-gw\d+)?/[^/\s=,:\[\]{}()'\"]+")
STAND_IN = "/of_a_test"
SHARED = "OVERT_TESTS_COMPOSED"  # the variable with the folder


def _shared_folder() -> Path:
    if SHARED not in os.environ:
        os.environ[SHARED] = tempfile.mkdtemp(prefix="overt-composed-")
        atexit.register(_remove, os.environ[SHARED], os.getpid())
    return Path(os.environ[SHARED])


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and not a process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _composed(overrides: tuple[str, ...], search: tuple[Path, ...]) -> bytes:
    """What is composed, as a pickle: it is read again in a fifth of the time of a deep copy."""
    key = hashlib.sha256(repr((overrides, search)).encode()).hexdigest()
    file = _shared_folder() / key
    with suppress(FileNotFoundError):
        return file.read_bytes()
    composed = pickle.dumps(COMPOSE(list(overrides), list(search)))
    whole = file.with_suffix(f".{os.getpid()}")
    # A server that is still importing when a short session ends no longer finds the folder.
    with suppress(FileNotFoundError):
        whole.write_bytes(composed)
        whole.replace(file)  # at once, for those who read at the same time
    return composed


def compose(overrides: list[str], search: list[Path], with_hydra: bool = False) -> DictConfig:
    """What `overt.config.compose._compose` returns."""
    if with_hydra:
        return COMPOSE(overrides, search, with_hydra)
    if not all(path.is_relative_to(PROJECT) for path in search):
        return COMPOSE(overrides, search)
    folders = {match for word in overrides for match in OWN_FOLDER.findall(word)}
    if len(folders) != 1 or any(STAND_IN in word for word in overrides):
        return pickle.loads(_composed(tuple(overrides), tuple(search)))
    (folder,) = folders
    words = tuple(word.replace(folder, STAND_IN) for word in overrides)
    try:
        values = pickle.loads(_composed(words, tuple(search)))
    except Exception:  # its words name the folder
        return COMPOSE(overrides, search)
    _put_back(values, folder)
    return values


def _put_back(values: DictConfig | ListConfig, folder: str) -> None:
    for key in range(len(values)) if isinstance(values, ListConfig) else list(values):
        node: Any = values._get_node(key)
        if isinstance(node, DictConfig | ListConfig):
            if not node._is_none() and not node._is_missing() and not node._is_interpolation():
                _put_back(node, folder)
        elif isinstance(node._value(), str) and STAND_IN in node._value():
            node._set_value(node._value().replace(STAND_IN, folder))


overt.config.compose._compose = compose
# Processes that are forked from one that has imported this find what most of them train.
compose(["recipe=toy"], [PROJECT / "tests" / "toy_recipe" / "conf"])
