"""Checkpoints in shares: exact on as many processes, good for any other number of them."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from toy_runs import losses_by_step, read_rows, same_bits, toy_config, train_toy

RUNS = Callable[..., list[Any]]
FSDP = "training.strategy=fsdp"
# Dropout draws from the global generator; a width of 6 leaves 4 processes shares of other sizes.
EVERYTHING = ["model.dropout=0.3", "training.ema_momentum=0.9", "model.width=6"]
GLOBAL_FOUR = ["training.global_batch_size=4", "training.batch_size=1", *EVERYTHING[1:]]
EVERY_STEP = "checkpoint.every_steps=1"


def step_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:08d}"


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint as it lies there, by file."""
    return {
        f"{file.name}/{key}": tensor
        for file in sorted(folder.glob("*.safetensors"))
        for key, tensor in load_file(file).items()
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture
def whole_run(undisturbed: Path, run_processes: RUNS) -> Path:
    """12 steps in shares on 2 processes, trained when first asked for."""
    if not (undisturbed / "toy").exists():
        run_processes(train_toy, 2, undisturbed, FSDP, *EVERYTHING)
    return undisturbed / "toy"


@pytest.mark.parametrize("background", ["true", pytest.param("false", marks=pytest.mark.long)])
def test_killed_and_resumed_is_the_same_bit_for_bit(
    background: str, whole_run: Path, run_processes: RUNS, tmp_path: Path
) -> None:
    settings = [FSDP, *EVERYTHING, EVERY_STEP, f"checkpoint.background={background}"]
    codes = run_processes(train_toy, 2, tmp_path, *settings, dies=True, die_at=7)
    assert -9 in codes
    run_processes(train_toy, 2, tmp_path, *settings)
    ends = [all_tensors(step_folder(run, 12)) for run in (tmp_path / "toy", whole_run)]
    assert {name.partition("/")[0] for name in ends[0]} == {
        "rank_00000.safetensors",
        "rank_00001.safetensors",
        "rng.safetensors",
    }
    assert same_bits(*ends)
    assert losses_by_step(tmp_path / "toy") == losses_by_step(whole_run)


@pytest.mark.parametrize(
    "stages",
    [
        [(2, "fsdp"), (4, "fsdp"), (1, "single")],
        [(2, "ddp"), (2, "fsdp"), (2, "ddp")],
    ],
    ids=["2-4-1", "ddp-fsdp-ddp"],
)
def test_goes_on_with_other_numbers_and_strategies(
    stages: list[tuple[int, str]], run_processes: RUNS, tmp_path: Path
) -> None:
    train_toy(tmp_path / "whole", *GLOBAL_FOUR)
    for (size, strategy), die_at in zip(stages, (4, 8, None), strict=True):
        settings = [*GLOBAL_FOUR, EVERY_STEP, f"training.strategy={strategy}"]
        dies = die_at is not None
        run_processes(train_toy, size, tmp_path, *settings, dies=dies, die_at=die_at)
    whole, parts = tmp_path / "whole/toy", tmp_path / "toy"
    assert losses_by_step(parts) == pytest.approx(losses_by_step(whole), rel=1e-6)
    scores = [read_rows(run)[-1]["evaluation/error"] for run in (whole, parts)]
    assert scores[1] == pytest.approx(scores[0], rel=1e-6)
    # The average and the momenta went along as well.
    for name in ("model", "ema", "optimizer"):
        one, two = (
            load_file(step_folder(run, 12) / f"{name}.safetensors") for run in (whole, parts)
        )
        assert one.keys() == two.keys()
        for key in one:
            torch.testing.assert_close(two[key], one[key], rtol=1e-4, atol=1e-7, msg=key)


def test_a_folder_in_shares_is_of_use_to_everyone(
    whole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inspected, exported to one file and started from, without any group of processes."""
    from overt.checkpoint.reading import read_tensors
    from overt.commands import ckpt

    folder = step_folder(whole_run, 12)
    assert {file.suffix for file in folder.iterdir()} == {".safetensors", ".json", ".yaml"}
    assert ckpt.main(["inspect", str(folder), "--keys"]) == 0
    shown = capsys.readouterr().out
    assert "check       good" in shown
    assert "one file for each of 2 ranks" in shown
    assert "ema: 6 tensors, 88 values" in shown
    for kind in ("safetensors", "torch"):
        output = tmp_path / f"weights.{kind}"
        assert ckpt.main(["export", str(folder), "--to", kind, "--output", str(output)]) == 0
    exported = load_file(tmp_path / "weights.safetensors")
    assert same_bits(exported, torch.load(tmp_path / "weights.torch", weights_only=True))
    shares = [load_file(folder / f"rank_0000{rank}.safetensors") for rank in (0, 1)]
    for name, tensor in exported.items():
        rows = [share[key] for share in shares for key in share if key.startswith(f"model/{name}@")]
        assert torch.equal(tensor, torch.cat(rows)), name
    assert sorted(exported) == sorted(
        f"{part}.{name}" for part in ("first", "last", "target") for name in ("bias", "weight")
    )
    average, _ = read_tensors(folder, "ema")
    assert not same_bits(average, exported)
    settings = [f"checkpoint.init_from={folder}", "training.num_steps=1", "optimizer.lr=1e-9"]
    train_toy(tmp_path, *settings, "model.width=6")
    started = load_file(step_folder(tmp_path / "toy", 1) / "model.safetensors")
    for name in ("first.weight", "last.bias"):  # the target has moved by itself
        torch.testing.assert_close(started[name], exported[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("file", ["rank_00001.safetensors", "shards.json"])
def test_a_broken_share_is_found_and_the_one_before_is_used(
    file: str, whole_run: Path, run_processes: RUNS, tmp_path: Path
) -> None:
    shutil.copytree(whole_run, tmp_path / "toy", symlinks=True)
    broken = step_folder(tmp_path / "toy", 12) / file
    content = bytearray(broken.read_bytes())
    content[-20] ^= 1
    broken.write_bytes(content)
    run_processes(train_toy, 2, tmp_path, FSDP, *EVERYTHING)
    assert step_folder(tmp_path / "toy", 12).with_name("step_00000012.broken").is_dir()
    ends = [all_tensors(step_folder(run, 12)) for run in (tmp_path / "toy", whole_run)]
    assert same_bits(*ends)


def test_what_the_index_says_is_not_believed_blindly(whole_run: Path, tmp_path: Path) -> None:
    from overt.checkpoint.manifest import SHARDS, read_manifest
    from overt.checkpoint.shard_index import read_index
    from overt.errors import CheckpointError

    index = json.loads((step_folder(whole_run, 12) / "shards.json").read_text())
    piece = index["model/first.weight"]["pieces"][0]
    folder = tmp_path / "step_00000012"
    for key, value in (
        ("file", "../elsewhere.safetensors"),
        ("file", "/etc/passwd"),
        ("offsets", [-1, 0]),
        ("offsets", [0]),
        ("sizes", [1000, 4]),
        ("sizes", "words"),
        ("sizes", None),
    ):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(step_folder(whole_run, 12), folder)
        before, piece[key] = piece[key], value
        (folder / "shards.json").write_text(json.dumps(index))
        piece[key] = before
        assert SHARDS in read_manifest(folder)["files"]
        with pytest.raises(CheckpointError, match=r"shards.json.*use an older checkpoint"):
            read_index(folder)


def make_sharded(folder: Path) -> Any:
    from overt.config import build_recipe
    from overt.distributed import init_distributed
    from overt.engine.trainer import Trainer

    config = toy_config(folder, FSDP, "checkpoint.background=true")
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    trainer.train_step()
    return trainer


def change_while_writing(folder: Path) -> bool:
    """Whether the checkpoint holds what was there when it was asked for."""
    from overt.checkpoint import tensor_files, writing
    from overt.checkpoint.shards import read_part

    trainer = make_sharded(folder)
    before = {key: value.full_tensor() for key, value in trainer.model.state_dict().items()}
    may_write = threading.Event()

    def slow(*arguments: Any) -> str:
        may_write.wait()
        return tensor_files.write_file(*arguments)

    writing.write_file = slow  # type: ignore[assignment]
    trainer.save()  # returns although no byte can be written
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.to_local().add_(1.0)
    may_write.set()
    trainer.close()
    if trainer.world.rank > 0:
        return True
    return same_bits(read_part(step_folder(folder / "toy", 1), "model"), before)


def test_weights_may_change_while_the_shares_are_written(
    run_processes: RUNS, tmp_path: Path
) -> None:
    assert run_processes(change_while_writing, 2, tmp_path) == [True, True]


def full_disk_on_one(folder: Path) -> list[str]:
    """What each process hears when the second cannot write its share."""
    import errno

    from overt.checkpoint import writing
    from overt.errors import CheckpointError

    trainer = make_sharded(folder)
    trainer.save()
    trainer.train_step()
    trainer.manager.wait()
    heard = []
    if trainer.world.rank == 1:

        def full(*arguments: Any) -> str:
            raise OSError(errno.ENOSPC, "No space left on device")

        writing.write_file = full  # type: ignore[assignment]
    trainer.save()  # in the background: the next one hears of it
    try:
        trainer.save()
    except CheckpointError as error:
        heard.append(str(error))
    trainer.close()
    return heard


def test_a_share_that_cannot_be_written_is_heard_of_everywhere(
    run_processes: RUNS, tmp_path: Path
) -> None:
    for (message,) in run_processes(full_disk_on_one, 2, tmp_path):
        assert "No space left on device" in message
        assert "rank_00001.safetensors" in message
    names = {path.name for path in (tmp_path / "toy/checkpoints").iterdir()}
    assert names == {"step_00000001", "latest"}
