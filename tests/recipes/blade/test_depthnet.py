"""DepthNet: frozen parts stay frozen and out of checkpoints; foreign weights fit or are refused."""

from pathlib import Path

import pytest
import torch
from small_recipes import BLADE_VIT, SMALL_BLADE, first_batch
from torch import nn

from overt.checkpoint.weights import load_initial
from overt.errors import CheckpointError, ConfigError
from overt.nn.ema import make_average
from overt.recipes.blade.depthnet import DEAD, DepthNet, fingerprint
from overt.recipes.blade.dpt import DepthAnything

PRECISION = "model.depth.backbone_precision"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blade")


def vit_depthnet(root: Path, *overrides: str) -> DepthNet:
    model = SMALL_BLADE["depthnet"].recipe(root, *BLADE_VIT, *overrides).build_model()
    assert isinstance(model, DepthNet)
    return model


def backbone_file(root: Path, prefix: str = "", only: str = "") -> Path:
    """Weights of the backbone as they are published, under any of the three namings."""
    torch.manual_seed(1)
    model = vit_depthnet(root, "model.depth.freeze_backbone=false")
    state = model.depth_backbone.state_dict()
    chosen = {
        prefix + name.removeprefix(only): value
        for name, value in state.items()
        if name.startswith(only)
    }
    path = root / f"backbone_{prefix}{only}.pth"
    torch.save(chosen, path)
    return path


@pytest.mark.parametrize(
    ("prefix", "only"), [("", ""), ("depth_backbone.", ""), ("", "pretrained.")]
)
def test_a_backbone_loads_under_its_published_names(root: Path, prefix: str, only: str) -> None:
    path = backbone_file(root, prefix, only)
    model = vit_depthnet(root, f"model.depth.backbone_checkpoint={path}")
    stored = torch.load(path, weights_only=True)
    own = model.depth_backbone.state_dict()
    name = "pretrained.blocks.0.attn.qkv.weight"
    assert torch.equal(own[name], stored[prefix + name.removeprefix(only)])
    assert model.has_backbone_weights


@pytest.mark.parametrize("size", [40, 50, 100])
def test_crops_of_any_size_have_a_place_for_every_feature(root: Path, size: int) -> None:
    words = f"data.depth_size={size}", "model.depth.head.places=true"
    images = torch.randint(256, (2, 3, size, size), dtype=torch.uint8)
    assert SMALL_BLADE["depthnet"].recipe(root, *words).build_model()(images).shape == (2, 1)
    model = vit_depthnet(
        root, "model.depth.freeze_backbone=false", "model.depth.head.places=true",
        f"model.depth.map_size={size + 1}",
    )  # fmt: skip
    assert model(torch.randint(256, (2, 3, 70, 70), dtype=torch.uint8)).shape == (2, 1)


def test_a_frozen_backbone_does_not_move_nor_train(root: Path) -> None:
    path = backbone_file(root)
    named = f"model.depth.backbone_checkpoint={path}"
    small = (*BLADE_VIT, named, "model.depth.backbone_batch=3")
    recipe = SMALL_BLADE["depthnet"].recipe(root, *small)
    model = recipe.build_model().train()
    assert not model.depth_backbone.training
    before = fingerprint(model.depth_backbone.state_dict())
    batch = first_batch(recipe)
    groups = recipe.parameter_groups(model)
    names = [name for group in groups for name, _ in group["params"]]
    assert all(name.startswith(("depth_interface.", "depth_head.")) for name in names)
    assert [group.get("lr_scale", 1.0) for group in groups] == [1.0, 2.0]
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], 0.1)
    recipe.loss(model, batch, {"samples": torch.tensor(4.0)}, 0).total.backward()
    optimizer.step()
    assert fingerprint(model.depth_backbone.state_dict()) == before
    assert all(value.grad is not None for value in model.parameters() if value.requires_grad)


def test_chunks_and_precision_of_the_frozen_part_change_little(root: Path) -> None:
    path = backbone_file(root)
    named = f"model.depth.backbone_checkpoint={path}"
    images = torch.randint(256, (5, 3, 70, 70), dtype=torch.uint8)
    whole, parts, half = (
        vit_depthnet(root, named, f"model.depth.{option}").eval().features(images)
        for option in ("backbone_batch=null", "backbone_batch=2", "backbone_precision=bf16")
    )
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-4)
    assert parts.stride() == whole.stride()
    assert half.dtype == torch.bfloat16
    assert (half.float() - whole).norm() < 0.05 * whole.norm()


def test_in_8_bit_floats_features_are_off_by_a_few_percent(root: Path) -> None:
    named = f"model.depth.backbone_checkpoint={backbone_file(root)}"
    images = torch.randint(256, (5, 3, 70, 70), dtype=torch.uint8)
    exact, half, eighth = (
        vit_depthnet(root, named, "model.depth.backbone_batch=2", precision).eval()
        for precision in (f"{PRECISION}=fp32", f"{PRECISION}=bf16", f"{PRECISION}=fp8")
    )
    linear = [type(layer).__name__ for layer in eighth.depth_backbone.modules()].count
    assert (linear("Linear"), linear("Fp8Linear")) == (0, 4 * 4)
    expected = exact.features(images)
    for model in (half, eighth):
        found = model.features(images)
        assert found.dtype == torch.bfloat16
        assert (found.float() - expected).norm() < 0.05 * expected.norm()
        both = torch.stack([found.float().flatten(), expected.flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.99
    eighth.from_features(eighth.features(images)).sum().backward()
    assert all(value.grad is None for value in eighth.depth_backbone.parameters())
    # The hash is that of the file, so stage 1 may be trained in another precision.
    assert int(eighth.backbone_mark) == int(exact.backbone_mark)
    exact.load_depthnet(eighth.state_dict(), "stage 1")


def test_a_backbone_in_8_bit_floats_is_saved_and_loaded_bit_for_bit(root: Path) -> None:
    named = f"model.depth.backbone_checkpoint={backbone_file(root)}"
    images = torch.randint(256, (2, 3, 70, 70), dtype=torch.uint8)
    words = ("model.depth.save_frozen=true", f"{PRECISION}=fp8")
    model = vit_depthnet(root, named, *words).eval()
    state = model.state_dict()
    assert state.keys() == vit_depthnet(root, named, words[0]).state_dict().keys()
    loaded = vit_depthnet(root, *words).eval()
    loaded.load_state_dict(state)
    loaded.require_weights("")
    assert fingerprint(loaded.state_dict()) == fingerprint(state)
    torch.testing.assert_close(loaded(images), model(images), rtol=0, atol=0)
    # Without 8-bit floats the weights are those that were rounded.
    wide = vit_depthnet(root, "model.depth.save_frozen=true", f"{PRECISION}=fp32").eval()
    wide.load_state_dict(state)
    torch.testing.assert_close(wide(images), model(images), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((f"{PRECISION}=fp16",), r"backbone_precision=fp16.*use one of fp32, bf16, fp8"),
        ((f"{PRECISION}=fp8", "model.depth.freeze_backbone=false"), r"fp8 .*freeze the backbone"),
        ((f"{PRECISION}=fp8", "model.depth.encoder=conv"), r"fp8 is for vision transformers"),
    ],
)
def test_a_precision_that_a_backbone_cannot_have_is_refused(
    words: tuple[str, ...], message: str, root: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        vit_depthnet(root, *words)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_the_average_of_weights_predicts_what_the_model_does(root: Path, precision: str) -> None:
    named = f"model.depth.backbone_checkpoint={backbone_file(root)}"
    model = vit_depthnet(root, named, f"{PRECISION}={precision}").eval()
    images = torch.randint(256, (2, 3, 70, 70), dtype=torch.uint8)
    found = make_average(model)(images)
    torch.testing.assert_close(found, model(images), rtol=0.05, atol=0.05)


def test_every_part_of_an_unfrozen_backbone_is_trained(root: Path) -> None:
    recipe = SMALL_BLADE["depthnet"].recipe(root, *BLADE_VIT, "model.depth.freeze_backbone=false")
    model = recipe.build_model()
    recipe.loss(model, first_batch(recipe), {"samples": torch.tensor(4.0)}, 0).total.backward()
    idle = [
        n for n, value in model.named_parameters() if value.requires_grad and value.grad is None
    ]
    assert not idle


def test_frozen_parts_stay_out_of_checkpoints_unless_asked_for(root: Path) -> None:
    named = f"model.depth.backbone_checkpoint={backbone_file(root)}"
    lean = vit_depthnet(root, named)
    assert not any(name.startswith("depth_backbone.") for name in lean.state_dict())
    whole = vit_depthnet(root, named, "model.depth.save_frozen=true")
    assert any(name.startswith("depth_backbone.") for name in whole.state_dict())
    assert int(lean.state_dict()["backbone_mark"]) == int(whole.backbone_mark) != 0


def test_without_weights_the_frozen_backbone_is_refused(root: Path) -> None:
    model = vit_depthnet(root)
    with pytest.raises(CheckpointError, match="frozen depth backbone has no weights"):
        model.require_weights("")
    complete = vit_depthnet(
        root, f"model.depth.backbone_checkpoint={backbone_file(root)}",
        "model.depth.save_frozen=true",
    )  # fmt: skip
    loaded = vit_depthnet(root, "model.depth.save_frozen=true")
    loaded.load_state_dict(complete.state_dict())
    loaded.require_weights("")
    with pytest.raises(ConfigError, match=r"freeze_backbone=true needs.*backbone_checkpoint"):
        SMALL_BLADE["depthnet"].recipe(root, *BLADE_VIT).build_dataset()


def test_a_published_stage_one_file_loads_strictly(root: Path) -> None:
    torch.manual_seed(2)
    source = vit_depthnet(root, "model.depth.freeze_backbone=false")
    tensors = {name: value for name, value in source.state_dict().items() if "mark" not in name}
    tensors |= {name: torch.zeros(1) for name in DEAD}
    model = vit_depthnet(root)
    model.load_depthnet(tensors, "epoch_4.pth")
    images = torch.randint(256, (2, 3, 70, 70), dtype=torch.uint8)
    torch.testing.assert_close(model.eval()(images), source.eval()(images), atol=1e-5, rtol=1e-4)
    del tensors["depth_head.dec_z.z_out.bias"]
    with pytest.raises(CheckpointError, match=r"lacks 1 tensors, such as depth_head.dec_z.z_out"):
        model.load_depthnet(tensors, "epoch_4.pth")


def test_a_stage_one_checkpoint_of_another_backbone_is_refused(root: Path) -> None:
    named = f"model.depth.backbone_checkpoint={backbone_file(root)}"
    wide = vit_depthnet(
        root, "model.depth.freeze_backbone=false", "model.depth.custom.width=48",
        "model.depth.save_frozen=true",
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=r"another backbone.*Set model\.depth\.encoder"):
        vit_depthnet(root).load_depthnet(wide.state_dict(), "other")
    with pytest.raises(CheckpointError, match=r"crops of 70 pixels.*set data\.depth_size=70$"):
        vit_depthnet(root, "data.depth_size=56").load_depthnet(
            vit_depthnet(root, named, "model.depth.save_frozen=true").state_dict(), "other"
        )
    state = vit_depthnet(root, named).state_dict()
    with pytest.raises(CheckpointError, match=r"another head.*Set model\.depth\.channels and"):
        vit_depthnet(root, named, "model.depth.head.hidden=40").load_depthnet(state, "other")
    conv = SMALL_BLADE["depthnet"].recipe(root).build_model().state_dict()
    larger = SMALL_BLADE["depthnet"].recipe(root, "data.depth_size=96").build_model()
    with pytest.raises(CheckpointError, match=r"another map.*Set data\.depth_size"):
        larger.load_depthnet(conv, "other")
    # Of the same sizes, but other weights: the head alone could not tell.
    tensors = dict(vit_depthnet(root, named).state_dict())
    tensors["backbone_mark"] = tensors["backbone_mark"] + 1
    with pytest.raises(CheckpointError, match="on top of another depth backbone"):
        vit_depthnet(root, named).load_depthnet(tensors, "other")


def test_a_backbone_may_have_seen_crops_of_another_size(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    named = f"model.depth.backbone_checkpoint={backbone_file(root)}"
    (same, other) = (
        vit_depthnet(root, named, f"data.depth_size={size}").depth_backbone.pretrained
        for size in (70, 56)
    )
    assert "position table resized from (5, 5) to (4, 4) patches" in caplog.text
    assert torch.equal(same.cls_token, other.cls_token)
    tables = (same.pos_embed[:, 1:].mean(), other.pos_embed[:, 1:].mean())
    torch.testing.assert_close(*tables, atol=2e-3, rtol=0)


def test_depthnet_grows_with_its_crops(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = ("model.depth.freeze_backbone=false", "model.depth.map_size=16")
    small = vit_depthnet(root, *trained, "data.depth_size=42")
    torch.save(small.state_dict(), root / "small.pth")
    large = vit_depthnet(root, *trained, "data.depth_size=70")
    load_initial(root / "small.pth", large, [])
    assert "position table resized from (3, 3) to (5, 5) patches" in caplog.text
    loaded = large.state_dict()
    for name, value in small.state_dict().items():
        if not name.endswith("pos_embed"):
            assert torch.equal(loaded[name], value), name
    tables = (model.depth_backbone.pretrained.pos_embed for model in (small, large))
    first, grown = (table[:, 1:].mean() for table in tables)
    torch.testing.assert_close(grown, first, atol=3e-3, rtol=0)


def test_each_compiled_unit_is_used_through_its_forward(root: Path) -> None:
    recipe = SMALL_BLADE["depthnet"].recipe(root, *BLADE_VIT, "model.depth.freeze_backbone=false")
    model = recipe.build_model()
    used = []
    units = recipe.compile_units(model)
    for unit in units:
        unit.register_forward_hook(lambda module, *_: used.append(module))
    model(torch.zeros(1, 3, 70, 70, dtype=torch.uint8))
    assert used == units
    assert model.depth_backbone.depth_head in units


def test_the_depth_stays_within_its_limits(root: Path) -> None:
    model = vit_depthnet(root, "model.depth.freeze_backbone=false").eval()
    nn.init.constant_(model.depth_head.dec_z.z_out.bias, 100.0)
    depth = model(torch.zeros(1, 3, 70, 70, dtype=torch.uint8))
    assert depth.item() == pytest.approx(10.0)
    assert isinstance(model.depth_backbone, DepthAnything)
