"""Streams in training runs: a stopped and resumed run ends with the same bits."""

import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_runs import HERE, same_bits, toy_config, weights

from overt.config import build_recipe
from overt.data.mixture import InterleavedMixture
from overt.data.streams import TarSamples, TarStream
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer
from overt.errors import ConfigError

from .shard_files import open_forward, png, write_shards, write_tar


def regression(sample: dict[str, Any], rng: np.random.Generator) -> tuple[Tensor, ...]:
    """What the toy recipe collates."""
    inputs = torch.from_numpy(rng.standard_normal(4).astype(np.float32))
    mask = (torch.arange(4) <= sample["cls"] % 4).float()
    return inputs, inputs.flip(0) + sample["cls"] / 40, mask, sample["cls"]


def indexed(folder: Path) -> TarSamples:
    return TarSamples(f"{folder}/*.tar", transform=regression, window=8, lanes=2)


def sequential(folder: Path) -> TarStream:
    return TarStream(
        f"{folder}/*.tar",
        samples=40,
        lanes=8,
        buffer=4,
        transform=regression,
        opener=open_forward,
    )


def mixed(folder: Path) -> InterleavedMixture:
    return InterleavedMixture([indexed(folder), sequential(folder)], [3.0, 1.0], samples=36)


def train(folder: Path, source: Any, *overrides: str) -> None:
    config = toy_config(
        folder, "training.batch_size=4", "training.global_batch_size=8", "exp_name=run", *overrides
    )
    recipe = build_recipe(config)
    with patch.object(type(recipe), "build_dataset", lambda self: source):
        trainer = Trainer(config, recipe, init_distributed("cpu"))
    trainer.train()


@pytest.mark.parametrize("make", [indexed, sequential, mixed])
def test_a_resumed_run_ends_with_the_same_bits(make: Any, tmp_path: Path) -> None:
    """Stopped in the middle of the second epoch; the sources are built again."""
    write_shards(tmp_path / "shards", [5] * 8)
    settings = ["training.num_steps=12", "checkpoint.every_steps=7", "checkpoint.keep_last_n=9"]
    train(tmp_path, make(tmp_path / "shards"), *settings)
    run = tmp_path / "run"
    whole = weights(run, 12)
    shutil.rmtree(run / "checkpoints" / "step_00000012")
    train(tmp_path, make(tmp_path / "shards"), *settings, "training.num_workers=1")
    assert same_bits(weights(run, 12), whole)


def test_a_stream_that_cannot_serve_a_split_stops_a_run_before_it_starts(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", [5] * 8)
    with pytest.raises(ConfigError, match=r"8 lanes, but 1 rank\(s\) x 3 loader process"):
        train(tmp_path, sequential(tmp_path / "shards"), "training.num_workers=3")


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/data_order.md, block by block, with shards of the names that it uses."""
    page = (HERE.parent / "docs" / "data_order.md").read_text()
    (tmp_path / "shards").mkdir()
    for number in range(4):
        members = {f"{number}.jpg": png(number), f"{number}.cls": b"1"}
        for suffix, mode in (("tar", "w"), ("tar.gz", "w:gz")):
            write_tar(tmp_path / f"shards/train-{number:04d}.{suffix}", members, mode=mode)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    sources = []
    for block in re.findall(r"^```python\n(from overt.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
        sources.append(names.get("mixture", names["source"]))
    assert [len(source) for source in sources] == [4, 1000, 100]
    image, label = sources[0].sample(2, np.random.default_rng(0))
    assert (image.shape, label) == ((3, 3, 4), 1)
    assert sources[2].sample(99, np.random.default_rng(0))["cls"] == 1
