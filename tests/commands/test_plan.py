"""`overt plan` on the command line: tables, JSON, and refusals that say what to do."""

import json
from pathlib import Path

import pytest
from small_recipes import SMALL_BLADE
from toy_recipe.recipe import Toy
from toy_runs import TOY, train_toy

from overt.commands.plan import configure, main, read_devices, seconds_per_sample
from overt.config import build_recipe
from overt.config.batch import scaled_learning_rate
from overt.errors import ConfigError
from overt.tools.plan.predict import count_samples

OWN = ["recipe=toy", "--package", str(TOY)]


def test_json_has_a_row_for_each_number_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "training.batch_size=null",
        "training.global_batch_size=8",
        "optimizer.lr_base_batch=4",
    ]
    assert main([*OWN, *words, "--devices", "1,2,3", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    one, two, three = plan["devices"]
    assert (one["batch_size"], two["batch_size"]) == (8, 4)
    assert one["global_batch_size"] == two["global_batch_size"] == 8
    assert "is not a multiple" in three["problem"]
    section = configure([*OWN[:1], *words], None, [str(TOY)]).optimizer
    section.lr_scaling = "sqrt"
    assert two["learning_rate"]["sqrt"] == scaled_learning_rate(section, 8)
    assert two["learning_rate"]["linear"] == 2 * two["learning_rate"]["none"]
    assert set(two["memory_bytes"]) == {"ddp"} | ({"fsdp"} if "fsdp" in two["traffic"] else set())
    assert one["hours"] == pytest.approx(one["steps"] * one["seconds_per_step"] / 3600)
    assert plan["checkpoint_bytes"] > 8 * plan["parameters"]


def test_table_says_what_is_known_and_what_not(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["training.num_steps=null", "training.num_epochs=2", "training.compile=model"]
    assert main([*OWN, *words, "--devices", "1,2"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("toy: ")
    assert "largest batch per device that fits" in text
    assert "predicted as if not compiled" in text


def test_no_data_is_made_to_be_counted(tmp_path: Path) -> None:
    root = tmp_path / "absent"
    config = configure(["recipe=hjepa_tiny", f"data.root={root}"], None, [])
    assert count_samples(config, build_recipe(config)) is None
    assert not root.exists()
    own = configure(OWN[:1], None, [str(TOY)])
    assert count_samples(own, build_recipe(own)) == own.settings.data.samples


def test_step_time_of_a_measured_run(tmp_path: Path) -> None:
    train_toy(tmp_path, "training.num_steps=6", "training.num_workers=0", "exp_name=run",
              "training.batch_size=4", "training.accumulation_steps=2")  # fmt: skip
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_text("\n".join(json.dumps({"train/seconds_per_step": s}) for s in (3.0, 1.0, 2.0)))
    assert seconds_per_sample(tmp_path / "run", devices=1) == 2.0 / 8
    log.write_text("{}\n")
    with pytest.raises(ConfigError, match="let it run for longer"):
        seconds_per_sample(tmp_path / "run", devices=1)
    with pytest.raises(ConfigError, match="name a run folder"):
        seconds_per_sample(tmp_path, devices=1)


def test_a_given_step_time_is_that_of_the_first_number_of_devices_that_works(
    capsys: pytest.CaptureFixture[str],
) -> None:
    batch = ["training.batch_size=null", "training.global_batch_size=8"]
    assert main([*OWN, *batch, "--devices", "3,4,8", "--seconds", "0.05", "--json"]) == 0
    three, four, eight = json.loads(capsys.readouterr().out)["devices"]
    assert "is not a multiple" in three["problem"]
    for row, seconds in ((four, 0.05), (eight, 0.025)):
        alone = row["seconds_per_step"] - row["traffic"]["ddp"]["exposed"]
        assert alone == pytest.approx(seconds)
    with pytest.raises(ConfigError, match="is not a multiple"):
        main([*OWN, *batch, "--devices", "3,5", "--seconds", "0.05"])


@pytest.mark.parametrize("text", ["", "0,1", "two", "1,,2"])
def test_devices_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="whole numbers from 1 to a million"):
        read_devices(text)


def test_an_impossible_efficiency_and_an_unknown_card_are_refused() -> None:
    with pytest.raises(ConfigError, match="--efficiency"):
        main([*OWN, "--efficiency", "1.5"])
    with pytest.raises(ConfigError, match="--gpu"):
        main([*OWN, "--devices", "1", "--gpu", "Abacus"])


POSENET = ["recipe=blade_posenet_tiny", *SMALL_BLADE["posenet"].sizes("data", "model")]


@pytest.mark.parametrize("words", [OWN, pytest.param(POSENET, marks=pytest.mark.long)])
def test_a_recipe_is_planned_under_any_name(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    renamed = [*words, "recipe.name=mine", "training.batch_size=2"]
    assert main([*renamed, "--devices", "1", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["recipe"] == "mine"
    assert plan["devices"][0]["batch_size"] == 2


def test_a_recipe_without_an_example_is_told_which_method_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(Toy, "example_batch")
    with pytest.raises(ConfigError, match=r"Toy has no example_batch\(self, size\)"):
        main([*OWN, "--devices", "1"])


def test_a_step_that_reads_values_is_refused_with_its_line() -> None:
    words = ["recipe=pcdiff_tiny", "data.num_points=160", "data.num_implant_points=32"]
    with pytest.raises(ConfigError, match=r"point_pairs/api\.py, line \d+.*pairs_per_center=null"):
        main([*words, "training.global_batch_size=1", "--devices", "1"])


def test_the_recipe_of_the_examples_can_be_planned(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(Path(__file__).parents[2] / "examples" / "own_recipe")
    assert main(["recipe=own_recipe", "--package", example, "--devices", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("own_recipe: ")
    assert " 1 s " in printed  # to finish, in units that fit a short run
    assert "0.0 h" not in printed


@pytest.mark.parametrize("name", ["cotracker3_offline", "lbm", "hjepa", "pcdiff", "blade_posenet"])
def test_no_recipe_needs_its_data_to_be_planned(name: str) -> None:
    assert configure([f"recipe={name}"], None, []).recipe.name == name
