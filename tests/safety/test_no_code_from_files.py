"""No file that is read can run code: the source is searched for every way that would let it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import overt

ROOT = Path(overt.__file__).parent
FORBIDDEN = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "pickle._Unpickler", "eval", "exec",
    "os.system", "os.popen", "marshal.load", "marshal.loads", "shelve.open", "joblib.load",
    "dill.load", "dill.loads", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    "torch.jit.load", "torch.storage._load_from_bytes", "pandas.read_pickle",
}  # fmt: skip
# Where allow_pickle stands among the arguments.
POSITIONS = {"numpy.load": 2, "numpy.lib.format.read_array": 1}
# Arguments by name that decide.
TELLING = {"weights_only", "allow_pickle", "shell"}
# A reader of its own is allowed if it decides on every name itself.
UNPICKLERS = {"pickle.Unpickler", "pickle._Unpickler"}


# Files that are programs by their nature, which the user names as such (SECURITY.md).
PROGRAMS = {("overt/recipes/cotracker3/teachers.py", "torch.jit.load")}


def calls_of(source: str) -> Iterator[tuple[int, str]]:
    """Line and reason of every call that could run code from a file."""
    tree = ast.parse(source)
    known = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = {full_name(base, known) for base in node.bases}
            own = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            if bases & UNPICKLERS and "find_class" not in own:
                yield node.lineno, f"{node.name} admits every class"
        if not isinstance(node, ast.Call):
            continue
        name = full_name(node.func, known)
        named = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg in TELLING}
        if name in FORBIDDEN:
            yield node.lineno, name
        elif name == "torch.load" and named.get("weights_only") != "True":
            yield node.lineno, "torch.load without weights_only=True"
        elif name in POSITIONS:
            if named.get("allow_pickle", "False") != "False" or len(node.args) > POSITIONS[name]:
                yield node.lineno, name
        elif named.get("shell") == "True":
            yield node.lineno, f"{name} with a shell"


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: `np` for numpy, `loads` for pickle.loads."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {item.asname: item.name for item in node.names if item.asname}
        elif isinstance(node, ast.ImportFrom):
            known |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    return known


def full_name(node: ast.expr, known: dict[str, str]) -> str:
    first, dot, rest = ast.unparse(node).partition(".")
    return known.get(first, first) + dot + rest


def test_no_call_runs_code_from_a_file() -> None:
    calls = [
        (f"overt/{file.relative_to(ROOT).as_posix()}", reason, line)
        for file in sorted(ROOT.rglob("*.py"))
        for line, reason in calls_of(file.read_text())
    ]
    assert {(file, reason) for file, reason, _ in calls} == PROGRAMS, calls


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.load(file)",
        "import pickle as p\np.loads(text)",
        "from pickle import load as read\nread(file)",
        "import pickle\nclass Reader(pickle.Unpickler):\n    def load(self): ...",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "from torch import load\nload(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=trusted)",
        "import numpy as np\nnp.load(path, None, True)",
        "import numpy as np\nnp.lib.format.read_array(file, allow_pickle=True)",
        "from numpy.lib.format import read_array\nread_array(file, True)",
        "eval(text)",
        "subprocess.run(command, shell=True)",
        "yaml.load(text, Loader)",
    ],
)
def test_a_planted_call_is_found(source: str) -> None:
    assert len(list(calls_of(source))) == 1


def test_reading_as_data_is_no_finding() -> None:
    source = (
        "import pickle\nimport numpy as np\nimport torch\n"
        "class Reader(pickle.Unpickler):\n    def find_class(self, module, name): ...\n"
        "np.load(path, allow_pickle=False)\ntorch.load(path, weights_only=True)"
    )
    assert not list(calls_of(source))
