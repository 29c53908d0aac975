"""A character GPT on the documentation of overt: predict the next letter of held-out text.

Shapes: B texts, T letters, D features, V letters of the alphabet."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING
from torch import Tensor, nn
from torch.nn import TransformerEncoderLayer as Block

from overt import Recipe, StepOutput, World
from overt.evaluation import Row, mean_of_rows, score_batches

ALPHABET = "\n" + "".join(map(chr, range(32, 128)))  # the last one stands for all others
LAYER = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}


@dataclass
class ModelSettings:
    width: int = MISSING
    depth: int = MISSING
    context: int = MISSING  # letters that the model sees at once


@dataclass
class Settings:
    model: ModelSettings = MISSING


@cache
def read(part: str) -> Tensor:
    """Return letters as numbers: of each page the last 500 are held out."""
    pages = [page.read_text() for page in sorted(Path(__file__).parents[2].glob("docs/*.md"))]
    text = "".join(page[:-500] if part == "train" else page[-500:] for page in pages)
    return torch.tensor([ALPHABET.find(letter) % len(ALPHABET) for letter in text])


@dataclass
class Snippets:
    length: int

    def __len__(self) -> int:
        return len(read("train")) - self.length

    def sample(self, index: int, rng: np.random.Generator) -> Tensor:
        return read("train")[index : index + self.length]


class Model(nn.Module):
    def __init__(self, size: ModelSettings) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), size.width)
        self.positions = nn.Parameter(0.02 * torch.randn(size.context, size.width))
        sizes = (size.width, 4, 4 * size.width)  # features, heads, hidden features
        self.blocks = nn.ModuleList(Block(*sizes, **LAYER) for _ in range(size.depth))
        self.head = nn.Sequential(nn.LayerNorm(size.width), nn.Linear(size.width, len(ALPHABET)))

    def forward(self, letters: Tensor) -> Tensor:  # (B, T)
        x = self.letters(letters) + self.positions[: letters.shape[1]]  # (B, T, D)
        future = nn.Transformer.generate_square_subsequent_mask(letters.shape[1], x.device)
        for block in self.blocks:
            x = block(x, src_mask=future, is_causal=True)
        return self.head(x)  # (B, T, V)


class Gpt(Recipe):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def build_model(self) -> Model:
        return Model(self.settings.model)

    def build_dataset(self) -> Snippets:
        return Snippets(self.settings.model.context + 1)

    def collate(self, samples: list[Tensor]) -> Tensor:
        return torch.stack(samples)  # (B, T + 1)

    def example_batch(self, size: int) -> Tensor:
        return torch.zeros(size, self.settings.model.context + 1, dtype=torch.int64)

    def counts(self, batch: Tensor) -> dict[str, Tensor]:
        return {"letters": torch.tensor(batch[:, 1:].numel())}

    def loss(self, model: Any, batch: Tensor, counts: dict[str, Tensor], step: int) -> StepOutput:
        return StepOutput({"bits": bits(model, batch).sum() / counts["letters"]})

    def blocks(self, model: Model) -> list[nn.Module]:
        return list(model.blocks)

    def evaluate(self, model: Model, world: World) -> dict[str, float]:
        """Return bits per held-out letter; a table of letter pairs is the baseline."""
        texts, size = read("test").unfold(0, *[self.settings.model.context + 1] * 2), len(ALPHABET)

        def score(indices: range) -> list[Row]:
            part = texts[indices.start : indices.stop].to(model.positions.device)
            return [{"bits": float(value)} for value in bits(model, part).mean(1)]

        pairs = torch.bincount(read("train")[:-1] * size + read("train")[1:], minlength=size**2)
        table = (pairs + 1.0).log().view(size, size)
        baseline = {"bits_of_pairs": float(bits(lambda seen: table[seen], texts).mean())}
        return mean_of_rows(score_batches(world, len(texts), 64, score)) | baseline

    def visualize(self, model: Model) -> dict[str, str]:
        letters, rng = read("test")[:16], torch.Generator().manual_seed(0)
        for _ in range(200):
            seen = letters[None, -len(model.positions) :].to(model.positions.device)
            chances = model(seen)[0, -1].float().softmax(0).cpu()
            letters = torch.cat([letters, torch.multinomial(chances, 1, generator=rng)])
        return {"sample": "".join(ALPHABET[number] for number in letters)}


def bits(model: Any, batch: Tensor) -> Tensor:  # (B, T), how surprising each letter is
    entropy = nn.CrossEntropyLoss(reduction="none")(model(batch[:, :-1]).mT, batch[:, 1:])
    return entropy / float(np.log(2))
