"""Tests mirror the package: `overt/a/b.py` has `tests/a/test_b.py`; the exceptions are below.

`tests/a/test_b_aspect.py` is a further test of `overt/a/b.py`. An operation is one thing: its
plain definition and its kernels are covered by any test of `tests/ops` that bears its name. So is
a recipe: its folder is mirrored, and `tests/reference` compares its parts with the original.
"""

from collections.abc import Set
from pathlib import Path

import pytest

import overt

PACKAGE, TESTS = Path(overt.__file__).parent, Path(__file__).parent

# Folders of tests that belong to no single module.
FOLDERS = {
    "benchmarks": "the scripts of benchmarks/",
    "cluster": "a real Slurm, and two network hosts",
    "distributed": "whole runs of several processes",
    "faults": "whole runs under injected faults",
    "reference": "recorded numbers of the original systems",
    "safety": "hostile files and words, over all readers",
}
# Single files likewise.
FILES = {
    "checkpoint/test_declared_tensors.py": "what the models of all recipes declare",
    "checkpoint/test_old_checkpoints.py": "checkpoints of earlier versions resume",
    "examples/test_methods.py": "examples/methods, seven methods as a user would write them",
    "commands/test_complete.py": "`overt complete`, a command of several files, as a user calls it",
    "data/streams/test_training.py": "whole runs on streams",
    "recipes/test_contract.py": "overt.testing.check_recipe over all recipes",
    "test_deterministic.py": "the same bits twice, for every recipe",
    "tools/plan/test_full_size.py": "plans of the full-size recipes",
    "recipes/test_evaluation_data.py": "check_evaluation_data of all recipes alike",
    "recipes/test_example_batch.py": "example_batch of all recipes alike",
    "examples/test_notebooks.py": "examples/notebooks",
    "test_docs.py": "commands and quoted code of the documentation",
    "test_examples.py": "examples/own_recipe",
    "test_examples_blade.py": "examples/blade",
    "test_examples_jepa.py": "examples/jepa",
    "test_examples_pcdiff.py": "examples/pcdiff",
    "test_extras.py": "what works without optional packages",
    "test_guides.py": "the guides of docs/, followed command by command",
    "test_imports.py": "who may import whom",
    "test_links.py": "links and anchors of pages, docstrings and messages",
    "test_mirror.py": "this",
    "test_prose.py": "words of docs, messages and comments",
    "test_release.py": "one version everywhere; templates, workflows, the image",
}
# Modules without a test at the mirrored path, and the test that covers each.
COVERED = {
    "__main__": "test_cli.py",
    "commands/complete/result": "commands/test_complete.py",
    "commands/complete/skull": "commands/test_complete.py",
    "commands/data/arguments": "commands/data/test_tracking.py",
    "config/schema": "config/test_compose.py",  # dataclasses of settings
    "checkpoint/shard_index": "checkpoint/test_shards.py",
    "data/tracking/procedural_settings": "data/tracking/test_procedural.py",
    "files/torchscript_file": "recipes/hjepa/test_export.py",
    "ops/norm_sums/kernels": "ops/map_norm/test_kernels.py",  # a part of two operations
    "recipes/cotracker3/pyramid": "recipes/cotracker3/test_model.py",
    "recipes/blade/build": "recipes/blade/test_depthnet.py",
    "recipes/blade/config": "recipes/blade/test_depth_recipe.py",  # settings, as all of these
    "recipes/blade/example": "recipes/test_example_batch.py",
    "recipes/cotracker3/config": "recipes/cotracker3/test_recipe.py",
    "recipes/hjepa/config": "recipes/hjepa/test_recipe.py",
    "recipes/hjepa/data_config": "recipes/hjepa/test_recipe.py",
    "recipes/hjepa/model_config": "recipes/hjepa/test_recipe.py",
    "recipes/hjepa/example": "recipes/test_example_batch.py",
    "recipes/lbm/backbone": "recipes/lbm/test_resnet_weights.py",
    "recipes/lbm/clip": "recipes/lbm/test_online.py",
    "recipes/lbm/config": "recipes/lbm/test_recipe.py",
    "recipes/pcdiff/config": "recipes/pcdiff/test_recipe.py",
    "recipes/pcdiff/voxel_config": "recipes/pcdiff/test_voxel_recipe.py",
    "recipes/pcdiff/layers": "recipes/pcdiff/test_denoiser.py",
    "testing/subject": "testing/test_checks.py",
    "tools/plan/communication": "tools/plan/test_predict.py",
    "tools/plan/operator_flops": "tools/plan/test_live_memory.py",
}


def modules_of(package: Path) -> set[str]:
    """The modules of a package, as `a/b`."""
    return {
        path.relative_to(package).with_suffix("").as_posix()
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    }


def files_of_tests(folder: Path) -> set[str]:
    """The test files below a folder, as `a/test_b.py`."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("test_*.py")}


def mirror(module: str) -> str:
    folder, slash, name = module.rpartition("/")
    return f"{folder}{slash}test_{name}.py"


def operation(path: str) -> str | None:
    """The operation that a module of `ops`, or a test of it, belongs to."""
    room, _, rest = path.partition("/")
    name = rest.partition("/")[0].removesuffix(".py").removeprefix("test_")
    return name.removesuffix("_kernels").removesuffix("_operators") if room == "ops" else None


def recipe(path: str) -> str | None:
    """The recipe that a module, or a test of it, belongs to."""
    room, _, rest = path.partition("/")
    return rest.partition("/")[0] if room == "recipes" and "/" in rest else None


def without_module(tests: Set[str], modules: Set[str]) -> list[str]:
    """Test files that mirror no module and are no exception."""
    strays = []
    for test in sorted(tests - FILES.keys()):
        folder, _, name = test.rpartition("/")
        if test.partition("/")[0] in FOLDERS and "/" in test:
            continue
        if recipe(test) is not None and recipe(test) in {recipe(module) for module in modules}:
            continue
        words = name.removeprefix("test_").removesuffix(".py").split("_")
        names = ["_".join(words[: length + 1]) for length in range(len(words))]
        if not any(f"{folder}/{each}".lstrip("/") in modules for each in names):
            strays.append(test)
    return strays


def without_test(tests: Set[str], modules: Set[str]) -> list[str]:
    """Modules that no test mirrors and that are no exception."""
    operations = {operation(test) for test in tests} - {None}
    recipes = {recipe(test) for test in tests} - {None}
    return sorted(
        module
        for module in modules - COVERED.keys()
        if mirror(module) not in tests
        and operation(module) not in operations
        and recipe(module) not in recipes
    )


def test_every_test_mirrors_a_module() -> None:
    assert without_module(files_of_tests(TESTS), modules_of(PACKAGE)) == []


def test_every_module_has_its_test() -> None:
    assert without_test(files_of_tests(TESTS), modules_of(PACKAGE)) == []


def test_the_exceptions_are_needed_and_exist() -> None:
    tests, modules = files_of_tests(TESTS), modules_of(PACKAGE)
    assert COVERED.keys() <= modules
    assert set(COVERED.values()) <= tests
    assert [module for module in COVERED if mirror(module) in tests] == []
    assert FILES.keys() <= tests
    assert all(any((TESTS / folder).glob("test_*.py")) for folder in FOLDERS)
    assert FOLDERS.keys().isdisjoint({path.name for path in PACKAGE.iterdir() if path.is_dir()})


def test_every_folder_of_tests_is_a_package() -> None:
    """So that mirrored names may repeat."""
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


MODULES = {"run/log", "engine/loader", "ops/dropout", "ops/dropout_kernels", "ops/resize/plain"}
MIRRORED = {"run/test_log.py", "engine/test_loader.py", "ops/test_dropout.py"}
MIRRORED |= {"ops/resize/test_api.py"}


@pytest.mark.parametrize(
    ("test", "is_stray"),
    [
        ("run/test_log_folder.py", False),  # an aspect
        ("distributed/test_anything.py", False),
        ("run/test_logs.py", True),
        ("run/test_loader.py", True),  # of another room
        ("test_log.py", True),
        ("test_distributed_anything.py", True),  # no folder of that name
    ],
)
def test_a_planted_stray_test_is_found(test: str, is_stray: bool) -> None:
    assert without_module({test}, MODULES) == ([test] if is_stray else [])


def test_a_planted_module_without_a_test_is_found() -> None:
    assert without_test(MIRRORED, MODULES) == []  # kernels count with their operation
    for test, modules in {
        "run/test_log.py": ["run/log"],
        "ops/test_dropout.py": ["ops/dropout", "ops/dropout_kernels"],
        "ops/resize/test_api.py": ["ops/resize/plain"],
    }.items():
        assert without_test(MIRRORED - {test}, MODULES) == modules
