"""Documentation that cannot rot: commands and quoted code are held against the project."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from benchmark_scripts import functions
from doc_commands import (
    BLOCK,
    NEEDS,
    PAGES,
    RECIPES,
    ROOT,
    Command,
    Untried,
    commands_of,
    composed,
    name,
    try_command,
)
from omegaconf import OmegaConf

from overt.config import GROUPS, load
from overt.schedule_section import build_schedule
from overt.tools.plan.communication import Network, ddp_traffic

EXAMPLE = str(ROOT / "examples" / "own_recipe")
QUOTE = re.compile(r"<!-- from (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ALL_COMMANDS = [command for page in PAGES for command in commands_of(page)]


def test_there_are_commands() -> None:
    assert len([command for command in ALL_COMMANDS if "overt" in command.text]) > 100


def test_marks_say_what_is_needed() -> None:
    mark = re.compile(r"^<!-- needs", re.MULTILINE)
    marks = [one for page in PAGES for one in mark.findall(page.read_text())]
    assert {command.needs for command in ALL_COMMANDS} - {None} <= NEEDS
    # A mark that stands before no block would be one that nobody sees.
    blocks = [needs for page in PAGES for needs, *_ in BLOCK.findall(page.read_text()) if needs]
    assert len(marks) == len(blocks)


@pytest.mark.parametrize("command", dict.fromkeys(ALL_COMMANDS), ids=lambda one: one.text[:70])
def test_commands_are_accepted(command: Command) -> None:
    """By their own parsers, and with settings that exist; all else has to be marked."""
    try:
        try_command(command.text)
    except Untried:
        assert command.needs, f"{command.page}: nothing tries or marks `{command.text}`"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("rm -rf runs", Untried),
        ("overt trian recipe=cotracker3_tiny", AssertionError),
        ("overt track video.mp4 --gird 3", AssertionError),
        ("overt train recipe=cotracker3_tiny training.num_step=3", Exception),
        ("overt train recipe=cotracker3_tinny", Exception),
        ("torchrun --processes=8 -m overt.train recipe=cotracker3_tiny", SystemExit),
        ("python benchmarks/step.py hjepa --stesp 3", AssertionError),
        ("python benchmarks/none.py", AssertionError),
        ("make dmeo", AssertionError),
        ("python3 tests/cluster/slurm_cluster.py install", Untried),
        ("pip install 'overt[nothing]'", AssertionError),
    ],
)
def test_wrong_commands_are_found(text: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        try_command(text)


@cache
def known_keys() -> frozenset[str]:
    """The dotted keys, sections included, of every recipe of overt and of the example."""
    keys: set[str] = set()

    def add(values: Mapping[str, Any], prefix: str) -> None:
        for key, value in values.items():
            keys.add(prefix + key)
            if isinstance(value, Mapping):
                add(value, f"{prefix}{key}.")

    for recipe in sorted({*RECIPES, "own_recipe", "own_recipe_focal"}):
        packages = (EXAMPLE,) if recipe.startswith("own") else ()
        values = OmegaConf.to_container(composed((f"recipe={recipe}",), packages))
        assert isinstance(values, Mapping)
        add(values, "")
    return frozenset(keys)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_names_in_the_text_exist(page: Path) -> None:
    """`section.key=value` is a setting, `overt.module.Name` can be imported."""
    sections = {key.partition(".")[0] for key in known_keys() if "." in key}
    for code in re.findall(r"`([^`\n]+)`", BLOCK.sub("", page.read_text())):
        dotted = re.fullmatch(r"((\w+)(?:\.\w+)+)(?:=.*)?", code)
        if dotted is None or dotted[1].endswith((".py", ".md", ".yaml", ".safetensors")):
            continue
        if dotted[2] in sections:
            assert dotted[1] in known_keys(), f"{name(page)} speaks of {code}"
        if dotted[2] == "overt":
            assert resolve_name(dotted[1]) is not None, f"{name(page)} speaks of {code}"


@pytest.mark.parametrize(
    ("page", "recipe"), [("cotracker", "cotracker3_offline"), ("pcdiff", "pcdiff")]
)
def test_a_guide_states_the_values_of_the_recipe(page: str, recipe: str) -> None:
    """The table of flags: `--flag` | `key`, ... | value, ..."""
    values = composed((f"recipe={recipe}",), ())
    text = (ROOT / "docs" / f"coming_from_{page}.md").read_text()
    _, _, table = text.partition("| flag | key | in the recipe |\n|---|---|---|\n")
    compared = 0
    for row in table.partition("\n\n")[0].splitlines():
        _, where, stated = [cell.strip() for cell in row.strip("|").split(" | ")]
        keys = [key for key in re.findall(r"`\+?([\w.]+)`", where) if key in known_keys()]
        if not stated or stated.startswith("to be given"):
            continue
        parts = re.split(r", (?![^\[]*\])", stated)
        for key, part in zip(keys, parts, strict=False):
            stated_value = OmegaConf.from_dotlist([f"value={part}"]).value
            assert OmegaConf.select(values, key) == stated_value, f"{key}: the page says {part}"
            compared += 1
    assert compared > 20


def test_the_factor_of_a_warm_up_is_told_from_its_rate() -> None:
    """A factor of 0.01, given as the rate at step 0, would be 50 times the rate of PCDiff."""
    page = (ROOT / "docs" / "coming_from_pcdiff.md").read_text()
    (key,) = re.findall(r"\| `--lr-warmup-start-factor` \| `\+(schedule\.\w+)`", page)
    config = load(["recipe=pcdiff", "schedule.warmup_epochs=1", f"+{key}=0.01"], needs_data=False)
    schedule = build_schedule(config.schedule, config.optimizer.lr, 10, 5, "schedule")
    assert schedule(0) == pytest.approx(0.01 * config.optimizer.lr)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_quoted_code_is_in_the_file_it_names(page: Path) -> None:
    for source, quoted in QUOTE.findall(page.read_text()):
        lines = (line.strip() for line in (ROOT / source).read_text().splitlines())
        for line in filter(None, map(str.strip, quoted.splitlines())):
            if line != "...":  # left out
                found = any(other.startswith(line) for other in lines)  # in the same order
                assert found, f"{name(page)} quotes {line!r}, not found in {source}"


def test_the_groups_are_those_of_the_folder() -> None:
    """docs/configuration.md lists every group with every choice, and nothing else."""
    page = (ROOT / "docs/configuration.md").read_text()
    table = page.partition("| group | sets | choices |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if "`" in line]
    listed = {group.strip(" `"): re.findall(r"`(\w+)`", names) for group, _, names in rows}
    folder = ROOT / "overt/conf"
    there = {
        group: sorted(path.stem for path in (folder / group).glob("*.yaml")) for group in GROUPS
    }
    assert listed == there


def test_files_are_about_as_long_as_a_page_says() -> None:
    said = re.findall(r"\]\(\.\./(\S+\.py)\) \((\d+) lines\)", (ROOT / "docs/step.md").read_text())
    assert len(said) >= 10
    for file, lines in said:
        true = len((ROOT / file).read_text().splitlines())
        assert abs(int(lines) - true) <= max(0.15 * true, 10), f"{file} has {true} lines"


def test_symptoms_read_as_in_the_log() -> None:
    """What the page of symptoms shows of a log is what the code says, up to its dots."""
    code = "\n".join(path.read_text() for path in sorted(ROOT.glob("overt/**/*.py")))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # texts over several lines, in one
    code = re.sub(r"\{[^{}]*\}", "{}", code)  # what is filled in
    page = (ROOT / "docs/troubleshooting.md").read_text()
    shown = [text for _, _, language, text in BLOCK.findall(page) if language == "text"]
    assert len(shown) > 5
    parts = [part for text in shown for line in text.splitlines() for part in in_parts(line)]
    for part in parts:
        assert part in code, f"no message of overt says {part!r}"


def in_parts(line: str) -> list[str]:
    """The fixed parts of a message: without what is filled in, and without who says it."""
    said = re.sub(r"^(warning|\w+Error|OutOfMemory|\S+\.pth): ", "", line)
    filled = (
        r"\.\.\.|\b\d+\b|data\.sample_vis\w+|\btarget\b|Weights & Biases|\(did you mean|\?\)|\);"
    )
    parts = [part.strip(" ().;:,") for part in re.split(filled, said)]
    return [part for part in parts if len(part) > 3]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def measured_steps() -> dict[str, tuple[str, float, float]]:
    """Unit, measured and published value of the rows of docs/benchmarks.md that have both."""
    row = r"^\| `(\w+)`: [^|]*\| ([\d.,]+) (s/step|\w+/s)\b[^|]*\| ([\d.,]+) "
    rows = re.findall(row, (ROOT / "docs/benchmarks.md").read_text(), re.MULTILINE)
    return {recipe: (unit, number(here), number(there)) for recipe, here, unit, there in rows}


def test_speedups_of_the_readme_follow_from_the_benchmarks() -> None:
    claim = r"^\| \[`(\w+)`.*\| ([\d.,]+) \S+(?: per step)?, ([\d.]+)x speedup \|$"
    claims = re.findall(claim, (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(claims) == 5
    for recipe, shown, speedup in claims:
        unit, here, there = measured_steps()[recipe]
        assert number(shown) == here, recipe
        true = there / here if unit == "s/step" else here / there
        assert float(speedup) == round(true, len(speedup.partition(".")[2])), recipe


def test_a_script_prints_the_published_numbers_and_goals_of_the_page() -> None:
    row = r"^\| `(\w+)`[^|]*\| [\d.]+ [^|]*\| [\d.]+ \| ([\d.,]+) (?:s|\w+/s)[,:]"
    rows = re.findall(row, (ROOT / "docs/benchmarks.md").read_text(), re.MULTILINE)
    goals = dict(reversed(rows))  # the first of each recipe
    for recipe, numbers in functions("step.py")["PUBLISHED"].items():
        unit, _, there = measured_steps()[recipe]
        samples = {"images/s": 128, "samples/s": 48}.get(unit)
        expected = [there, number(goals[recipe])]
        if samples is not None:
            expected = [samples / rate for rate in expected]
        assert [numbers.seconds, numbers.goal_seconds] == expected, recipe


def test_the_table_of_scaling_follows_from_the_model_and_the_measured_steps() -> None:
    row = r"^\| `(\w+)` \| ([\d.]+) M \| ([\d.]+) s \| (yes|no) \|(.*)\|$"
    rows = re.findall(row, (ROOT / "docs/scaling.md").read_text(), re.MULTILINE)
    assert len(rows) == 9
    for recipe, millions, seconds, recorded, cells in rows:
        shown = [float(cell) for cell in re.findall(r"([\d.]+) %", cells)]
        cases = ((8, 400.0), (64, 400.0), (512, 400.0), (64, 50.0))
        for (devices, gbit), efficiency in zip(cases, shown[::2], strict=True):
            traffic = ddp_traffic(
                int(4e6 * float(millions)),
                float(seconds),
                devices,
                Network(network_gbit=gbit),
                is_recorded=recorded == "yes",
            )
            # The table rounds seconds to a millisecond.
            assert 100 * traffic.efficiency == pytest.approx(efficiency, abs=0.3), recipe
        if recipe in measured_steps():
            unit, here, _ = measured_steps()[recipe]
            samples = {"images/s": 128, "samples/s": 48}.get(unit)
            assert float(seconds) == round(samples / here if samples else here, 3), recipe


def test_the_first_page_names_the_files_that_hold_the_step() -> None:
    loop = (ROOT / "overt/engine/trainer.py").read_text()
    for words in (".no_sync()", "with self.autocast()", "clip_gradients(", "scaler.step("):
        assert words in loop
    assert len(loop.splitlines()) <= 350
    assert "DistributedDataParallel(\n" in (ROOT / "overt/engine/build.py").read_text()


def test_every_claim_of_the_readme_names_tests_that_exist() -> None:
    """What the first page promises is shown by tests, named on the same line."""
    text = (ROOT / "README.md").read_text()
    _, _, rest = text.partition("## What you can rely on\n")
    section = rest.partition("\n## ")[0].partition("Don't take our word")[0]
    claims = re.findall(r"^- \*\*(.+?)\*\*(.*?)(?=^- \*\*|\Z)", section, re.MULTILINE | re.DOTALL)
    assert len(claims) >= 9
    for title, words in claims:
        links = re.findall(r"\[([^]]+)\]\(([^)\s]+)\)", words)
        named = [(shown, target) for shown, target in links if target.startswith("tests/")]
        assert named, f"no test is named for: {title}"
        for shown, target in named:
            path = ROOT / target
            files = list(path.glob("test_*.py")) if path.is_dir() else [path]
            assert files, f"{title}: {target} holds no tests"
            texts = [file.read_text() for file in files]
            assert all("\ndef test_" in text for text in texts), target
            for test in re.findall(r"\btest_\w+", shown):
                assert any(f"\ndef {test}(" in text for text in texts), f"{title}: no {test}"


def test_the_readme_counts_the_faults_of_the_table() -> None:
    table = (ROOT / "docs" / "reliability.md").read_text()
    ((injected, good),) = re.findall(
        r"\| \*\*all\*\* \| \| \*\*(\d+)\*\* \| \*\*(\d+)\*\* \|", table
    )
    assert injected == good, "the table has a fault that did not end as promised"
    assert f" {injected} injected faults" in (ROOT / "README.md").read_text()
