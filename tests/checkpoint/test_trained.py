"""overt/checkpoint/trained.py: the weights of a checkpoint in a model that is not trained on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_runs import train_toy

from overt.checkpoint.reading import read_tensors
from overt.checkpoint.trained import load_model
from overt.errors import CheckpointError


class Tables(nn.Module):
    computed_tensors = ("positions", "times")

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(rows))
        self.register_buffer("times", torch.zeros(rows))
        self.head = nn.Linear(2, 2)


class Adapting(nn.Linear):
    """Takes the toy's last layer, and remembers what it was told of the file."""

    settings: Mapping[str, Any] | None = None

    def adapt_tensors(
        self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None
    ) -> dict[str, Tensor]:
        self.settings = settings
        if "last.weight" not in tensors:
            raise CheckpointError("no last layer")
        return {"weight": tensors["last.weight"], "bias": tensors["last.bias"]}


class Builds:
    """As much of a recipe as is needed."""

    unscored: tuple[str, ...] = ()

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def build_model(self) -> nn.Module:
        return self.model


def test_a_trained_table_of_another_size_is_never_left_at_its_random_start(tmp_path: Path) -> None:
    torch.save(Tables(3).state_dict(), tmp_path / "a.pt")
    # Declared as computed, but trained here: what counts is that it would be random.
    with pytest.raises(CheckpointError) as caught:
        load_model(Builds(Tables(4)), tmp_path / "a.pt")
    assert "a.pt: 1 tensor(s) have another shape" in str(caught.value)
    assert "positions: (3,) in the file, (4,) in the model" in str(caught.value)
    fixed = Tables(4)
    fixed.positions.requires_grad_(False)
    _, report = load_model(Builds(fixed), tmp_path / "a.pt")
    assert report.skipped == ["positions", "times"]


def test_a_file_with_a_part_of_the_weights_is_refused(tmp_path: Path) -> None:
    whole = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    torch.save(whole["body"].state_dict(prefix="body."), tmp_path / "a.pt")
    recipe = Builds(whole)
    with pytest.raises(CheckpointError, match=r"a\.pt: 2 of 4 trained tensors .*: head\.weight"):
        load_model(recipe, tmp_path / "a.pt")
    whole["head"].requires_grad_(False)  # of a file of its own, say
    load_model(recipe, tmp_path / "a.pt")
    whole["head"].requires_grad_()
    recipe.unscored = ("head.",)
    _, report = load_model(recipe, tmp_path / "a.pt")
    assert report.missing == ["head.weight", "head.bias"]


def test_a_model_that_knows_other_files_is_given_their_tensors_and_settings(tmp_path: Path) -> None:
    train_toy(tmp_path, "training.num_steps=1", "model.width=6")
    checkpoint = tmp_path / "toy" / "checkpoints" / "latest"
    weight = read_tensors(checkpoint)[0]["last.weight"]
    model = Adapting(weight.shape[1], weight.shape[0])
    _, report = load_model(Builds(model), checkpoint)
    assert torch.equal(model.weight, weight)
    assert report.missing == []
    assert model.settings is not None
    assert model.settings["model"]["width"] == 6
    # A file of others says nothing of its run; an error names the file.
    torch.save({"module.last.weight": weight, "last.bias": model.bias.detach()}, tmp_path / "a.pt")
    load_model(Builds(model), tmp_path / "a.pt")
    assert model.settings is None
    torch.save({"first.weight": weight}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match=r"b\.pt: no last layer"):
        load_model(Builds(model), tmp_path / "b.pt")
