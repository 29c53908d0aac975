"""overt evaluate: whose configuration, which weights, what is written, what is refused."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from toy_runs import TOY, read_rows, toy_config, train_toy

import overt
from overt.cli import main
from overt.config import load
from overt.errors import ConfigError

PACKAGE = ["--package", str(TOY)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose settings differ from those of the recipe, with averaged weights."""
    folder = tmp_path_factory.mktemp("runs")
    train_toy(
        folder, "training.num_steps=4", "evaluation.samples=3", "training.ema_momentum=0.5",
        "model.width=6",
    )  # fmt: skip
    return folder / "toy"


def evaluate(*words: str) -> int:
    return main(["evaluate", *PACKAGE, *words])


def scores_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "scores.json").read_text())


def test_the_checkpoint_brings_its_own_configuration(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = run / "checkpoints" / "latest"
    assert evaluate(f"checkpoint={checkpoint}") == 0
    found = scores_in(run / "evaluation")
    assert found["checkpoint"] == str(checkpoint.resolve())
    # What the run itself found after its last step, with width 6, three samples and the average.
    (logged,) = [row for row in read_rows(run) if "evaluation/error" in row]
    assert found["scores"]["error"] == pytest.approx(logged["evaluation/error"], rel=1e-6)
    stored = load([], str(run / "evaluation" / "config.yaml"), [str(TOY)])
    assert stored.settings.evaluation.samples == 3
    assert not (run / "evaluation" / "rows.json").exists()
    out = capsys.readouterr().out
    assert f"  error *  {found['scores']['error']:.4g}" in out
    assert f"written to {run / 'evaluation'}" in out


def test_settings_can_be_changed_and_the_output_named(run: Path, tmp_path: Path) -> None:
    checkpoint = f"checkpoint={run / 'checkpoints' / 'latest'}"
    three, seven = tmp_path / "three", tmp_path / "below" / "seven"
    assert evaluate(checkpoint, f"output={three}") == 0
    assert evaluate(checkpoint, f"output={seven}", "evaluation.samples=7") == 0
    assert scores_in(three)["scores"] != scores_in(seven)["scores"]


def test_scores_are_computed_in_float32_unless_asked_otherwise(tmp_path: Path) -> None:
    """Whatever a run was trained in: papers score in float32."""
    train_toy(tmp_path, "training.num_steps=1", "training.precision=bf16")
    checkpoint = tmp_path / "toy" / "checkpoints" / "latest"
    for words, expected in (([], "fp32"), (["training.precision=bf16"], "bf16")):
        folder = tmp_path / expected
        assert evaluate(f"checkpoint={checkpoint}", f"output={folder}", *words) == 0
        assert load([], str(folder / "config.yaml"), [str(TOY)]).training.precision == expected


def test_scores_of_other_settings_are_kept_apart(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "toy"
    shutil.copytree(run, copy)
    words = [f"checkpoint={copy / 'checkpoints' / 'latest'}", f"output_dir={tmp_path}"]
    for samples in (3, 7, 3):
        assert evaluate(*words, f"evaluation.samples={samples}") == 0
    for name, samples in (("evaluation", 3), ("evaluation_2", 7)):
        assert scores_in(copy / name)["evaluation"]["samples"] == samples
    assert not (copy / "evaluation_3").exists()


def test_the_scores_of_a_run_are_never_written_into_another_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder, the relative output_dir of a checkpoint leads to another run."""
    theirs, mine = tmp_path / "them", tmp_path / "me"
    theirs.mkdir()
    monkeypatch.chdir(theirs)
    train_toy(Path("runs"), "training.num_steps=1")
    shutil.copytree(theirs, mine)
    monkeypatch.chdir(mine)
    checkpoint = "checkpoint=../them/runs/toy/checkpoints/latest"
    assert evaluate(checkpoint) == 0
    assert (theirs / "runs" / "toy" / "evaluation" / "scores.json").is_file()
    assert not (mine / "runs" / "toy" / "evaluation").exists()
    assert evaluate(checkpoint, "output_dir=scored") == 0
    assert (mine / "scored" / "toy" / "evaluation" / "scores.json").is_file()


def test_the_scores_of_a_file_do_not_replace_those_of_a_run_of_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of others are scored below runs/RECIPE, where a run of one's own may be."""
    monkeypatch.chdir(tmp_path)
    train_toy(Path("runs"), "training.num_steps=1")
    checkpoint = "runs/toy/checkpoints/latest"
    for name in ("one", "two"):
        shutil.copyfile(f"{checkpoint}/model.safetensors", f"{name}.safetensors")
    settings = ["recipe=toy", "evaluation.samples=3"]
    for words in (
        [f"checkpoint={checkpoint}"],
        ["checkpoint=one.safetensors"],
        ["checkpoint=two.safetensors"],
    ):
        for _ in range(2):  # the same scores again need no other folder
            assert evaluate(*words, *settings) == 0
    scored = {
        folder.name: Path(scores_in(folder)["checkpoint"]).name
        for folder in Path("runs/toy").glob("evaluation*")
    }
    assert scored == {
        "evaluation": "step_00000001",
        "evaluation_2": "one.safetensors",
        "evaluation_3": "two.safetensors",
    }


def test_a_run_that_takes_no_scores_is_refused_before_they_are_computed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "toy"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("evaluation*"))
    (copy / "evaluation").touch()
    assert evaluate(f"checkpoint={copy / 'checkpoints' / 'latest'}") == 2
    assert f"output={copy / 'evaluation'} is a file" in capsys.readouterr().err


def test_a_file_in_the_place_of_the_output_is_refused_at_once(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    words = [f"checkpoint={run / 'checkpoints' / 'latest'}", f"output={tmp_path / 'file'}"]
    assert evaluate(*words) == 2
    assert "is a file; name a new" in capsys.readouterr().err


def test_compiled_blocks_score_the_same(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"checkpoint={run / 'checkpoints' / 'latest'}", "training.compile_backend=eager"]
    compiled_blocks = []

    def compile_block(module: torch.nn.Module, **options: Any) -> None:
        compiled_blocks.append((type(module).__name__, options["backend"]))
        plain_compile(module, **options)

    plain_compile = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", compile_block)
    assert evaluate(*words, f"output={tmp_path / 'plain'}") == 0
    assert not compiled_blocks
    assert evaluate(*words, "--compile", f"output={tmp_path / 'compiled'}") == 0
    assert compiled_blocks == [("Linear", "eager")] * 2
    plain, compiled = (scores_in(tmp_path / name)["scores"] for name in ("plain", "compiled"))
    assert compiled == pytest.approx(plain)


def test_average_or_model_as_asked(run: Path, tmp_path: Path) -> None:
    checkpoint = f"checkpoint={run / 'checkpoints' / 'latest'}"
    errors = {}
    for part in ("auto", "ema", "model"):
        assert evaluate(checkpoint, f"output={tmp_path / part}", "--part", part) == 0
        errors[part] = scores_in(tmp_path / part)["scores"]["error"]
    assert errors["auto"] == errors["ema"] != errors["model"]


def test_any_file_with_a_recipe(run: Path, tmp_path: Path) -> None:
    from overt.config import build_recipe

    model = build_recipe(toy_config(tmp_path)).build_model()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "weights.pth")
    words = ["recipe=toy", f"output_dir={tmp_path}", "exp_name=mine"]
    assert evaluate(f"checkpoint={tmp_path / 'weights.pth'}", *words) == 0
    assert math.isfinite(scores_in(tmp_path / "mine" / "evaluation")["scores"]["error"])


def test_rows_table_and_pictures_of_a_recipe_that_has_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load(["recipe=toy"], packages=[str(TOY)])  # makes it importable
    from toy_recipe.recipe import Toy

    rows = [
        {"name": "one", "error": 1.0},
        {"name": "none", "error": math.nan},
        {"name": "two", "error": 2.0},
    ]
    picture = torch.full((3, 4, 5), 7, dtype=torch.uint8)
    monkeypatch.setattr(Toy, "evaluate_rows", lambda *_: rows, raising=False)
    drawn = {"drawn": picture, "filmed": picture.expand(2, 3, 4, 5)}
    monkeypatch.setattr(Toy, "visualize", lambda *_: drawn, raising=False)

    def table(self: object, rows: list[dict[str, Any]], scores: dict[str, float]) -> str:
        return f"<{len(rows)} rows, {scores['error']}>"

    monkeypatch.setattr(Toy, "score_table", table, raising=False)
    assert evaluate(f"checkpoint={run / 'checkpoints' / 'latest'}", f"output={tmp_path}") == 0
    assert json.loads((tmp_path / "rows.json").read_text()) == [
        {"name": "one", "error": 1.0},
        {"name": "none", "error": None},  # JSON has no NaN
        {"name": "two", "error": 2.0},
    ]
    assert scores_in(tmp_path)["scores"] == {"error": 1.5, "left_out": 1.0}
    assert "<3 rows, 1.5>" in capsys.readouterr().out
    for name in ("drawn.png", "filmed.gif"):
        with Image.open(tmp_path / name) as image:
            assert image.size == (5, 4)


def test_scores_of_further_sets_are_printed_below_the_table(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load(["recipe=toy"], packages=[str(TOY)])  # makes it importable
    from toy_recipe.recipe import Toy

    rows = [{"name": "one", "error": 1.0}]
    monkeypatch.setattr(Toy, "evaluate_rows", lambda *_: rows, raising=False)
    monkeypatch.setattr(Toy, "score_table", lambda *_: "<the table>", raising=False)
    sets = {"night": lambda *_: {"error": 0.25}}
    monkeypatch.setattr(Toy, "evaluation_sets", lambda _: sets)
    assert evaluate(f"checkpoint={run / 'checkpoints' / 'latest'}", f"output={tmp_path}") == 0
    table = capsys.readouterr().out.partition("<the table>")[2]
    assert table.split()[:5] == ["further", "sets", "score", "night/error", "0.25"]
    assert scores_in(tmp_path)["scores"] == {"error": 1.0, "night/error": 0.25}


def test_baselines_that_cannot_be_scored_cost_no_evaluation(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(["recipe=toy"], packages=[str(TOY)])  # makes it importable
    from toy_recipe.recipe import Toy

    def unavailable(*_: object) -> None:
        raise ConfigError("--baselines needs OpenCV")

    monkeypatch.setattr(Toy, "baseline_rows", unavailable, raising=False)
    monkeypatch.setattr(Toy, "evaluate", lambda *_: pytest.fail("scored before the baselines"))
    checkpoint = f"checkpoint={run / 'checkpoints' / 'latest'}"
    assert evaluate(checkpoint, f"output={tmp_path / 'new'}", "--baselines") == 2


def test_a_failed_export_of_features_does_not_cost_the_scores(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load(["recipe=toy"], packages=[str(TOY)])  # makes it importable
    from toy_recipe.recipe import Toy

    from overt.metrics.features import export_features

    (tmp_path / "file").touch()

    def score(*_: object) -> dict[str, float]:
        below_a_file = tmp_path / "file" / "features.safetensors"
        export_features(below_a_file, torch.zeros(1, 2), torch.zeros(1), ["a"])
        return {"error": 0.5}

    monkeypatch.setattr(Toy, "evaluate", score)
    output = tmp_path / "output"
    assert evaluate(f"checkpoint={run / 'checkpoints' / 'latest'}", f"output={output}") == 1
    assert scores_in(output)["scores"] == {"error": 0.5}
    shown = capsys.readouterr()
    assert "error *    0.5" in shown.out
    assert f"{tmp_path / 'file'}: " in shown.err


def test_what_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.pth"
    torch.save({"backbone.weight": torch.zeros(3)}, other)
    latest = run / "checkpoints" / "latest"
    saved = load_file(latest / "model.safetensors")
    diverged = {key: value * math.nan for key, value in saved.items()}
    torch.save(diverged, tmp_path / "nan.pth")
    cases = [
        ([], 2, "ConfigError: give the weights to score: checkpoint=PATH"),
        ([f"checkpoint={tmp_path / 'nowhere'}"], 1, "CheckpointError: checkpoint "),
        ([f"checkpoint={other}"], 2, "holds no configuration; add recipe=NAME"),
        ([f"checkpoint={other}", "recipe=toy"], 1, "is a checkpoint of another model"),
        ([f"checkpoint={latest}", "model.width=8"], 1, "have another shape than in the model"),
        ([f"checkpoint={tmp_path / 'nan.pth'}", "recipe=toy", "model.width=6"], 1, "hold NaN, Inf"),
        ([f"checkpoint={latest}", "evaluation.sample=2"], 2, "did you mean evaluation.samples?"),
        ([f"checkpoint={run / 'checkpoints'}", "recipe=toy"], 1, "holds several checkpoints"),
        ([f"checkpoint={run / 'checkpoints'}"], 2, "did you mean "),
    ]
    for words, code, expected in cases:
        assert evaluate(*words) == code, words
        shown = capsys.readouterr().err
        assert expected in shown
        assert "Traceback" not in shown


def test_a_folder_of_hugging_face_is_scored_under_other_names(run: Path, tmp_path: Path) -> None:
    checkpoint = run / "checkpoints" / "latest"
    folder = tmp_path / "downloaded"
    folder.mkdir()
    weights = load_file(checkpoint / "ema.safetensors")
    theirs = {f"encoder.{key}": value for key, value in weights.items()} | {"pooler": torch.ones(1)}
    save_file(theirs, folder / "model.safetensors")
    rules = [(r"^encoder\.", ""), ("^pooler", None)]
    words = ["--rename", r"^encoder\.", "", "--rename", "^pooler", "null"]
    sizes = ["model.width=6", "evaluation.samples=3"]
    own, renamed = tmp_path / "own", tmp_path / "renamed"
    assert evaluate(f"checkpoint={checkpoint}", f"output={own}") == 0
    foreign = [f"checkpoint={folder}", "recipe=toy", *sizes]
    assert evaluate(*foreign, f"output={renamed}", *words) == 0
    assert scores_in(renamed)["scores"] == scores_in(own)["scores"]
    settings = {"model": {"width": 6}, "evaluation": {"samples": 3}}
    from_python = overt.evaluate(
        folder, recipe="toy", packages=[TOY], settings=settings, rename=rules
    )
    assert from_python == pytest.approx(scores_in(own)["scores"])
