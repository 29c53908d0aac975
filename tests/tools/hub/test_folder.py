"""A folder of the Hub works wherever a checkpoint does; its card is filled from the run."""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_recipes import SMALL_COTRACKER3

import overt
from overt.cli import main
from overt.config import build_recipe

SHORT = ["training.num_steps=1", "training.evaluate_at_start=true", "training.ema_momentum=0.5"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The checkpoint of a short run, and the folder made from it."""
    home = tmp_path_factory.mktemp("hub")
    runs = f"output_dir={home / 'runs'}"
    run = SMALL_COTRACKER3.train(home / "data", runs, *SHORT, "evaluation.single_point=false")
    best, folder = run / "checkpoints" / "latest", home / "tracker"
    words = ["--to", "hub", "--output", str(folder), "--license", "apache-2.0"]
    assert main(["ckpt", "export", str(best), *words]) == 0
    return best, folder


def test_it_holds_the_average_its_settings_and_a_card(exported: tuple[Path, Path]) -> None:
    checkpoint, folder = exported
    names = {"model.safetensors", "config.yaml", "config.json", "README.md"}
    assert {path.name for path in folder.iterdir()} == names
    average = load_file(checkpoint / "ema.safetensors")
    written = load_file(folder / "model.safetensors")
    assert written.keys() == average.keys()
    assert all(torch.equal(written[key], average[key]) for key in average)
    described = json.loads((folder / "config.json").read_text())
    assert described["library_name"] == "overt"
    assert described["model_type"] == "cotracker3_tiny"


def test_the_card_is_filled_from_the_run(exported: tuple[Path, Path]) -> None:
    checkpoint, folder = exported
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlicense: apache-2.0\nlibrary_name: overt\n")
    for word in ("cotracker3_tiny", "EMA", "step 1", overt.__version__, version("torch")):
        assert word in card
    header = next(line for line in card.splitlines() if line.startswith("| score"))
    assert header == "| score | this model | before training | static |"
    (row,) = (line for line in card.splitlines() if line.startswith("| `average_jaccard`"))
    saved = json.loads((checkpoint / "state.json").read_text())
    assert "average_jaccard" in json.dumps(saved)
    assert all(float(cell) >= 0 for cell in row.split("|")[2:5])


def test_no_path_of_this_machine_is_written(exported: tuple[Path, Path]) -> None:
    checkpoint, folder = exported
    home = str(checkpoint.resolve().parents[3])
    for name in ("README.md", "config.yaml", "config.json"):
        assert home not in (folder / name).read_text()


def test_it_is_a_checkpoint_everywhere(
    exported: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, folder = exported
    monkeypatch.chdir(tmp_path)
    root = f"data.root={folder.parent / 'data'}"
    video = np.random.default_rng(0).integers(0, 255, (8, 3, 32, 32), dtype=np.uint8)
    np.save("video.npy", video)
    # load_tracker
    ours, theirs = (overt.load_tracker(path, device="cpu") for path in (folder, checkpoint))
    tracks = [tracker(video, grid=2, progress=False).tracks_xy for tracker in (ours, theirs)]
    np.testing.assert_array_equal(*tracks)
    # overt track, evaluate and inspect
    assert main(["track", "video.npy", "--checkpoint", str(folder), "--grid", "2"]) == 0
    assert main(["evaluate", f"checkpoint={folder}", "output=scores", root]) == 0
    assert main(["ckpt", "inspect", str(folder)]) == 0
    # checkpoint.init_from
    tuned = SMALL_COTRACKER3.trainer(
        folder.parent / "data",
        f"output_dir={tmp_path}",
        f"checkpoint.init_from={folder}",
        "exp_name=tuned",
    )
    written = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, written[key]) for key, value in tuned.model.state_dict().items())
    # overt.load_checkpoint
    model = build_recipe(tuned.config).build_model()
    assert not overt.load_checkpoint(folder, model, strict=True).missing


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--output", "{folder}"], 1, "not empty"),
        (["--output", "{new}", "--key", "model"], 2, "--key is for --to torch"),
        (["--output", "{new}", "--prefix", "x."], 2, "drop them"),
        (["--output", "{new}", "--rename", "^nothing", "x"], 1, "fits no tensor"),
    ],
)
def test_refusals(
    words: list[str], code: int, error: str, exported: tuple[Path, Path], tmp_path: Path, capsys
) -> None:
    checkpoint, folder = exported
    filled = [word.format(folder=folder, new=tmp_path / "new") for word in words]
    assert main(["ckpt", "export", str(checkpoint), "--to", "hub", *filled]) == code
    assert error in capsys.readouterr().err


def test_keys_are_renamed(exported: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, folder = exported
    words = ["--to", "hub", "--output", str(tmp_path / "new"), "--rename", "^", "net."]
    assert main(["ckpt", "export", str(checkpoint), *words]) == 0
    renamed = load_file(tmp_path / "new/model.safetensors")
    assert renamed.keys() == {f"net.{key}" for key in load_file(folder / "model.safetensors")}


def test_a_file_without_a_run_is_refused(exported: tuple[Path, Path], tmp_path: Path, capsys):
    _, folder = exported
    words = ["--to", "hub", "--output", str(tmp_path / "new")]
    assert main(["ckpt", "export", str(folder / "model.safetensors"), *words]) == 1
    assert "not a checkpoint folder of overt" in capsys.readouterr().err
