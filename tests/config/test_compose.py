"""overt/config: what composes, what is refused and with which words."""

import pickle
import subprocess
import sys
from pathlib import Path

import composed_once
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from toy_runs import TOY, toy_config

from overt.config import CONF, defaults_of, differences, expand_sweep, load, sweep_names
from overt.errors import ConfigError, OvertError

RECIPES = sorted(path.stem for path in (CONF / "recipe").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_composes_and_its_text_alone_gives_the_same(
    recipe: str, tmp_path: Path
) -> None:
    config = load([f"recipe={recipe}", "data.root=somewhere"])
    assert config.exp_name == recipe
    file = tmp_path / "config.yaml"
    file.write_text(config.text)
    assert load([], config_file=str(file)) == config


@pytest.mark.parametrize(
    ("recipe", "old", "new"),
    [
        ("hjepa_tiny", "labelled", "labeled"),
        ("blade_depthnet_tiny", "fixed_colours", "fixed_colors"),
        ("cotracker3_small", "grey", "gray"),
    ],
)
def test_files_with_the_former_name_of_a_key_mean_the_same(
    recipe: str, old: str, new: str, tmp_path: Path
) -> None:
    config = load([f"recipe={recipe}", "data.root=somewhere"])
    former = config.text.replace(f" {new}:", f" {old}:")
    assert former != config.text
    file = tmp_path / "config.yaml"
    file.write_text(former)
    assert load([], config_file=str(file)) == config
    assert differences(former, config.text, ()) == []


def test_command_line_wins_over_recipe_and_groups(tmp_path: Path) -> None:
    config = load(
        [
            "recipe=cotracker3_offline",
            "exp_name=my_exp",
            "model=cotracker3_offline",
            "schedule=cosine",
            "data.root=x",
            "training.num_steps=100000",
        ]
    )
    assert config.training.num_steps == 100_000
    assert config.run_dir == Path("runs/my_exp")
    assert config.schedule["_target_"] == "overt.schedule.CosineScheduler"
    assert config.optimizer.lr == 5e-4  # the recipe's


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("recipe=cotracker3_ofline", "did you mean cotracker3_offline?"),
        ("training.num_steps=3", "add recipe=NAME"),
        ("recipe=toy training.num_stps=3", "did you mean training.num_steps?"),
        ("recipe=toy +training.num_stps=3", "unknown key training.num_stps"),
        ("recipe=toy num_steps=3", "did you mean training.num_steps?"),
        ("recipe=toy model.widht=3", "did you mean model.width?"),
        ("recipe=toy training.num_steps=many", "training.num_steps: Value 'many'"),
        ("recipe=toy optimizer.arguments.betas={a:1}", "optimizer.arguments.betas={a:1} does not"),
        ("recipe=toy model.width=1.5", "model.width"),
        ("recipe=toy training.precision=bf61", "did you mean bf16?"),
        ("recipe=toy training.num_steps=null", "give exactly one of the two"),
        ("recipe=toy training.num_epochs=3", "give exactly one of the two"),
        ("recipe=toy training.batch_size=0", "training.batch_size=0; it must be above 0"),
        ("recipe=toy training.batch_size=null", "give at least one"),
        ("recipe=toy optimizer.lr_scaling=linear", "needs optimizer.lr_base_batch"),
        ("recipe=toy training.ema_momentum=2", "at least 0 and at most 1"),
        ("recipe=toy schedule=cosin", "did you mean cosine?"),
        ("recipe=toy schedule.final_valu=1", "did you mean schedule.final_value?"),
        ("recipe=toy +schedule.gamma=1", "gamma"),
        ("recipe=toy training.num_steps=1,2", "add -m"),
        ("recipe=toy training.num_steps", "write KEY=VALUE"),
        ("recipe=toy optimizer._target_=os.system", "is not allowed"),
        ("recipe=toy recipe._target_=subprocess.run", "is not allowed"),
        ("recipe=toy recipe.settings=os.environ", "is not allowed"),
        ("recipe=toy recipe.settings=toy_recipe.config.Setings", "did you mean Settings?"),
        ("recipe=toy recipe.settings=toy_recipe.nowhere.Settings", "importing toy_recipe.nowhere"),
        ("recipe=toy schedule._target_=builtins.print", "schedule"),
        ("recipe=cotracker3_offline", "data.root"),
    ],
)
def test_refusals_name_the_remedy(overrides: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(overrides.split(), packages=[str(TOY)])
    assert expected in str(refused.value)


def test_a_misspelled_recipe_is_answered_by_the_nearest_alone() -> None:
    with pytest.raises(ConfigError, match=r"no such recipe \(did you mean lbm\?\)\. For those of"):
        load(["recipe=lmb"])
    with pytest.raises(ConfigError, match=r"no such recipe; there are blade_depthnet, .*, lbm, "):
        load(["recipe=something_else"])
    with pytest.raises(ConfigError, match=r"did you mean adamw\?\); there are adam, adamw"):
        load(["recipe=lbm", "optimizer=adammw"])


def test_values_are_overridden_as_hydra_does_it() -> None:
    values = ["training.num_steps=7", "optimizer.arguments={betas: [0.5, 0.9]}", "exp_name='a b'"]
    composed = [f"++{word}" for word in values]  # Hydra composes with what may be new
    one, other = (load(["recipe=toy", *words], packages=[str(TOY)]) for words in (values, composed))
    assert one.text == other.text
    assert (one.training.num_steps, one.exp_name) == (7, "a b")
    assert one.optimizer.arguments["betas"] == [0.5, 0.9]


def test_a_target_outside_the_list_is_refused_without_importing_it(tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(ConfigError, match="--package"):
            load(["recipe=toy", "recipe.settings=evil.Settings"], packages=[str(TOY)])
    finally:
        sys.path.remove(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_a_config_file_cannot_allow_its_own_package(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(toy_config(tmp_path).text)
    with pytest.raises(ConfigError, match="is not allowed"):
        load([], config_file=str(file))
    assert load([], config_file=str(file), packages=[str(TOY)]).recipe.name == "toy"


@pytest.mark.parametrize(("key", "value"), [("cuda_graph", "auto"), ("augment_on_device", "false")])
def test_a_config_file_of_before_a_key_came_still_loads(
    key: str, value: str, tmp_path: Path
) -> None:
    config = load(["recipe=cotracker3_tiny"])
    text = config.text.replace(f"  {key}: {value}\n", "")
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert key not in text
    found = load([], config_file=str(file))
    assert found.training == config.training
    assert found.settings == config.settings


def test_keys_of_a_config_file_can_be_added_and_taken_away(tmp_path: Path) -> None:
    """What the message about an argument that a class does not have asks for."""
    file = tmp_path / "config.yaml"
    file.write_text(toy_config(tmp_path).text)
    changes = ["~optimizer.arguments.betas", "+optimizer.arguments.amsgrad=true"]
    arguments = load(changes, config_file=str(file), packages=[str(TOY)]).optimizer.arguments
    assert arguments == {"eps": 1e-8, "amsgrad": True}


def test_overrides_apply_to_a_config_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(load(["recipe=cotracker3_offline", "data.root=x"]).text)
    assert load(["training.num_steps=7"], config_file=str(file)).training.num_steps == 7
    with pytest.raises(ConfigError, match=r"training\.num_steps"):
        load(["training.num_stps=7"], config_file=str(file))
    with pytest.raises(ConfigError, match=r"to choose groups, add recipe=NAME"):
        load(["schedule=cosine"], config_file=str(file))


@pytest.mark.parametrize(
    ("recipe", "group"),
    [("lbm_tiny", "evaluation=tapvid_davis"), ("cotracker3_tiny", "evaluation=lbm_davis")],
)
def test_a_group_of_another_recipe_is_named(recipe: str, group: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{group} does not fit this recipe \("):
        load([f"recipe={recipe}", group, "evaluation.dataset_root=data"])


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "training: 3"])
def test_a_broken_config_file_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        load([], config_file=str(file))


def test_package_that_is_none() -> None:
    with pytest.raises(ConfigError, match="not a Python package"):
        load(["recipe=toy"], packages=["docs"])


def test_sweep_expands_in_order() -> None:
    assert expand_sweep(["a=1,2", "b=x", "c=[1,2],[3]"]) == [
        ["a=1", "b=x", "c=[1,2]"],
        ["a=1", "b=x", "c=[3]"],
        ["a=2", "b=x", "c=[1,2]"],
        ["a=2", "b=x", "c=[3]"],
    ]


def test_a_sweep_names_runs_as_typed() -> None:
    """Other keys keep Hydra's form: folders of runs are named after it."""
    assert expand_sweep(["exp_name=2024_01_15,1e5", "a=1e5,2"]) == [
        ["exp_name=2024_01_15", "a=100000.0"],
        ["exp_name=2024_01_15", "a=2"],
        ["exp_name=1e5", "a=100000.0"],
        ["exp_name=1e5", "a=2"],
    ]
    assert expand_sweep(["exp_name=range(1,3)"]) == [["exp_name=1"], ["exp_name=2"]]
    assert expand_sweep(["exp_name='a,b',c"]) == [["exp_name='a,b'"], ["exp_name=c"]]


def test_every_run_of_a_sweep_has_a_name_of_its_own() -> None:
    common = ["a=x/y,x_y,x_y_1,z", "b=1"]
    names = sweep_names(expand_sweep(common), common, ["m"] * 4)
    assert names[0] == "m/a=x_y"
    assert names[3] == "m/a=z"
    assert len(set(names)) == 4


def test_differences_leave_out_what_is_free() -> None:
    before, after = "a: {b: 1, c: 2}\nd: 3", "a: {b: 1, c: 4}\nd: 5\ne: null"
    assert differences(before, after, ["d"]) == [("a.c", 2, 4)]


def test_a_key_that_came_later_is_the_same_at_its_default() -> None:
    before, after = "a: {b: 1}", "a: {b: 1, later: 2}"
    assert differences(before, after, []) == [("a.later", None, 2)]
    assert differences(before, after, [], {"a.later": 2}) == []
    assert differences(before, after, [], {"a.later": 3}) == [("a.later", None, 2)]


def test_defaults_are_those_of_the_fields_that_have_one() -> None:
    settings = load(["recipe=hjepa_tiny"]).settings
    defaults = defaults_of(settings)
    assert defaults["model.head.width"] == 128
    assert defaults["evaluation.further_k"] == []
    assert "model.embed_dim" not in defaults


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=30))
def test_no_text_on_the_command_line_ends_in_anything_but_a_refusal(text: str) -> None:
    try:
        load(["recipe=toy", text], packages=[str(TOY)])
    except OvertError:
        return
    # What was accepted must have been a real override.
    assert "=" in text or text.startswith("~")


def test_checking_and_refusing_never_imports_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from overt.cli import main;"
        "codes = [main(['--help']), main(['config', 'recipe=cotracker3_offline', 'data.root=x']),"
        " main(['config', 'recipe=cotracker3_offline', 'data.root=x', '--explain']),"
        " main(['train', 'recipe=cotracker3_offline', 'training.num_stps=1']),"
        " main(['train', 'recipe=cotracker3_offline', 'data.root=x', 'training.batch_size=a'])];"
        "assert codes == [0, 0, 0, 2, 2], codes; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=tmp_path)


def test_tests_compose_when_their_session_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is still importing at the end of a short session has no folder to share."""
    monkeypatch.setenv(composed_once.SHARED, str(tmp_path / "gone"))
    composed = composed_once._composed.__wrapped__(("recipe=toy",), (TOY / "conf",))
    assert pickle.loads(composed).recipe.name == "toy"
    assert not (tmp_path / "gone").exists()


def test_every_key_of_the_schema_has_one_home_in_yaml() -> None:
    """No key can be set that is not listed, and none is listed that the schema lacks."""
    config = load(["recipe=toy"], packages=[str(TOY)])
    values = OmegaConf.create(config.text)
    assert OmegaConf.missing_keys(values) == set()


@pytest.mark.parametrize("key", ["data.allow_pickle", "optimizer.learning_rate"])
def test_a_key_like_no_other_gets_no_advice(key: str) -> None:
    """The same section, or a few letters in common, are no reason to send people elsewhere."""
    with pytest.raises(
        ConfigError, match=f"unknown key {key}; `overt config recipe=NAME` lists all"
    ):
        load(["recipe=cotracker3_tiny", f"{key}=1"])


@pytest.mark.parametrize(
    "key",
    ["schedule.warmup_fraction", "optimizer.arguments.momentum", "training.evaluate_sets.far"],
)
def test_a_new_key_of_an_open_mapping_takes_a_plus_sign(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown key {key}; .* write \+{key}=VALUE;"):
        load(["recipe=toy", f"{key}=3"], packages=[str(TOY)])
    with pytest.raises(ConfigError, match=r"unknown key training.foo; `overt config"):
        load(["recipe=toy", "training.foo=3"], packages=[str(TOY)])
