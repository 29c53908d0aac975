"""Images and checkpoints as one finds them: broken, gray, transparent, tiny, of other sizes."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_recipes import SMALL_HJEPA
from toy_runs import read_rows

from overt.engine.optimizer import check_levels
from overt.errors import ConfigError, DataError, NonFiniteError
from overt.schedule import HierarchicalScheduler

QUICK = ["training.num_steps=3", "training.batch_size=4", "data.synthetic=null", "evaluation.k=2"]


@pytest.fixture
def odd_images(tmp_path: Path) -> Path:
    """Two classes of six images each: all kinds, and one in each class that cannot be read."""
    rng = np.random.default_rng(0)
    for number, kind in enumerate(("cats", "dogs")):
        folder = tmp_path / "odd" / kind
        folder.mkdir(parents=True)
        pixels = rng.integers(0, 256, (20, 24, 4), dtype=np.uint8)
        Image.fromarray(pixels[..., :3]).save(folder / "color.jpg")
        Image.fromarray(pixels[..., 0]).save(folder / "gray.png")
        Image.fromarray(pixels).save(folder / "transparent.png")
        Image.fromarray(pixels[:1, :1, :3]).save(folder / "one_pixel.png")
        Image.fromarray(pixels[:2, :, :3]).save(folder / "flat.webp", lossless=True)
        whole = (folder / "color.jpg").read_bytes()
        (folder / "broken.jpg").write_bytes(whole[:60] if number else b"no image")
    return tmp_path / "odd"


def test_odd_images_are_trained_on_and_broken_ones_skipped_counted_and_named(
    odd_images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = [f"data.root={odd_images}", f"data.val_root={odd_images}", "exp_name=odd"]
    with caplog.at_level(logging.WARNING, logger="overt"):
        scores = SMALL_HJEPA.trainer(tmp_path, *QUICK, *own).train()
    for name in ("cats/broken.jpg", "dogs/broken.jpg"):
        assert name in caplog.text
    assert "number 2 here" in caplog.text
    assert scores["unreadable_images"] == 2
    assert 0 <= scores["knn_top1"] <= 1
    noted = (tmp_path / "runs/odd/warnings/rank_0.txt").read_text()
    assert [noted.count(f"{kind}/broken.jpg: not") for kind in ("cats", "dogs")] == [1, 1]
    losses = [row["train/loss"] for row in read_rows(tmp_path / "runs/odd") if "train/loss" in row]
    assert len(losses) == 3
    assert np.isfinite(losses).all()


def test_images_that_only_a_loader_process_meets_are_named_in_the_run_folder(
    odd_images: Path, tmp_path: Path
) -> None:
    own = [f"data.root={odd_images}", "data.held_out=0", "exp_name=apart", "training.num_steps=6"]
    SMALL_HJEPA.trainer(tmp_path, *QUICK, *own, "training.num_workers=1").train()
    text = (tmp_path / "runs/apart/warnings/rank_0.txt").read_text()
    for name in ("cats/broken.jpg", "dogs/broken.jpg"):
        assert text.count(f"{name}: not a readable image") == 1


def test_an_empty_class_folder_is_named(odd_images: Path, tmp_path: Path) -> None:
    (odd_images / "birds").mkdir()
    with pytest.raises(DataError, match=r"1 class folder \(birds\) without an image"):
        SMALL_HJEPA.trainer(tmp_path, *QUICK, f"data.root={odd_images}")


def test_a_checkpoint_of_another_patch_size_is_resized_and_the_log_says_so(
    odd_images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = [*QUICK, f"data.root={odd_images}", f"data.val_root={odd_images}"]
    own += ["model.positions=learned", "model.class_token=true"]
    SMALL_HJEPA.trainer(tmp_path, *own, "exp_name=four").train()
    start = f"checkpoint.init_from={tmp_path / 'runs/four/checkpoints/latest'}"
    with caplog.at_level(logging.WARNING, logger="overt"):
        trainer = SMALL_HJEPA.trainer(
            tmp_path, *own, "exp_name=eight", start, "model.patch_size=8", "data.image_size=[32,32]"
        )
        assert "patch weights resized from 4 to 8 pixels" in caplog.text
        assert "position table" not in caplog.text  # 4 x 4 patches as before
        caplog.clear()
        trainer.close()
        trainer = SMALL_HJEPA.trainer(
            tmp_path, *own, "exp_name=two", start, "data.image_size=[16,32]"
        )
    assert "position table resized from (4, 4) to (4, 8) patches" in caplog.text
    trainer.close()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.masking.min_keep=500", "an image has 4 x 4 patches"),
        ("model.num_hierarchies=4", "8 x 8 patches, but an image has 4 x 4"),
        ("model.fpn.feature_dim=-4", "model.fpn.feature_dim=-4; it must be at least 1"),
        ("model.fpn.feature_dim=0", "model.fpn.feature_dim=0; it must be at least 1"),
        ("model.drop_path_rate=1.5", "at least 0 and below 1"),
        ("model.predictor.num_heads=0", "model.predictor.num_heads=0; it must be at least 1"),
        ("data.std=[0.2,0,0.2]", "data.std=0.0; it must be above 0"),
        ("data.augmentation.color_jitter=-1", "at least 0"),
        ("evaluation.temperature=0", "above 0"),
        ("evaluation.linear_probe.batch_size=0", "evaluation.linear_probe.batch_size=0"),
        ("loss.sigreg_num_slices=0", "at least 1"),
        ("loss.contrastive_temperature=0", "above 0"),
    ],
)
def test_impossible_settings_are_refused_at_once(override: str, said: str, tmp_path: Path) -> None:
    further = ["loss.hierarchy_weights=[1,1,1,1]"] if "hierarchies" in override else []
    with pytest.raises(ConfigError, match=re.escape(said)):
        SMALL_HJEPA.config(tmp_path, override, *further)


def test_windows_larger_than_an_image_are_refused(tmp_path: Path) -> None:
    own = ["model.pooling=sequence", "model.num_hierarchies=6"]
    with pytest.raises(ConfigError, match="have 32 patches, but an image has 4 x 4 patches"):
        SMALL_HJEPA.config(tmp_path, *own, "loss.hierarchy_weights=[1,1,1,1,1,1]")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.masking.num_context_masks=3", "num_context_masks=3 and max_keep=None"),
        ("data.masking.max_keep=3", "num_context_masks=1 and max_keep=3"),
        ("data.masking.min_keep=5", "keeps as few as 4; set min_keep=4"),
        ("data.masking.num_masks=8", "num_masks=8 has no effect with kind=random, which"),
        ("data.masking.aspect_ratio=[1,1]", "aspect_ratio=[1.0, 1.0] has no effect"),
        ("data.masking.context_scale=[1,1]", "context_scale=[1.0, 1.0] has no effect"),
        ("data.masking.context=rest", "single patches; set it back to block"),
        ("data.masking.allow_overlap=true", "set it back to false"),
    ],
)
def test_random_masks_refuse_what_they_cannot_follow(
    override: str, said: str, tmp_path: Path
) -> None:
    own = ["data.masking.kind=random", "data.masking.mask_scale=[0.5,0.75]"]
    SMALL_HJEPA.config(tmp_path, *own, "data.masking.min_keep=4")
    with pytest.raises(ConfigError, match=re.escape(said)):
        SMALL_HJEPA.config(tmp_path, *own, override)


def test_the_levels_of_a_schedule_are_those_of_the_model(tmp_path: Path) -> None:
    trainer = SMALL_HJEPA.trainer(tmp_path, "model.projection=predictions")
    three = HierarchicalScheduler([trainer.schedule] * 3)
    check_levels(trainer.optimizer, three)
    with pytest.raises(ConfigError, match=r"schedule.levels has 2 schedules, .* of 3 level"):
        check_levels(trainer.optimizer, HierarchicalScheduler(three.schedulers[:2]))


def test_a_run_that_diverges_is_stopped_by_the_engine_and_not_by_the_monitor(
    tmp_path: Path,
) -> None:
    settings = ["optimizer.lr=1e20", "evaluation.collapse.every_steps=1", "training.num_steps=40"]
    with pytest.raises(NonFiniteError):
        SMALL_HJEPA.trainer(tmp_path, *settings, "training.evaluate_every_steps=null").train()
