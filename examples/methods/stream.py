"""Digits from a stream of compressed tar shards, read from start to end, never by index."""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from omegaconf import MISSING
from PIL import Image
from torch import Tensor, nn

from methods.digits import SIDE, convolutions, digits, moved, moved_digits
from overt import Recipe, StepOutput, World
from overt.data.images.digits import load_digits, split_thirds
from overt.data.making import claim_folder
from overt.data.streams import TarStream
from overt.evaluation import Row, mean_of_rows, score_batches
from overt.files.atomic import new_file

SHARDS = 12


@dataclass
class ModelSettings:
    width: int = MISSING


@dataclass
class DataSettings:
    # folder of the shards; they are written where it is empty
    root: str = MISSING
    # samples that a lane hands out in turn: the smallest micro-batch
    block: int = MISSING
    # samples of a lane to choose the next one from
    buffer: int = MISSING


@dataclass
class Settings:
    model: ModelSettings = MISSING
    data: DataSettings = MISSING


def write_shards(root: Path) -> None:
    """Write the training digits as PNG and label, sorted by label: shuffling is the stream's."""
    claim_folder(root, {"shards": SHARDS}, "shards")
    images, labels = load_digits(8)
    order = sorted(split_thirds(len(images))[0], key=lambda index: int(labels[index]))
    for number in range(SHARDS):
        path = root / f"digits-{number:02d}.tar.gz"
        if path.exists():
            continue
        with new_file(path) as hidden, tarfile.open(hidden, "w:gz") as shard:
            for index in order[number::SHARDS]:
                add(shard, f"{index:04d}", images[index], int(labels[index]))


def add(shard: tarfile.TarFile, key: str, image: NDArray[np.uint8], label: int) -> None:
    picture = io.BytesIO()
    Image.fromarray(image).save(picture, "PNG")
    for suffix, content in (("png", picture.getvalue()), ("cls", str(label).encode())):
        member = tarfile.TarInfo(f"{key}.{suffix}")
        member.size = len(content)
        shard.addfile(member, io.BytesIO(content))


def prepare(sample: dict[str, Any], rng: np.random.Generator) -> tuple[Tensor, int]:
    """Return a moved digit: `rng` follows from seed, epoch and position, as with any source."""
    return moved(sample["png"][0] / 255, rng), sample["cls"]


class Stream(Recipe):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> nn.Sequential:
        width = self.settings.model.width
        return nn.Sequential(*convolutions(width), nn.Flatten(), nn.Linear(16 * width, 10))

    def build_dataset(self) -> TarStream:
        data = self.settings.data
        write_shards(Path(data.root))
        return TarStream(
            f"{data.root}/digits-*.tar.gz",
            samples=len(digits("train")[0]),
            lanes=SHARDS,  # any rank count that divides them gives the same global batches
            block=data.block,
            buffer=data.buffer,
            transform=prepare,
        )

    def collate(self, samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        images, labels = zip(*samples, strict=True)
        return torch.stack(images), torch.tensor(labels)

    def example_batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(size, 1, SIDE, SIDE), torch.zeros(size, dtype=torch.int64)

    def loss(self, model: Any, batch: Any, counts: dict[str, Tensor], step: int) -> StepOutput:
        entropy = F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        return StepOutput({"entropy": entropy / counts["samples"]})

    def evaluate(self, model: Any, world: World) -> dict[str, float]:
        """Return accuracy on held-out digits; the nearest mean of a class is the baseline."""
        (bank, known), (images, labels) = moved_digits("train"), moved_digits("test")
        means = torch.stack([bank[known == label].mean(0) for label in range(10)]).flatten(1)
        nearest = torch.cdist(images.flatten(1), means).argmin(1)

        def score(indices: range) -> list[Row]:
            part = images[indices.start : indices.stop].to(next(model.parameters()).device)
            right = model(part).argmax(1).cpu() == labels[indices.start : indices.stop]
            return [{"accuracy": float(each)} for each in right]

        scores = mean_of_rows(score_batches(world, len(images), 64, score))
        return scores | {"nearest_mean": float((nearest == labels).float().mean())}
