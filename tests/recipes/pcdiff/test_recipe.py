"""The PCDiff recipes through the engine: they compose, learn, split, resume and are scored."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from small_recipes import PCDIFF_SPLIT, SMALL_PCDIFF, curve, first_batch
from toy_runs import read_rows

from overt.checkpoint.trained import load_model
from overt.cli import main
from overt.config import CONF, Config, build_recipe, load
from overt.config.batch import advice, plan_batches, scaled_learning_rate
from overt.distributed import init_distributed
from overt.errors import ConfigError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pcdiff")
    SMALL_PCDIFF.recipe(root).build_dataset()  # writes the skulls
    return root


@cache
def official() -> Config:
    return load(["recipe=pcdiff", "data.root=somewhere"])


def test_the_official_recipe_has_the_numbers_of_the_paper() -> None:
    config = official()
    assert config.training.num_epochs == 15000
    assert config.training.global_batch_size == 8
    assert config.optimizer.lr == 2e-4
    assert config.optimizer.arguments["betas"] == [0.5, 0.999]
    data = config.settings.data
    assert (data.num_points, data.num_implant_points) == (30720, 3072)
    assert [level.centers for level in config.settings.model.down] == [10240, 2560, 640, 160]


def test_the_published_recipe_has_none_of_the_differences_that_pcdiff_names() -> None:
    published = load(["recipe=pcdiff_published", "data.root=somewhere"])
    assert published.training.precision == "fp32"
    assert published.training.ema_momentum is None
    assert published.training.grad_clip_norm is None
    assert published.settings.evaluation.sampler == "ddpm"
    lines = [set(config.text.splitlines()) for config in (published, official())]
    differing = {line.split(":")[0].strip() for line in lines[0] ^ lines[1]}
    assert differing == {"exp_name", "name", "precision", "ema_momentum", "sampler"}


@pytest.mark.parametrize(
    ("batch", "processes", "each", "linear", "sqrt"),
    [(8, 1, 8, 2e-4, 2e-4), (16, 2, 8, 4e-4, 2.83e-4), (64, 8, 8, 1.6e-3, 5.66e-4),
     (128, 16, 8, 3.2e-3, 8e-4), (8, 8, 1, 2e-4, 2e-4)],
)  # fmt: skip
def test_the_table_of_the_scaling_guide(
    batch: int, processes: int, each: int, linear: float, sqrt: float
) -> None:
    training = replace(official().training, global_batch_size=batch)
    plan = plan_batches(training, processes)
    assert plan.batch_size == each
    for rule, expected in (("none", 2e-4), ("linear", linear), ("sqrt", sqrt)):
        optimizer = replace(official().optimizer, lr_scaling=rule)
        rate = scaled_learning_rate(optimizer, plan.global_batch_size)
        assert rate == pytest.approx(expected, rel=2e-3)
        hint = advice(training, optimizer, plan)
        assert (hint is not None) == (each < 8)


REFUSED = {
    "model.diffusion.schedule=lineer": "did you mean linear",
    "model.diffusion.beta_end=1.5": "beta_start < beta_end < 1",
    "model.dropout=1.0": "at least 0 and below 1",
    "model.width_multiplier=0.3": "multiple of 8",
    "model.up=[]": "expected equally many",
    "data.dataset=skullbrake": "did you mean skullbreak",
    "data.num_points=20": "it must be larger",
    "loss.type=mae": "did you mean mse",
    "evaluation.sampler=dpm": "did you mean ddpm",
    "evaluation.steps=1": "2 to model.diffusion.steps",
    "evaluation.ensemble=0": "at least 1",
    "evaluation.found_mm=0": "above 0",
    "evaluation.seed=-1": r"evaluation\.seed=-1; it must be at least 0",
    "data.synthetic.seed=-1": r"data\.synthetic\.seed=-1; it must be at least 0",
    "data.synthetic.side=2": r"data\.synthetic\.side=2; it must be at least 8",
    "data.synthetic.points=0": r"data\.synthetic\.points=0; it must be at least 1",
    "data.synthetic.count=0": r"data\.synthetic\.count=0; it must be at least 1",
    "model.diffusion.shared_noise=-1": "at least 0",
}


@pytest.mark.parametrize("override", REFUSED)
def test_impossible_settings_are_refused(override: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=REFUSED[override]):
        SMALL_PCDIFF.config(tmp_path, override)


def test_sparse_clouds_train_the_weights_of_the_published_size() -> None:
    shapes = []
    for name in ("pcdiff_large_sparse", "pcdiff_large"):
        with torch.device("meta"):
            model = build_recipe(load([f"recipe={name}"])).build_model()
        shapes.append({key: value.shape for key, value in model.state_dict().items()})
    assert shapes[0] == shapes[1]
    large, published = load(["recipe=pcdiff_large"]).settings, official().settings
    assert large.data.num_points == published.data.num_points
    assert large.model.down == published.model.down
    assert large.model.up == published.model.up


@pytest.mark.parametrize("kind", ["mse", "mse_minsnr", "kl"])
def test_the_loss_is_a_share_of_the_global_batch(kind: str, root: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(root, f"loss.type={kind}")
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    whole = first_batch(recipe, 4)
    counts = {"samples": torch.tensor(4)}
    total = recipe.loss(model, whole, counts, 0)
    assert torch.isfinite(total.total)
    parts = []
    for first in (0, 2):
        names = ("known", "implant", "noise", "times")
        fields = {name: getattr(whole, name)[first : first + 2] for name in names}
        part = type(whole)(**fields, names=whole.names[first : first + 2])
        parts.append(recipe.loss(model, part, counts, 0))
    added = sum(part.total for part in parts)
    torch.testing.assert_close(added, total.total, atol=1e-5, rtol=1e-4)
    assert float(sum(part.metrics["pair_room_used"] for part in parts)) == pytest.approx(1.0)


def test_geometry_found_before_the_step_is_that_of_the_step(root: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(root)
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    batch, counts = first_batch(recipe, 3), {"samples": torch.tensor(3)}
    prepared = recipe.on_device(batch)
    assert batch.geometry is None
    assert prepared.geometry is not None
    # Another batch's geometry would be taken as well: what is handed over is what is used.
    other = recipe.on_device(replace(batch, noise=batch.noise.flip(0))).geometry
    losses = [
        recipe.loss(model, item, counts, 0).total
        for item in (batch, prepared, replace(batch, geometry=other))
    ]
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


def test_low_precision_changes_the_loss_little(root: Path) -> None:
    recipe = SMALL_PCDIFF.recipe(root)
    torch.manual_seed(0)
    model = recipe.build_model().eval()
    batch, counts = first_batch(recipe, 3), {"samples": torch.tensor(3)}
    exact = recipe.loss(model, batch, counts, 0).total
    with torch.autocast("cpu", torch.bfloat16):
        rough = recipe.loss(model, batch, counts, 0).total
    assert rough.dtype == torch.float32
    assert float(rough.detach()) == pytest.approx(float(exact.detach()), rel=0.02)
    rough.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_step_without_room_for_all_neighbours_has_no_loss(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = SMALL_PCDIFF.recipe(root)
    batch = first_batch(recipe, 2)
    geometry = "overt.recipes.pcdiff.geometry.Geometry.fullest"
    monkeypatch.setattr(geometry, lambda self: torch.tensor(1.2))
    output = recipe.loss(recipe.build_model(), batch, {"samples": torch.tensor(2)}, 0)
    assert output.total.isnan()


@pytest.mark.long  # bf16 is emulated on most CPUs
def test_steps_in_bf16_follow_those_in_float32(root: Path) -> None:
    for precision in ("fp32", "bf16"):
        words = [*PCDIFF_SPLIT, "training.num_steps=15", "training.batch_size=4"]
        words += [f"exp_name={precision}", f"training.precision={precision}"]
        SMALL_PCDIFF.train(root, *words, dropout=False)
    exact, fast = (np.array(curve(root / "runs" / name)) for name in ("fp32", "bf16"))
    noise = exact.std()  # of the loss from batch to batch
    assert np.abs(fast - exact).mean() < 0.1 * noise
    assert abs(fast[-10:].mean() - exact[-10:].mean()) < 0.1 * noise


@pytest.mark.long
def test_it_learns_and_is_scored(root: Path) -> None:
    trainer = SMALL_PCDIFF.trainer(
        root, "exp_name=learns", "training.num_steps=40", "evaluation.volumes=true"
    )
    scores = trainer.train()
    losses = curve(root / "runs" / "learns")
    assert np.mean(losses[-8:]) < 0.75 * np.mean(losses[:4])
    assert {"chamfer_mm", "f_score", "noise_chamfer_mm", "val_loss", "dsc", "bdsc"} <= set(scores)
    assert scores["noise_chamfer_mm"] > 0
    rows = read_rows(root / "runs" / "learns")
    assert any("train/noise_error" in row for row in rows)
    with torch.inference_mode():
        picture = trainer.recipe.visualize(trainer.model)["implants"]
    assert picture.shape == (3, 18 + 4 * 220, 4 * 220)


def test_empty_implants_are_counted_in_one_line(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Points of an untrained network enclose no solid."""
    recipe = SMALL_PCDIFF.recipe(root, "evaluation.volumes=true")
    torch.manual_seed(0)
    with torch.inference_mode():
        scores = recipe.evaluate(recipe.build_model().eval(), init_distributed("cpu"))
    assert scores["dsc"] == 0
    assert scores["ceiling_dsc"] > 0.1
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("3 of 3 sampled implants are empty")


@pytest.mark.parametrize("name", ["", "_published", "_tiny"])
def test_learning_rates_are_scaled_from_the_batch_of_the_recipe(name: str) -> None:
    config = load([f"recipe=pcdiff{name}", "data.root=somewhere", "optimizer.lr_scaling=sqrt"])
    batch = config.training.global_batch_size
    assert batch == config.optimizer.lr_base_batch
    assert scaled_learning_rate(config.optimizer, batch) == config.optimizer.lr
    assert scaled_learning_rate(config.optimizer, 4 * batch) == 2 * config.optimizer.lr


def test_synthetic_skulls_have_no_other_axes() -> None:
    """Otherwise `overt complete` would rotate scans away from the training data."""
    with pytest.raises(ConfigError, match=r"data\.axes=RAS, but data\.synthetic writes skulls"):
        load(["recipe=pcdiff_tiny", "data.axes=RAS"])
    config = load(["recipe=pcdiff_tiny", "data.axes=RAS", "data.synthetic=null"])
    assert config.settings.data.axes == "RAS"


def test_the_tiny_recipe_is_complete_and_small() -> None:
    config = load(["recipe=pcdiff_tiny"])
    assert config.training.num_steps <= 2500
    assert config.settings.data.synthetic is not None


def test_the_voxels_of_clouds_are_known_from_the_settings_where_these_tell() -> None:
    assert load(["recipe=pcdiff_medium"]).settings.data.voxel_mm == 200 / 128
    published = ["recipe=pcdiff", "data.root=/skulls"]
    assert load(published).settings.data.voxel_mm is None
    assert load([*published, "data.dataset=skullfix"]).settings.data.voxel_mm == 0.45


def test_a_checkpoint_records_the_voxels_of_its_training_clouds(root: Path, tmp_path: Path) -> None:
    """They are known wherever the model is used, whatever its settings are then; exports too."""
    made_in = (200 / 24,) * 3
    words = ("data.synthetic=null", "training.num_steps=1", f"output_dir={tmp_path}",
             "evaluation.cases=1", "evaluation.loss_times=0")  # fmt: skip
    run = SMALL_PCDIFF.train(root, *words, "training.evaluate_every_steps=null")
    checkpoint = run / "checkpoints" / "latest"
    assert main(["ckpt", "export", str(checkpoint), "--to", "safetensors", "--output",
                 str(tmp_path / "a.safetensors")]) == 0  # fmt: skip
    assert main(["ckpt", "export", str(checkpoint), "--to", "hub", "--output",
                 str(tmp_path / "hub")]) == 0  # fmt: skip
    for weights in (checkpoint, tmp_path / "a.safetensors", tmp_path / "hub"):
        recipe = SMALL_PCDIFF.recipe(tmp_path, "data.synthetic=null")
        assert recipe.cloud_spacing is None
        load_model(recipe, weights)
        assert recipe.cloud_spacing == pytest.approx(made_in)
    for broken in ("x", [1.0], [1.0, 2.0, -3.0], [1.0, 2.0, float("nan")], [True] * 3, None):
        recipe.cloud_spacing = None
        recipe.recall_training({"cloud_spacing": broken})
        assert recipe.cloud_spacing is None


def test_recipes_that_share_a_folder_of_synthetic_skulls_ask_for_the_same_skulls() -> None:
    """A folder holds skulls of one setting; the second recipe would be refused."""
    asked: dict[str, set[str]] = {}
    for file in sorted((CONF / "recipe").glob("pcdiff*.yaml")):
        data = load([f"recipe={file.stem}"]).settings.data
        if data.synthetic is not None:
            asked.setdefault(data.root, set()).add(str(data.synthetic))
    assert len(asked) > 1
    assert all(len(settings) == 1 for settings in asked.values())
