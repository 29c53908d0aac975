"""A character GPT on the documentation of overt: predict the next letter of held-out text.

Shapes: B texts, T letters, D features, V letters of the alphabet.
"""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from omegaconf import MISSING
from torch import Tensor, nn

from overt import Recipe, StepOutput, World
from overt.evaluation import Row, mean_of_rows, score_batches

ALPHABET = "\n" + "".join(map(chr, range(32, 128)))  # the last one stands for all others
LAYER = {"activation": "gelu", "batch_first": True, "norm_first": True}
HEADS = 4
DOCS = Path(__file__).parents[2] / "docs"


@dataclass
class ModelSettings:
    width: int = MISSING
    depth: int = MISSING
    # letters that the model sees at once
    context: int = MISSING


@dataclass
class Settings:
    model: ModelSettings = MISSING


@cache
def read(part: str) -> NDArray[np.int64]:
    """Return letters as numbers: the first nine tenths of each page for `train`, or the rest."""
    text = ""
    for page in sorted(DOCS.glob("*.md")):
        cut = len(content := page.read_text()) * 9 // 10
        text += content[:cut] if part == "train" else content[cut:]
    return np.array([ALPHABET.find(letter) % len(ALPHABET) for letter in text])


@dataclass
class Snippets:
    length: int

    def __len__(self) -> int:
        return len(read("train")) - self.length

    def sample(self, index: int, rng: np.random.Generator) -> Tensor:
        return torch.from_numpy(read("train")[index : index + self.length])


class Model(nn.Module):
    def __init__(self, size: ModelSettings) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), size.width)
        self.positions = nn.Parameter(0.02 * torch.randn(size.context, size.width))
        layer, wide = nn.TransformerEncoderLayer, 4 * size.width
        blocks = (layer(size.width, HEADS, wide, 0.0, **LAYER) for _ in range(size.depth))
        self.blocks = nn.ModuleList(blocks)
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

    def counts(self, batch: Tensor) -> dict[str, Tensor]:
        return {"letters": torch.tensor(batch[:, 1:].numel())}

    def loss(self, model: Any, batch: Tensor, counts: dict[str, Tensor], step: int) -> StepOutput:
        return StepOutput({"entropy": entropies(model, batch).sum() / counts["letters"]})

    def blocks(self, model: Model) -> list[nn.Module]:
        return list(model.blocks)

    def evaluate(self, model: Model, world: World) -> dict[str, float]:
        """Return bits per held-out letter; a table of letter pairs is the baseline."""
        length, letters = self.settings.model.context + 1, read("test")
        texts = torch.from_numpy(letters[: len(letters) // length * length]).view(-1, length)

        def score(indices: range) -> list[Row]:
            part = texts[indices.start : indices.stop].to(model.positions.device)
            return [{"bits": float(nats) / math.log(2)} for nats in entropies(model, part).mean(1)]

        pairs = np.ones((len(ALPHABET), len(ALPHABET)))
        np.add.at(pairs, (read("train")[:-1], read("train")[1:]), 1)
        chances = (pairs / pairs.sum(1, keepdims=True))[letters[:-1], letters[1:]]
        scores = mean_of_rows(score_batches(world, len(texts), 64, score))
        return scores | {"bits_of_pairs": float(-np.log2(chances).mean())}


def entropies(model: Any, batch: Tensor) -> Tensor:
    """Return how surprising each letter is, (B, T) in nats."""
    return F.cross_entropy(model(batch[:, :-1]).mT, batch[:, 1:], reduction="none")
