"""PoseNet: starts at the base, is told the depth, and trains only what it may."""

import shutil
from pathlib import Path

import pytest
import torch
from small_recipes import SMALL_BLADE, first_batch, stage_one

from overt.errors import CheckpointError, ConfigError
from overt.geometry.rotation import axis_angle_to_matrix
from overt.recipes.blade.posenet import PoseNet, sine_positions


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blade")
    stage_one(folder)
    return folder


@pytest.fixture(scope="module")
def base(root: Path) -> Path:
    """A base estimator whose heads say something."""
    torch.manual_seed(3)
    model = SMALL_BLADE["posenet"].recipe(root, "model.tz_conditioning=false").build_model()
    torch.nn.init.normal_(model.heads.pose6d[-1].weight, std=0.1)
    path = root / "base.pth"
    torch.save(model.state_dict(), path)
    return path


def build(root: Path, *overrides: str) -> PoseNet:
    named = f"model.depthnet_checkpoint={stage_one(root)}"
    model = SMALL_BLADE["posenet"].recipe(root, named, *overrides).build_model()
    assert isinstance(model, PoseNet)
    return model


def images(count: int = 3) -> torch.Tensor:
    return torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)


def test_it_starts_as_the_mean_person_upright(root: Path) -> None:
    output = build(root).eval()(images(), images())
    expected = torch.eye(3).repeat(3, 22, 1, 1)
    expected[:, 0] = axis_angle_to_matrix(torch.tensor([torch.pi, 0.0, 0.0]))
    torch.testing.assert_close(output.rotations, expected, atol=1e-6, rtol=0)
    assert output.shape.abs().max() == 0
    assert output.keypoints.shape == (3, 12, 2)
    assert output.visible is None
    assert output.depth.shape == (3,)


def test_the_depth_has_no_effect_at_the_start_and_a_gradient(root: Path, base: Path) -> None:
    model = build(root, f"model.base_checkpoint={base}", "model.control_output=sum").eval()
    near, far = (model.from_depth(torch.full((3,), depth), images()) for depth in (0.5, 5.0))
    same = images()
    near, far = (model.from_depth(torch.full((3,), depth), same) for depth in (0.5, 5.0))
    torch.testing.assert_close(near.rotations, far.rotations)
    near.rotations.square().sum().backward()
    assert all(value.grad is not None for value in model.branch.tz.parameters())


def test_the_control_path_starts_at_the_base(root: Path, base: Path) -> None:
    controlled = build(root, f"model.base_checkpoint={base}").eval()
    alone = SMALL_BLADE["posenet"].recipe(root, "model.tz_conditioning=false").build_model().eval()
    alone.load_state_dict(torch.load(base, weights_only=True))
    near, whole = images(), images()
    torch.testing.assert_close(
        controlled(near, whole).rotations, alone(near, whole).rotations, atol=1e-5, rtol=1e-4
    )
    doubled = build(root, f"model.base_checkpoint={base}", "model.control_output=sum").eval()
    difference = doubled(near, whole).rotations - alone(near, whole).rotations
    assert difference.abs().max() > 1e-3  # the published way sees doubled tokens


def test_only_the_copy_trains_beside_a_base(root: Path, base: Path) -> None:
    named = f"model.depthnet_checkpoint={stage_one(root)}"
    recipe = SMALL_BLADE["posenet"].recipe(root, named, f"model.base_checkpoint={base}")
    model = recipe.build_model().train()
    for frozen in (model.depthnet, model.base, model.heads):
        assert not frozen.training
        assert not any(value.requires_grad for value in frozen.parameters())
    batch = first_batch(recipe)
    counts = {"samples": torch.tensor(4.0)} | recipe.counts(batch)
    output = recipe.loss(model, batch, counts, 0)
    assert "keypoint_loss" not in output.losses
    output.total.backward()
    idle = [
        n for n, value in model.named_parameters() if value.requires_grad and value.grad is None
    ]
    assert not idle


@pytest.mark.parametrize("conditioned", [True, False])
def test_everything_that_trains_gets_a_gradient(root: Path, conditioned: bool) -> None:
    named = f"model.depthnet_checkpoint={stage_one(root)}"
    flag = f"model.tz_conditioning={str(conditioned).lower()}"
    recipe = SMALL_BLADE["posenet"].recipe(root, named, flag)
    model = recipe.build_model().train()
    assert (model.depthnet is not None) == conditioned
    batch = first_batch(recipe)
    counts = {"samples": torch.tensor(4.0)} | recipe.counts(batch)
    recipe.loss(model, batch, counts, 0).total.backward()
    idle = [
        n for n, value in model.named_parameters() if value.requires_grad and value.grad is None
    ]
    assert not idle


def test_stage_one_is_needed_and_asked_for(root: Path) -> None:
    recipe = SMALL_BLADE["posenet"].recipe(root)
    with pytest.raises(ConfigError, match=r"set model\.depthnet_checkpoint.*overt stages"):
        recipe.build_dataset()
    with pytest.raises(
        CheckpointError, match=r"DepthNet has no weights.*model\.depthnet_checkpoint"
    ):
        recipe.build_model().require_weights()


NAMED = {
    "depthnet": ["model.depth.backbone_checkpoint"],
    "posenet": [
        "model.depthnet_checkpoint",
        "model.base_checkpoint",
        "model.depth.backbone_checkpoint",
        "model.branch.backbone_checkpoint",
    ],
}


@pytest.mark.parametrize(("stage", "key"), [(s, key) for s, keys in NAMED.items() for key in keys])
def test_weights_that_are_not_there_are_noticed_before_people_are_rendered(
    stage: str, key: str, root: Path, tmp_path: Path
) -> None:
    words = [f"data.root={tmp_path}", f"{key}=nowhere"]
    if stage == "posenet" and key != "model.depthnet_checkpoint":
        words.append(f"model.depthnet_checkpoint={stage_one(root)}")
    recipe = SMALL_BLADE[stage].recipe(root, *words)
    with pytest.raises(CheckpointError, match=rf"{key}=nowhere: no such checkpoint"):
        recipe.build_dataset()
    assert not [*tmp_path.iterdir()]


def test_a_base_estimator_asks_for_no_depthnet(root: Path) -> None:
    words = ["model.tz_conditioning=false", "model.depthnet_checkpoint=nowhere"]
    assert len(SMALL_BLADE["posenet"].recipe(root, *words).build_dataset()) > 0


def test_a_stage_one_checkpoint_of_another_size_is_refused(root: Path) -> None:
    with pytest.raises(CheckpointError, match=r"another backbone than model\.depth says"):
        build(root, "model.depth.channels=64")


def test_weights_of_another_resnet_are_refused(root: Path) -> None:
    """And those of an equal one are loaded."""
    alone, file = "model.tz_conditioning=false", root / "resnet.pth"
    key = f"model.branch.backbone_checkpoint={file}"
    torch.manual_seed(5)
    source = SMALL_BLADE["posenet"].recipe(root, alone).build_model().branch.backbone.state_dict()
    torch.save(source, file)
    loaded = SMALL_BLADE["posenet"].recipe(root, alone, key).build_model().branch.backbone
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, source[name])
    with pytest.raises(CheckpointError, match=r"other shapes of .* set model\.branch\.width"):
        SMALL_BLADE["posenet"].recipe(root, alone, key, "model.branch.width=32").build_model()
    with pytest.raises(CheckpointError, match=r"lacks \d+ of \d+ tensors, such as bn1\.running_"):
        SMALL_BLADE["posenet"].recipe(root, alone, key, "model.branch.norm=frozen").build_model()


def test_the_log_says_how_depthnet_differs_from_stage_one(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No tensor tells the precision or the largest depth: such a checkpoint fits in any case."""
    build(root)
    assert not caplog.messages
    build(root, "model.depth.head.max_depth=20")
    assert "model.depth.head.max_depth=10.0, here 20.0" in caplog.messages[0]
    caplog.clear()
    stage = tmp_path / "stage_one"
    shutil.copytree(stage_one(root), stage)
    text = (stage / "config.yaml").read_text()
    changed = text.replace("backbone_precision: fp32", "backbone_precision: fp8")
    (stage / "config.yaml").write_text(
        changed.replace("freeze_backbone: false", "freeze_backbone: true")
    )
    assert changed != text
    build(root, f"model.depthnet_checkpoint={stage}")
    assert "model.depth.backbone_precision=fp8, here fp32" in caplog.messages[0]
    (stage / "config.yaml").unlink()  # an export has none
    caplog.clear()
    build(root, f"model.depthnet_checkpoint={stage}")
    assert not caplog.messages


def test_a_base_that_does_not_fit_is_refused(root: Path, base: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.base_checkpoint=.*does not fit"):
        build(root, f"model.base_checkpoint={base}", "model.branch.features=32")
    with pytest.raises(ConfigError, match="the base itself is trained without a base"):
        build(root, f"model.base_checkpoint={base}", "model.tz_conditioning=false")


def test_frozen_parts_stay_out_of_lean_checkpoints(root: Path, base: Path) -> None:
    named = f"model.base_checkpoint={base}"
    lean = build(root, named, "model.depth.save_frozen=false").state_dict()
    whole = build(root, named).state_dict()
    assert not any(name.startswith(("depthnet.", "base.", "heads.")) for name in lean)
    assert {name.partition(".")[0] for name in whole} >= {"depthnet", "base", "heads", "branch"}
    again = SMALL_BLADE["posenet"].recipe(root).build_model()
    again.load_state_dict(build(root).state_dict())
    again.require_weights()  # a whole checkpoint is complete in itself


def test_positions_differ_everywhere() -> None:
    table = sine_positions((4, 6), 16, torch.device("cpu"))
    assert table.shape == (24, 16)
    assert torch.cdist(table, table).add(torch.eye(24) * 9).min() > 0.05


def test_visibility_of_keypoints_is_trained_with_them(root: Path, base: Path) -> None:
    named = f"model.depthnet_checkpoint={stage_one(root)}"
    recipe = SMALL_BLADE["posenet"].recipe(root, named, "model.keypoint_visibility=true")
    model = recipe.build_model()
    batch = first_batch(recipe)
    counts = {"samples": torch.tensor(4.0), **recipe.counts(batch)}
    output = recipe.loss(model, batch, counts, 1)
    # Untrained, about log(2) for each keypoint, by the default weight of 0.1.
    assert 0.03 < output.losses["visibility_loss"] < 0.2
    output.total.backward()
    assert model.heads.visibility.weight.grad.abs().max() > 0
    assert model(images(), images()).visible.shape == (3, 12)
    for wrong in ("model.keypoint_head=false", f"model.base_checkpoint={base}"):
        with pytest.raises(ConfigError, match=r"model\.keypoint_visibility=true needs"):
            build(root, "model.keypoint_visibility=true", wrong)
