"""Old YAML files of H-JEPA: every key has a counterpart, or is named."""

import pytest

from overt.compat.hjepa_settings import translate
from overt.config import load
from overt.errors import ConfigError

DEFAULTS = {
    "model": {
        "encoder_type": "vit_base_patch16_224", "embed_dim": 768, "num_hierarchies": 3,
        "predictor": {"depth": 6, "num_heads": 12, "mlp_ratio": 4.0},
        "ema": {"momentum": 0.996, "momentum_end": 1.0, "momentum_warmup_epochs": 30},
        "use_flash_attention": True, "rope": {"use_rope": False, "theta": 10000},
    },
    "data": {
        "dataset": "imagenet", "data_path": "imagenet/train", "image_size": 224, "batch_size": 64,
        "num_workers": 8, "pin_memory": True, "augmentation": {"color_jitter": 0.4},
    },
    "masking": {"num_masks": 4, "mask_scale": [0.15, 0.2]},
    "training": {
        "epochs": 100, "warmup_epochs": 10, "lr": 1.5e-4, "min_lr": 1e-6, "weight_decay": 0.05,
        "optimizer": "adamw", "betas": [0.9, 0.95], "lr_schedule": "cosine", "clip_grad": 3.0,
        "use_amp": True, "accumulation_steps": 1,
        "early_stopping": {"enabled": False, "patience": 10},
    },
    "loss": {"type": "mse", "hierarchy_weights": [1.0, 0.5, 0.25]},
    "checkpoint": {"save_frequency": 10, "keep_best_n": 3, "checkpoint_dir": "results"},
    "logging": {"experiment_name": "mine", "log_dir": "results/logs", "wandb": {"enabled": False}},
    "distributed": {"enabled": False, "backend": "nccl"},
    "seed": 42,
    "device": "cpu",
}  # fmt: skip


def test_the_defaults_become_a_checked_configuration() -> None:
    config = load(translate(DEFAULTS))
    assert (config.exp_name, config.training.num_epochs) == ("mine", 100)
    assert config.optimizer.lr == 1.5e-4
    assert config.settings.data.image_size == [224, 224]
    assert config.settings.loss.type == "mse"
    assert config.training.precision == "bf16"
    assert str(config.run_dir) == "results/logs/mine"


def test_what_has_no_counterpart_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no counterpart for model.embed_dims.*model.embed_dim"):
        translate({"model": {"embed_dims": 3}})
    with pytest.raises(ConfigError, match=r"early_stopping.enabled=True.*training.patience"):
        translate({"training": {"early_stopping": {"enabled": True}}})
