import argparse
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from overt.checkpoint.manager import CheckpointManager
from overt.checkpoint.reading import read_tensors
from overt.checkpoint.recorded import recorded_recipe
from overt.commands.arguments import configure_model
from overt.commands.ckpt import main
from overt.config import load
from overt.errors import CheckpointError, ConfigError


class Parallel(nn.Module):
    """Names its inner module as DistributedDataParallel does."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def build():
    return nn.ModuleDict({"encoder": nn.Linear(3, 4), "head": nn.Linear(4, 2)})


@pytest.fixture
def run(tmp_path):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    model["head"](model["encoder"](torch.ones(1, 3))).sum().backward()
    optimizer.step()
    CheckpointManager(tmp_path / "run").save_checkpoint(
        3,
        Parallel(model),
        optimizer,
        metrics={"val_loss": 0.5},
        step=40,
        ema=build(),
        config_yaml="seed: 1\n",
    )
    return tmp_path / "run", model


def test_inspect_shows_an_own_checkpoint(run, capsys):
    folder, _ = run
    for path in (folder, folder / "latest", folder / "step_00000040"):
        assert main(["inspect", str(path)]) == 0
        shown = capsys.readouterr().out
        for expected in (
            "overt checkpoint, version 1",
            "check       good",
            "step        40",
            "epoch       3",
            "val_loss 0.5",
            f"torch {version('torch')}",
            "config.yaml, SHA-256",
            "model: 4 tensors, 26 values, 0.1 kB (F32 x 4)",
            "ema: 4 tensors",
            "optimizer: 12 tensors",
        ):
            assert expected in shown
        assert ["encoder", "16", "values"] in [line.split()[:3] for line in shown.splitlines()]
        assert "[4, 3]" not in shown


def test_inspect_lists_keys_on_request(run, capsys):
    main(["inspect", str(run[0]), "--keys"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["encoder.weight", "F32", "[4,", "3]"] in lines
    assert ["head.bias/exp_avg", "F32", "[2]"] in lines


def test_inspect_reports_damage(run, capsys):
    os.truncate(run[0] / "step_00000040" / "ema.safetensors", 20)
    assert main(["inspect", str(run[0] / "latest")]) == 1
    assert "ema.safetensors: 20 bytes instead of" in capsys.readouterr().out


def test_inspect_shows_foreign_files(tmp_path, capsys):
    model = build()
    content = {
        "model": {f"module.{key}": value.half() for key, value in model.state_dict().items()},
        "optimizer": {"state": {}, "param_groups": []},
        "epoch": 7,
        "val_loss": np.float64(0.25),
        "args": argparse.Namespace(lr=0.1),
    }
    for zipped, kind in ((True, "zip archive"), (False, "before torch 1.6")):
        torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
        assert main(["inspect", str(tmp_path / "a.pt")]) == 0
        shown = capsys.readouterr().out
        for expected in (kind, "epoch       7", "0.25", "(Namespace)", "float16 x 4", "26 values"):
            assert expected in shown
        assert "  module.encoder " in shown
    metadata = {"format": "pt", "author": "me"}
    save_file(dict(model.state_dict()), tmp_path / "b", metadata=metadata)
    assert main(["inspect", str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "format      safetensors" in shown
    assert shown.count("format") == 1  # the metadata's own names the framework
    assert "author      me" in shown
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        main(["inspect", str(tmp_path / "absent")])


@pytest.mark.parametrize("part", ["model", "ema"])
def test_export_writes_clean_keys(run, tmp_path, part):
    folder, model = run
    for kind, read in (("safetensors", load_file), ("torch", torch.load)):
        output = tmp_path / kind
        command = ["export", str(folder / "latest"), "--to", kind, "--output", str(output)]
        assert main([*command, "--part", part]) == 0
        tensors = read(output)
        assert tensors.keys() == model.state_dict().keys()
        equal = [torch.equal(tensors[key], value) for key, value in model.state_dict().items()]
        assert all(equal) == (part == "model")


def test_an_exported_file_names_its_recipe(tmp_path):
    folder, files = tmp_path / "run", [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    CheckpointManager(folder).save_checkpoint(0, build(), config_yaml="recipe: {name: lbm_tiny}")
    for source, output in zip((folder / "latest", files[0]), files, strict=True):
        assert main(["export", str(source), "--to", "safetensors", "--output", str(output)]) == 0
        assert recorded_recipe(output) == "lbm_tiny"
    other = tmp_path / "prefixed.safetensors"
    words = ["--to", "safetensors", "--prefix", "module.", "--output", str(other)]
    assert main(["export", str(files[0]), *words]) == 0
    assert recorded_recipe(other) is None  # keys that its recipe would not find


@pytest.mark.parametrize(
    ("recipe", "changed", "others"),
    [
        ("pcdiff_refine_tiny", ["model.side=32", "model.spacing_mm=3.5"], ["data.num_points=512"]),
        (
            "pcdiff_tiny",
            ["data.axes=RAS", "data.synthetic=null"],
            ["evaluation.ensemble=3"],
        ),
        ("cotracker3_tiny", ["model.num_virtual_tracks=8"], ["evaluation.grid_size=3"]),
        ("lbm_tiny", ["model.memory_size=3"], ["model.visible_threshold=0.4"]),
        ("hjepa_tiny", ["model.num_heads=2", "data.image_size=[64,64]"], ["evaluation.k=3"]),
        ("blade_posenet_tiny", ["model.branch.num_heads=2"], ["evaluation.search_scales=2"]),
    ],
)
def test_an_exported_file_is_configured_as_its_checkpoint(
    tmp_path: Path, recipe: str, changed: list[str], others: list[str]
) -> None:
    # Paths of this machine are not in the file: the recipe's stay.
    config = load([f"recipe={recipe}", *changed, "data.root=/a/b"])
    folder, file = tmp_path / "run", tmp_path / "a.safetensors"
    CheckpointManager(folder).save_checkpoint(0, build(), config_yaml=config.text)
    for source in (folder / "latest", file):
        output = ["--output", str(file), "--force"]
        assert main(["export", str(source), "--to", "safetensors", *output]) == 0
    expected = load([f"recipe={recipe}", *changed, *others]).settings
    assert configure_model(file, None, others, ()).settings == expected
    assert b"/a/b" not in file.read_bytes()
    assert "model" in read_tensors(file)[1]["settings"]  # for models that adapt other files
    assert main(["inspect", str(file)]) == 0


def test_a_group_of_the_command_line_wins_over_an_exported_file(tmp_path: Path) -> None:
    config = load(["recipe=cotracker3_tiny", "evaluation.frames=6", "model.num_virtual_tracks=8"])
    folder, file = tmp_path / "run", tmp_path / "a.safetensors"
    CheckpointManager(folder).save_checkpoint(0, build(), config_yaml=config.text)
    main(["export", str(folder / "latest"), "--to", "safetensors", "--output", str(file)])
    words = ["evaluation=tapvid_davis", "evaluation.dataset_root=x"]
    settings = configure_model(file, None, words, ()).settings
    assert settings.evaluation.dataset == "tapvid_davis"
    assert settings.evaluation.frames != 6
    assert settings.model.num_virtual_tracks == 8


def test_a_file_that_the_model_was_built_with_is_named_when_it_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load(["recipe=blade_posenet_tiny", "model.body.model=/mine/SMPL.pkl"])
    folder, file = tmp_path / "run", tmp_path / "a.safetensors"
    CheckpointManager(folder).save_checkpoint(0, build(), config_yaml=config.text)
    main(["export", str(folder / "latest"), "--to", "safetensors", "--output", str(file)])
    assert configure_model(file, None, [], ()).settings.model.body.model == "capsule"
    assert "model.body.model" in caplog.text
    caplog.clear()
    configure_model(file, None, ["model.body.model=/here/SMPL.pkl"], ())
    assert not caplog.text


@pytest.mark.parametrize(
    ("recipe", "words", "missing"),
    [
        ("posenet", ["model.depthnet_checkpoint=/a/depth", "model.depth.save_frozen=true"], ""),
        ("posenet", ["model.branch.backbone_checkpoint=/a/resnet50.pth"], ""),
        (
            "posenet",
            ["model.depthnet_checkpoint=/a/depth", "model.depth.save_frozen=false"],
            "model.depthnet_checkpoint",
        ),
        # Without its name the model would have no base.
        ("posenet", ["model.base_checkpoint=/a/base"], "model.base_checkpoint"),
        ("depthnet", ["model.depth.backbone_checkpoint=/a/b.pth"], ""),
        (
            "depthnet",
            [
                "model.depth.backbone_checkpoint=/a/b.pth",
                "model.depth.freeze_backbone=true",
                "model.depth.save_frozen=false",
            ],
            "model.depth.backbone_checkpoint",
        ),
    ],
)
def test_a_file_whose_weights_are_in_the_checkpoint_is_not_missing(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    recipe: str,
    words: list[str],
    missing: str,
) -> None:
    config = load([f"recipe=blade_{recipe}_tiny", *words])
    folder, file = tmp_path / "run", tmp_path / "a.safetensors"
    CheckpointManager(folder).save_checkpoint(0, build(), config_yaml=config.text)
    main(["export", str(folder / "latest"), "--to", "safetensors", "--output", str(file)])
    configure_model(file, None, [], ())
    assert bool(caplog.text) == bool(missing)
    assert missing in caplog.text


def test_export_below_a_key_is_what_the_old_scripts_read(run, tmp_path):
    file = tmp_path / "old.pth"
    words = ["--to", "torch", "--key", "model_state", "--prefix", "model.module."]
    folder, _ = run
    assert main(["export", str(folder / "latest"), *words, "--output", str(file)]) == 0
    # As the scripts do it: an epoch, and the wrapper's weights below model_state.
    read = torch.load(file, weights_only=True)
    wrapper = nn.ModuleDict({"model": Parallel(build())})
    wrapper.load_state_dict(read["model_state"])
    assert isinstance(read["epoch"], int)
    with pytest.raises(ConfigError, match="--key is for --to torch"):
        main(["export", str(run), "--to", "safetensors", "--key", "x", "--output", str(file)])


def test_export_of_foreign_files_and_shared_memory(tmp_path):
    whole = torch.arange(1_000_000.0)
    torch.save(
        {"state_dict": {"module._orig_mod.a": whole[:2], "b.module.c": whole[2:4]}}, tmp_path / "a"
    )
    for kind, read in (("safetensors", load_file), ("torch", torch.load)):
        output = tmp_path / kind
        main(["export", str(tmp_path / "a"), "--to", kind, "--output", str(output)])
        assert {name: value.tolist() for name, value in read(output).items()} == {
            "a": [0.0, 1.0],
            "b.c": [2.0, 3.0],
        }
        assert output.stat().st_size < 10_000


def test_a_torch_file_takes_what_safetensors_cannot_hold(tmp_path, capsys):
    weights = {"rotation": torch.ones(2, dtype=torch.complex64), "graph": torch.eye(3).to_sparse()}
    torch.save(weights, source := tmp_path / "source.pth")
    assert main(["export", str(source), "--to", "torch", "--output", str(tmp_path / "a.pth")]) == 0
    exported = torch.load(tmp_path / "a.pth", weights_only=True)
    assert torch.equal(exported["rotation"], weights["rotation"])
    assert torch.equal(exported["graph"].to_dense(), torch.eye(3))
    for name in weights:
        torch.save({name: weights[name]}, source)
        with pytest.raises(CheckpointError, match=f"{name} is a .* safetensors cannot hold"):
            main(["export", str(source), "--to", "safetensors", "--output", str(tmp_path / "b")])
    assert not (tmp_path / "b").exists()


def test_export_in_half_precision_loses_nothing_in_silence(tmp_path):
    torch.save(
        {"weight": torch.tensor([1.5, -2.0]), "count": torch.tensor([70000])}, tmp_path / "a"
    )
    command = ["export", str(tmp_path / "a"), "--to", "safetensors", "--half", "--output"]
    main([*command, str(tmp_path / "half")])
    written = load_file(tmp_path / "half")
    assert written["weight"].dtype == torch.float16
    assert written["weight"].tolist() == [1.5, -2.0]
    assert written["count"].tolist() == [70000]
    torch.save({"weight": torch.tensor([1e6])}, tmp_path / "a")
    with pytest.raises(CheckpointError, match="more than float16 can"):
        main([*command, str(tmp_path / "other")])


def test_export_never_overwrites_unasked(run, tmp_path):
    output = tmp_path / "out"
    output.write_text("precious")
    command = ["export", str(run[0] / "latest"), "--to", "safetensors", "--output"]
    with pytest.raises(CheckpointError, match=r"exists.*--force"):
        main([*command, str(output)])
    assert output.read_text() == "precious"
    main([*command, str(output), "--force"])
    assert len(load_file(output)) == 4
    with pytest.raises(CheckpointError, match="is a folder"):
        main([*command, str(tmp_path), "--force"])
    with pytest.raises(CheckpointError, match="does not exist"):
        main([*command, str(tmp_path / "absent" / "out")])


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_export_to_a_full_disk_leaves_the_old_file(tmp_path, kind):
    torch.save({"a": torch.zeros(1 << 20)}, tmp_path / "a.pt")
    (tmp_path / "out").write_text("precious")
    command = ["export", str(tmp_path / "a.pt"), "--to", kind, "--output", str(tmp_path / "out")]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(CheckpointError, match=r"needs 4.2 MB"):
            main([*command, "--force"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pt", "out"]
    assert (tmp_path / "out").read_text() == "precious"


@pytest.mark.parametrize("to", ["onnx", "torchscript"])
@pytest.mark.parametrize("words", [["--half"], ["--prefix", "model."], ["--key", "state"]])
def test_export_of_a_module_refuses_options_of_weights(to: str, words: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"{words[0]} is for files of weights; drop it for {to}"):
        main(["export", "weights.pth", "--to", to, *words, "--output", "step"])


def test_help_and_wrong_use_do_not_load_torch(tmp_path):
    script = (
        "import sys\n"
        "from overt.commands.ckpt import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules"
    )
    for words in (["--help"], ["export", "--help"], ["export", "a", "--to", "onnx"]):
        subprocess.run([sys.executable, "-c", script, *words], capture_output=True, check=True)


def test_export_renames_the_keys_of_other_projects(tmp_path):
    tensors = {"net.layer.0.w": torch.ones(2), "pooler.w": torch.zeros(1)}
    save_file(tensors, tmp_path / "theirs.safetensors")
    words = ["export", str(tmp_path / "theirs.safetensors"), "--to", "safetensors"]
    ours = tmp_path / "ours.safetensors"
    rules = ["--rename", r"^net\.layer\.(\d)", r"blocks.\1", "--rename", "^pooler", "null"]
    assert main([*words, "--output", str(ours), *rules]) == 0
    assert list(load_file(ours)) == ["blocks.0.w"]
    with pytest.raises(CheckpointError, match=r"--rename\.0\.match=typo fits no tensor"):
        main([*words, "--output", str(tmp_path / "other"), "--rename", "typo", ""])
