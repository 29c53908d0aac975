"""Files of stages: each stage gets its whole command, what makes no chain is refused."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from toy_runs import TOY, write_chain

from overt.config import load
from overt.config.overrides import parse_override
from overt.errors import ConfigError
from overt.tools.launch.stages import plan, read_stages


def test_a_launcher_gets_commands_with_dependencies(tmp_path: Path) -> None:
    first, second = plan(read_stages(write_chain(tmp_path), ["logging.every_steps=2"]))
    assert (first.after, second.after) == ([], ["first"])
    assert first.words[:2] == ["recipe=toy", "exp_name=first"]
    assert "logging.every_steps=2" in second.words
    assert second.words[-2:] == ["--package", str(TOY)]


def test_a_stage_overrides_the_file_and_the_command_line_overrides_both(tmp_path: Path) -> None:
    entries = [
        {"name": "first", "recipe": "toy", "packages": [str(TOY)]},
        {"name": "own", "recipe": "toy", "packages": [str(TOY)], "overrides": {"seed": 2}},
    ]
    chain = write_chain(tmp_path, overrides={"seed": 1, "training.num_steps": 6}, stages=entries)
    for extra, seeds in (([], [1, 2]), (["seed=3"], [3, 3])):
        stages = read_stages(chain, extra)
        assert [load(one.overrides, packages=one.packages).seed for one in stages] == seeds


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "at least one stage"),
        ([{"recipe": "toy"}], "needs a name"),
        ([{"name": "a"}], "needs `recipe: NAME`"),
        ([{"name": "a", "recipe": "toy", "gpu": 2}], r"unknown key gpu \(did you mean gpus"),
        ([{"name": "a", "recipe": "toy", "nodes": 0}], "nodes=0"),
        ([{"name": "a", "recipe": "toy"}] * 2, "two stages are called a"),
        (
            [{"name": "a", "recipe": "toy", "checkpoints": {"checkpoint.init_from": "b"}}],
            "b, which is not an earlier stage",
        ),
        ([{"name": "a", "recipe": "toy", "overrides": 3}], "a mapping, or a list"),
    ],
)
def test_what_makes_no_chain_is_refused(
    tmp_path: Path, entries: list[object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_stages(write_chain(tmp_path, stages=entries))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file of stages"):
        read_stages(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_stages(tmp_path / "bad.yaml")


def test_folders_and_names_are_the_chains_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"exp_name=x: recipe, exp_name, output_dir follow from"):
        read_stages(write_chain(tmp_path), ["exp_name=x"])
    elsewhere = read_stages(write_chain(tmp_path), output_dir=tmp_path / "other")
    assert elsewhere[1].run_dir == tmp_path / "other" / "second"
    assert f"checkpoint.init_from={tmp_path}/other/first/checkpoints/best" in elsewhere[1].words


def test_folders_may_have_any_name(tmp_path: Path) -> None:
    stages = read_stages(write_chain(tmp_path), output_dir=tmp_path / "Läufe (1)")
    parsed = [parse_override(word) for word in stages[1].words if "=" in word]
    values = {item.key_or_group: item.value() for item in parsed}
    assert values["output_dir"] == f"{tmp_path}/Läufe (1)"
    assert values["checkpoint.init_from"] == f"{tmp_path}/Läufe (1)/first/checkpoints/best"


def test_values_keep_their_type_and_their_spaces(tmp_path: Path) -> None:
    overrides = {"a": None, "b": True, "c": 1e-4, "d": [1, 2], "e": "two words", "f": "x/y-1.z"}
    (tmp_path / "s.yaml").write_text(
        OmegaConf.to_yaml({"stages": [{"name": "a", "recipe": "toy", "overrides": overrides}]})
    )
    words = read_stages(tmp_path / "s.yaml")[0].overrides[3:]
    assert words == ("a=null", "b=true", "c=0.0001", "d=[1, 2]", "e='two words'", "f=x/y-1.z")
