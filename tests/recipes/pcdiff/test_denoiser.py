"""The denoiser: the keys of published files, and what a change of its inputs changes."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from overt.checkpoint.weights import load_weights
from overt.cli import main
from overt.config import build_recipe, load
from overt.recipes.pcdiff.denoiser import Convolutions, Denoiser, Down, Up, time_embedding

PREFIXES = ("model.", "model.module.", "model._orig_mod.", "model.module._orig_mod.")


def tiny(**changes: object) -> Denoiser:
    """Two levels."""
    torch.manual_seed(0)
    options = {"embed_dim": 8, "attention": True, "dropout": 0.1} | changes
    down = [
        Down(Convolutions(8, 2, 4), 20, 0.8, 60, [8, 16]),
        Down(Convolutions(16, 3, 2), 6, 1.6, 60, [16, 16]),
    ]
    up = [Up([16, 16], Convolutions(16, 1, 2)), Up([16, 8], Convolutions(8, 1, 4))]
    return Denoiser(down, up, **options).eval()


def cloud(batch: int = 2, points: int = 60, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, points, generator=torch.Generator().manual_seed(0))


def test_the_official_network_has_the_published_keys() -> None:
    with torch.device("meta"):
        model = build_recipe(load(["recipe=pcdiff", "data.root=x"])).build_model()
    keys = list(model.state_dict())
    assert len(keys) == 296
    assert sum(parameter.numel() for parameter in model.parameters()) == 27_648_963
    assert keys == [name for name, _ in model.named_parameters()]
    starts = list(dict.fromkeys(key.partition(".")[0] for key in keys))
    assert starts == ["sa_layers", "global_att", "fp_layers", "classifier", "embedf"]
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert shapes["sa_layers.0.1.voxel_layers.7.fc.0.weight"] == (4, 32)
    assert shapes["sa_layers.0.2.mlps.0.layers.3.weight"] == (64, 32, 1, 1)
    assert shapes["sa_layers.1.0.voxel_layers.6.q.weight"] == (64, 64, 1, 1, 1)
    assert shapes["sa_layers.3.mlps.0.layers.0.weight"] == (256, 323, 1, 1)
    assert shapes["global_att.out.weight"] == (512, 512, 1)
    assert shapes["fp_layers.0.0.mlp.layers.0.weight"] == (256, 832, 1)
    assert shapes["fp_layers.3.2.point_features.layers.1.bias"] == (64,)
    assert shapes["classifier.2.weight"] == (3, 128, 1)
    assert not any(
        key.startswith(("sa_layers.1.0.voxel_layers.7", "sa_layers.1.2")) for key in keys
    )


@pytest.mark.parametrize("prefix", PREFIXES)
def test_published_files_load_whatever_wrapped_the_model(prefix: str, tmp_path: Path) -> None:
    source, target = tiny(), tiny()
    for parameter in target.parameters():
        torch.nn.init.zeros_(parameter)
    state = {prefix + key: value for key, value in source.state_dict().items()}
    optimizer = torch.optim.Adam(source.parameters()).state_dict()
    content = {"epoch": 7, "model_state": state, "optimizer_state": optimizer, "loss": 0.1}
    torch.save(content, tmp_path / "epoch_7.pth")
    report = load_weights(tmp_path / "epoch_7.pth", target, strict=True)
    assert len(report.mapped) == len(state)
    for key, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[key], value)


def test_without_dropout_the_keys_move_up() -> None:
    with_layer, without = tiny(), tiny(dropout=None)
    assert "sa_layers.0.0.voxel_layers.4.weight" in with_layer.state_dict()
    assert without.state_dict()["sa_layers.0.0.voxel_layers.3.weight"].ndim == 5
    assert "sa_layers.0.0.voxel_layers.6.fc.0.weight" in without.state_dict()
    assert list(tiny(dropout=0.0).state_dict()) == list(with_layer.state_dict())
    times = torch.tensor([3, 900])
    assert without(cloud(), times).shape == (2, 3, 60)


def test_geometry_may_be_handed_in() -> None:
    model, x, times = tiny(), cloud(), torch.tensor([0, 999])
    geometry = model.geometry(x.transpose(1, 2))
    assert torch.equal(model(x, times), model(x, times, geometry))


def test_clouds_of_a_batch_do_not_mix() -> None:
    model, x, times = tiny(), cloud(3), torch.tensor([0, 10, 999])
    together = model(x, times)
    for number in range(3):
        alone = model(x[number : number + 1], times[number : number + 1])
        torch.testing.assert_close(alone[0], together[number], atol=1e-5, rtol=1e-4)


def test_extra_channels_and_odd_embeddings_are_possible() -> None:
    model = tiny(extra_channels=2, embed_dim=9, attention=False)
    assert model(cloud(channels=5), torch.tensor([1, 2])).shape == (2, 3, 60)
    assert model.global_att is None
    embedding = time_embedding(torch.tensor([0, 5]), 9)
    assert embedding.shape == (2, 9)
    assert embedding[0].tolist() == [0.0] * 4 + [1.0] * 4 + [0.0]


def test_every_parameter_learns() -> None:
    model = tiny().train()
    model(cloud(), torch.tensor([3, 40])).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("prefix", ["model.", "model.module."])
def test_weights_go_back_under_the_names_of_the_published_code(prefix: str, tmp_path: Path) -> None:
    model = tiny()
    torch.save(model.state_dict(), tmp_path / "ours.pt")
    words = ["--to", "torch", "--output", str(tmp_path / "theirs.pth"), "--prefix", prefix]
    assert main(["ckpt", "export", str(tmp_path / "ours.pt"), *words]) == 0
    found = torch.load(tmp_path / "theirs.pth", weights_only=True)
    assert list(found) == [prefix + key for key in model.state_dict()]
