"""The model: packed predictions, equal encoders at the start, parity modes, foreign weights."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import SMALL_HJEPA, first_batch

from overt.nn.vit import VisionTransformer
from overt.recipes.hjepa.data import Batch
from overt.recipes.hjepa.encoder_recipe import parameter_groups
from overt.recipes.hjepa.model import HJEPA
from overt.recipes.hjepa.recipe import HJEPARecipe

MODES = {
    "ijepa": [],
    "class_token": ["model.class_token=true", "model.positions=learned"],
    "union": ["data.masking.predict=union"],
    "two_contexts": ["data.masking.num_context_masks=2"],
    "projections": ["model.projection=predictions"],
    "fpn": ["model.projection=predictions", "model.fpn.use_fpn=true", "model.fpn.feature_dim=24"],
    "fpn_concat": [
        "model.projection=shared",
        "model.fpn.use_fpn=true",
        "model.fpn.fusion_method=concat",
    ],
    "rope": ["model.rope.use_rope=true"],
    "wide": ["model.predictor.kind=reference", "model.predictor.width=null"],
    "end_to_end": ["model.use_target_encoder=false", "loss.detach_targets=false"],
    "layer_scale": ["model.layerscale.use_layerscale=true"],
}
REFERENCE = [
    "model.class_token=true",
    "model.positions=learned",
    "model.hidden_tokens=zero",
    "model.pooling=sequence",
    "model.projection=shared",
    "model.normalize_targets=false",
    "model.predictor.kind=reference",
    "model.predictor.width=null",
    "data.masking.predict=union",
    "data.masking.kind=hierarchical",
    "data.masking.context=rest",
    "loss.type=mse",
]


def build(root: Path, *overrides: str) -> tuple[HJEPARecipe, HJEPA, Batch]:
    recipe = SMALL_HJEPA.recipe(root, *overrides)
    torch.manual_seed(0)
    return recipe, recipe.build_model(), first_batch(recipe)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jepa")


@pytest.mark.parametrize("name", MODES)
def test_a_batch_is_its_images_one_by_one(name: str, root: Path) -> None:
    recipe, model, _ = build(root, *MODES[name])
    dataset = recipe.build_dataset()
    samples = [dataset.sample(n, np.random.default_rng(n)) for n in range(3)]
    counts = recipe.counts(recipe.collate(samples))["tokens"]
    assert counts[0] > 0

    def losses(batch: Batch) -> torch.Tensor:
        output = model(batch.images, batch.layout)
        return torch.stack(recipe.level_losses(output, counts))

    together = losses(recipe.collate(samples))
    alone = sum(losses(recipe.collate([sample])) for sample in samples)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*MODES, "reference"])
def test_every_parameter_gets_a_gradient_but_the_targets(name: str, root: Path) -> None:
    """DistributedDataParallel waits for each of them."""
    recipe, model, batch = build(root, *MODES.get(name, REFERENCE))
    counts = recipe.counts(batch) | {"samples": torch.tensor(4.0)}
    output = recipe.loss(model, batch, counts, 0)
    assert torch.isfinite(output.total)
    output.total.backward()
    for key, parameter in model.named_parameters():
        if key.startswith("target_encoder"):
            assert not parameter.requires_grad
        elif parameter.requires_grad:
            assert parameter.grad is not None, key
    grouped = [key for group in parameter_groups(model, []) for key, _ in group["params"]]
    trained = [key for key, value in model.named_parameters() if value.requires_grad]
    assert sorted(grouped) == sorted(trained)


def test_target_and_context_start_equal_and_the_target_never_drops_paths(root: Path) -> None:
    _, model, batch = build(root, "model.drop_path_rate=0.5")
    assert model.target_encoder is not None
    for one, other in zip(
        model.context_encoder.parameters(), model.target_encoder.parameters(), strict=True
    ):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
    model.train()
    assert model.context_encoder.training
    assert not any(part.training for part in model.target_encoder.modules())
    images = batch.images.float()
    assert torch.equal(model.encode_targets(images), model.encode_targets(images))


def test_levels_and_exclusions_make_the_groups(root: Path) -> None:
    _, model, _ = build(root, "model.projection=predictions")
    groups = parameter_groups(model, ["mask_token"])
    keys = {(group["level"], "weight_decay" in group) for group in groups}
    assert keys == {(level, plain) for level in range(3) for plain in (False, True)}
    for group in groups:
        for name, parameter in group["params"]:
            assert (group["level"] > 0) == name.startswith(
                ("hierarchy_projections.1", "hierarchy_projections.2")
            )
            free = parameter.ndim < 2 or name.endswith("mask_token")
            assert ("weight_decay" in group) == free


def test_padding_of_the_reference_counts_for_nothing(root: Path) -> None:
    recipe, model, batch = build(root, *REFERENCE)
    output = model(batch.images, batch.layout)
    counts = recipe.counts(batch)["tokens"]
    losses = recipe.level_losses(output, counts)
    spoiled = dataclasses.replace(
        output,
        predictions=[
            torch.where(valid[..., None], prediction, 1e3)
            for prediction, valid in zip(output.predictions, output.valid, strict=True)
        ],
    )
    assert recipe.level_losses(spoiled, counts) == losses


@pytest.mark.parametrize("prefix", ["", "encoder.", "target_encoder."])
def test_an_encoder_of_others_fills_both_encoders(prefix: str, root: Path) -> None:
    _, model, _ = build(root, "model.class_token=true", "model.positions=learned")
    other = VisionTransformer((32, 32), 4, 32, 2, 2)
    tensors = {prefix + key: value for key, value in other.state_dict().items()}
    tensors |= {"head.weight": torch.zeros(3, 32), "predictor.mask_token": torch.ones(1, 1, 16)}
    adapted = model.adapt_tensors(tensors)
    missing, unexpected = model.load_state_dict(adapted, strict=False)
    assert unexpected == ["head.weight"]  # not hidden: the report lists it
    assert not any("encoder" in key for key in missing)
    assert model.target_encoder is not None
    for encoder in (model.context_encoder, model.target_encoder):
        assert torch.equal(encoder.vit.blocks[1].mlp.fc1.weight, other.blocks[1].mlp.fc1.weight)
        assert encoder.vit.pos_embed.shape == (1, 17, 32)  # from 8 x 8 patches to 4 x 4
    assert model.adapt_tensors(model.state_dict()).keys() == model.state_dict().keys()


@pytest.mark.parametrize("overrides", [[], REFERENCE])
def test_features_of_whole_images_on_every_level(overrides: list[str], root: Path) -> None:
    _, model, batch = build(root, *overrides)
    shapes = [tuple(model.extract_features(batch.images, level).shape) for level in range(3)]
    expected = [16, 8, 4] if overrides else [16, 4, 1]
    assert shapes == [(4, count, 32) for count in expected]


def test_two_views_are_compared_whole(root: Path) -> None:
    """As the C-JEPA loss asks for it: masks do not enter into the contrastive term."""
    _, model, batch = build(root, "model.class_token=true", "loss.type=cjepa")
    model.eval()
    assert batch.second is not None
    _, summaries = model.see(batch.images, batch.layout, batch.second)
    for found, view in zip(summaries, (batch.images, batch.second), strict=True):
        class_token = model.context_encoder.vit(model.pixels(view))[:, 0]
        torch.testing.assert_close(found, class_token)


@pytest.mark.parametrize("token", ["true", "false"])
def test_attention_maps_are_those_of_the_last_block(token: str, root: Path) -> None:
    _, model, batch = build(root, f"model.class_token={token}")
    vit, pixels = model.context_encoder.vit.eval(), model.pixels(batch.images)
    seen: list[torch.Tensor] = []
    block = vit.blocks[-1]
    block.attn.register_forward_hook(lambda _, inputs, result: seen.extend((inputs[0], result)))
    vit(pixels)
    weights = block.attn.weights(seen[0])  # (B, H, T, T)
    value = block.attn.qkv(seen[0]).unflatten(-1, (3, 2, -1))[:, :, 2].transpose(1, 2)
    mixed = (weights @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(block.attn.proj(mixed), seen[1], atol=1e-5, rtol=1e-4)
    maps = vit.attention_maps(pixels)
    assert maps.shape == (4, 2, 16)
    torch.testing.assert_close(maps.sum(-1), torch.ones(4, 2))
    expected = weights[:, :, 0, 1:] if token == "true" else weights.mean(2)
    torch.testing.assert_close(maps, expected / expected.sum(-1, keepdim=True))


def test_the_layout_of_rectangular_images(root: Path) -> None:
    recipe, model, batch = build(root, "data.image_size=[16,32]")
    assert recipe.grid == (4, 8)
    assert batch.images.shape == (4, 3, 16, 32)
    assert torch.isfinite(model(batch.images, batch.layout).predictions[2]).all()
