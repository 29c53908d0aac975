"""The LBM recipe through the engine: it composes, its shares add up, it resumes bit for bit."""

import math
from pathlib import Path

import pytest
import torch
from small_recipes import SMALL_LBM, first_batch
from toy_runs import losses_by_step

from overt.config import build_recipe, load
from overt.data.tracking.clips import TrackBatch
from overt.distributed import init_distributed
from overt.engine.trainer import Trainer
from overt.errors import ConfigError, DataError
from overt.recipes.lbm.recipe import LBMRecipe
from overt.schedule_section import build_schedule


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sequences")


def one_sample(batch: TrackBatch, number: int) -> TrackBatch:
    tensors = ("video", "tracks", "visibility", "valid", "queries", "redrawn")
    own = {name: getattr(batch, name)[number : number + 1] for name in tensors}
    return TrackBatch(**own, names=batch.names[number : number + 1])


def test_the_official_recipe_composes_with_the_official_numbers() -> None:
    config = load(["recipe=lbm", "data.root=somewhere"])
    model, data, loss = config.settings.model, config.settings.data, config.settings.loss
    assert (list(model.input_size), model.embed_dim, model.memory_size) == ([384, 512], 256, 12)
    assert (model.num_heads, model.num_levels, model.num_neighbors) == (4, 4, 9)
    assert (model.dropout, model.random_memory_mask_drop) == (0.1, 0.1)
    assert (model.visible_threshold, model.temperature) == (0.8, 0.05)
    assert (data.frames, data.points, list(data.crop_size)) == (24, 256, [384, 512])
    assert data.augmentation.replace_probability == data.augmentation.erase_probability == 0.5
    assert (loss.classification_weight, loss.after_query) == (3.0, True)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (5e-4, 1e-5)
    assert config.optimizer.arguments == {"betas": [0.9, 0.999], "eps": 1e-8}
    assert (config.training.num_epochs, config.training.batch_size) == (150, 4)
    assert (config.training.precision, config.training.grad_clip_norm) == ("fp16", 1.0)


def test_recomputation_follows_the_memory_at_hand() -> None:
    """The fastest value that fits: 4 clips of 24 frames."""
    settings = load(["recipe=lbm", "data.root=none"]).settings
    chosen = {}
    for gib in (141.0, 24.0, 8.0, 0.1):
        recipe = LBMRecipe(settings)
        assert recipe.recompute == "frames"  # until the engine asks, as on a CPU
        assert recipe.fit_memory(4, gib) is not None
        chosen[gib] = recipe.recompute
    assert chosen == {141.0: "none", 24.0: "maps", 8.0: "frames", 0.1: "frames"}
    fixed = LBMRecipe(load(["recipe=lbm", "data.root=none", "model.recompute=maps"]).settings)
    assert fixed.fit_memory(4, 8.0) is None
    assert fixed.recompute == "maps"


def test_the_rate_warms_up_for_a_hundredth_and_falls_to_zero() -> None:
    config = load(["recipe=lbm", "data.root=somewhere"])
    rate = build_schedule(config.schedule, 5e-4, 150, 40)
    steps, warmup = 6000, 60
    for step in (0, 1, 30, 59):
        assert rate(step) == pytest.approx(5e-4 * (1e-5 + (1 - 1e-5) * step / warmup))
    for step in (60, 1000, 5999):
        wanted = 5e-4 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
        assert rate(step) == pytest.approx(wanted, abs=1e-15)


@pytest.mark.parametrize(
    ("name", "memory"), [("davis", 20), ("kinetics", 36), ("robotap", 60), ("rgb_stacking", 48)]
)
def test_every_data_set_has_its_memory(name: str, memory: int) -> None:
    words = ["recipe=lbm", f"evaluation=lbm_{name}", "evaluation.dataset_root=x"]
    settings = load(words).settings.evaluation
    assert (settings.dataset, settings.memory_size) == (f"tapvid_{name}", memory)


def test_an_online_tracker_has_the_settings_of_evaluation() -> None:
    recipe = SMALL_LBM.recipe("x", "evaluation.memory_size=7", "evaluation.visible_threshold=0.3")
    model = recipe.build_model().eval()
    tracker = recipe.online_tracker(model, (40, 52), 5)
    assert (tracker.frame_size, tracker.slots, tracker.compile) == ((40, 52), 5, False)
    assert (tracker.memory_size, tracker.threshold) == (7, 0.3)
    assert recipe.online_tracker(model, (40, 52), 5, compile=True).compile


def test_shares_of_single_samples_add_up_to_the_loss_of_the_batch(data_root: Path) -> None:
    """In evaluation mode: batch statistics are of a micro-batch, by their nature."""
    recipe = SMALL_LBM.recipe(data_root)
    model = recipe.build_model().eval()
    batch = first_batch(recipe, 3)
    counts = recipe.counts(batch)
    whole = recipe.loss(model, batch, counts, 0)
    shares = [recipe.loss(model, one_sample(batch, number), counts, 0) for number in range(3)]
    for name, value in (whole.losses | whole.metrics).items():
        total = sum((share.losses | share.metrics)[name] for share in shares)
        torch.testing.assert_close(total, value, atol=1e-5, rtol=1e-4)


def test_filling_changes_no_loss(data_root: Path) -> None:
    """A clip with too few tracks is filled up; the filling has neither loss nor count."""
    few = SMALL_LBM.recipe(data_root, "data.points=500", "data.augment=false")
    batch = first_batch(few, 1)
    count = int(batch.valid.sum())
    cut = TrackBatch(
        batch.video,
        batch.tracks[:, :, :count],
        batch.visibility[:, :, :count],
        batch.valid[:, :count],
        batch.queries[:, :count],
        batch.redrawn,
        batch.names,
    )
    model = few.build_model().eval()
    filled, bare = (few.loss(model, one, few.counts(one), 0) for one in (batch, cut))
    for name, value in bare.losses.items():
        torch.testing.assert_close(filled.losses[name], value, atol=1e-5, rtol=1e-4)


def run(folder: Path, data_root: Path, *overrides: str) -> Trainer:
    config = SMALL_LBM.config(
        data_root,
        f"output_dir={folder}",
        "logging.use_tensorboard=false",
        "logging.every_steps=1",
        "training.batch_size=1",
        "training.evaluate_every_steps=null",
        "model.dropout=0.1",
        *overrides,
    )
    trainer = Trainer(config, build_recipe(config), init_distributed("cpu"))
    trainer.train()
    return trainer


def stop_at(step: int):  # type: ignore[no-untyped-def]
    """Ends a run by force right after its checkpoint at `step`."""
    plain = Trainer.is_due

    def is_due(self: Trainer, every: int | None) -> bool:
        if self.state.step == step and every == self.config.checkpoint.every_steps:
            self.save()
            self.manager.wait()
            raise KeyboardInterrupt
        return plain(self, every)

    return is_due


def test_half_precision_trains_and_a_skipped_step_is_counted(
    data_root: Path, tmp_path: Path
) -> None:
    trainer = run(
        tmp_path, data_root, "training.num_steps=2", "training.precision=fp16",
        "evaluation.points_per_sequence=4",
    )  # fmt: skip
    assert trainer.state.step == 2
    assert trainer.scaler.is_enabled()
    assert trainer.state.skipped in (0, 1, 2)
    assert trainer.state.updates == 2 - trainer.state.skipped


def test_an_overflow_is_skipped_counted_and_said(
    data_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = LBMRecipe.loss

    def overflow(self, model, batch, counts, step):  # type: ignore[no-untyped-def]
        output = plain(self, model, batch, counts, step)
        return output.scaled(math.inf) if step == 0 else output

    monkeypatch.setattr(LBMRecipe, "loss", overflow)
    trainer = run(
        tmp_path, data_root, "training.num_steps=3", "training.precision=fp16",
        "evaluation.points_per_sequence=4",
    )  # fmt: skip
    assert trainer.state.skipped >= 1
    assert "skipped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.input_size=[100,512]"], r"model\.input_size=\[100, 512\]; .* multiples of 32"),
        (["model.embed_dim=30"], r"not a multiple of model\.num_heads"),
        (["model.num_layers=1"], r"model\.num_layers=1; it must be at least 2"),
        (["model.num_levels=5"], "at most 4"),
        (["model.top_k_regions=300"], r"model\.top_k_regions=300; at most \d+, the cells"),
        (["model.dropout=1.0"], r"model\.dropout=1\.0; it must be at least 0 and below 1"),
        (["model.temperature=0"], r"model\.temperature=0"),
        (["model.visible_threshold=1"], r"model\.visible_threshold=1"),
        (["loss.visibility_weight=-1"], r"visibility_weight=-1\.0; it must be at least 0"),
        (["loss.classification_weight=-1"], r"classification_weight=-1"),
        (["data.points=0"], r"data\.points=0; it must be at least 1"),
        (["data.crop_size=[3]"], r"data\.crop_size=\[3\]"),
        (["evaluation.dataset=tapvid_davi"], r"did you mean tapvid_davis\?"),
        (["evaluation.dataset=tapvid_davis"], r"needs evaluation\.dataset_root"),
        (["evaluation.memory_size=0"], r"evaluation\.memory_size=0"),
        (["evaluation.export_input_size=[100,64]"], r"export_input_size=\[100, 64\]; .* of 32"),
        (["evaluation.export_cpu_points=0"], r"evaluation\.export_cpu_points=0"),
        (["evaluation.export_int8=photos"], r"export_int8=photos has no effect .*=10"),
        (["evaluation.visible_threshold=0"], r"evaluation\.visible_threshold=0"),
        (["data.root=null"], r"data\.root"),
        (["evaluation.query_mode=strided"], r"query_mode=strided .* forward only"),
    ],
)
def test_impossible_settings_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SMALL_LBM.config("x", *words)


def test_missing_data_are_refused_by_name(tmp_path: Path) -> None:
    recipe = SMALL_LBM.recipe(tmp_path / "nowhere", "data.synthetic=null")
    with pytest.raises(DataError, match="no such folder"):
        recipe.build_dataset()


def test_a_random_encoder_must_be_asked_for(data_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"backbone_weights=random"):
        SMALL_LBM.recipe(data_root, "model.backbone_weights=to_be_given").build_dataset()
    recipe = SMALL_LBM.recipe(data_root, "model.backbone_weights=random")
    assert len(recipe.build_dataset()) > 0
    assert recipe.build_model() is not None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_recorded_step_trains_like_a_plain_one(
    precision: str, data_root: Path, tmp_path: Path
) -> None:
    """Recomputing, seeded dropout and kernels within a CUDA graph."""
    words = ["training.device=cuda", f"training.precision={precision}", "training.num_steps=6"]
    words += ["model.recompute=frames", "training.batch_size=1"]
    words += ["training.evaluate_every_steps=null"]
    words += ["logging.use_tensorboard=false", "logging.every_steps=1", "optimizer.lr=1e-4"]
    histories = []
    for graph in ("false", "true"):
        folder = tmp_path / graph
        config = SMALL_LBM.config(
            data_root, *words, f"output_dir={folder}", f"training.cuda_graph={graph}",
            "model.random_memory_mask_drop=0",
        )  # fmt: skip
        Trainer(config, build_recipe(config), init_distributed("cuda")).train()
        histories.append(losses_by_step(folder / "lbm_tiny"))
    plain, recorded = histories
    tolerance = 1e-3 if precision == "fp32" else 5e-2
    assert recorded == {step: pytest.approx(loss, rel=tolerance) for step, loss in plain.items()}
