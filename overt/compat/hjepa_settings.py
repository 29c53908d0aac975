"""Keys of the H-JEPA project's YAML files as words of overt. This file does not import torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from overt.errors import ConfigError, nearest

# Old key to new key; the same value.
SAME = {
    **{f"model.{key}": f"model.{key}" for key in (
        "encoder_type", "embed_dim", "num_hierarchies", "predictor.depth", "predictor.num_heads",
        "predictor.mlp_ratio", "ema.momentum", "ema.momentum_end", "ema.momentum_warmup_epochs",
        "rope.use_rope", "rope.theta", "fpn.use_fpn", "fpn.feature_dim", "fpn.fusion_method",
        "layerscale.use_layerscale", "layerscale.init_value", "use_target_encoder",
        "projection_norm",
    )},
    "training.drop_path_rate": "model.drop_path_rate",
    "data.data_path": "data.root",
    "data.batch_size": "training.batch_size",
    "data.num_workers": "training.num_workers",
    **{f"data.augmentation.{key}": f"data.augmentation.{key}" for key in (
        "color_jitter", "horizontal_flip", "random_crop",
    )},
    **{f"masking.{key}": f"data.masking.{key}" for key in (
        "num_masks", "mask_scale", "aspect_ratio", "num_context_masks", "context_scale",
    )},
    "training.epochs": "training.num_epochs",
    "training.warmup_epochs": "schedule.warmup_epochs",
    "training.lr": "optimizer.lr",
    "training.min_lr": "schedule.final_value",
    "training.weight_decay": "optimizer.weight_decay",
    "training.betas": "optimizer.arguments.betas",
    "training.clip_grad": "training.grad_clip_norm",
    "training.accumulation_steps": "training.accumulation_steps",
    "training.use_gradient_checkpointing": "training.activation_checkpointing",
    "training.online_eval.k": "evaluation.k",
    "training.online_eval.max_samples": "evaluation.max_samples",
    "training.ema_momentum_schedule.start": "model.ema.momentum",
    "training.ema_momentum_schedule.end": "model.ema.momentum_end",
    **{f"loss.{key}": f"loss.{key}" for key in (
        "type", "hierarchy_weights", "normalize_embeddings", "jepa_loss_type", "huber_delta",
        "vicreg_weight", "vicreg_variance_weight", "vicreg_covariance_weight", "vicreg_eps",
        "sigreg_weight", "sigreg_num_slices", "contrastive_weight", "contrastive_temperature",
    )},
    "checkpoint.keep_best_n": "checkpoint.keep_best_n",
    "checkpoint.metric": "checkpoint.metric_name",
    "checkpoint.mode": "checkpoint.mode",
    "logging.experiment_name": "exp_name",
    "logging.log_frequency": "logging.every_steps",
    "logging.wandb.enabled": "logging.use_wandb",
    "logging.wandb.project": "logging.wandb_project",
    "logging.wandb.tags": "logging.wandb_tags",
    "logging.tensorboard.enabled": "logging.use_tensorboard",
    **{f"evaluation.linear_probe.{key}": f"evaluation.linear_probe.{key}" for key in (
        "enabled", "batch_size", "epochs", "lr",
    )},
    "seed": "seed",
    "device": "training.device",
}  # fmt: skip

# Old keys whose value is written differently here.
OTHERWISE: dict[str, Callable[[Any], list[tuple[str, Any]]]] = {
    "data.image_size": lambda value: [("data.image_size", [value, value])],
    "training.use_amp": lambda value: [("training.precision", "bf16" if value else "fp32")],
    "experiment.output_dir": lambda value: [("output_dir", value)],
    "checkpoint.checkpoint_dir": lambda value: [],  # a run has one folder: output_dir
    "logging.log_dir": lambda value: [("output_dir", value)],
}

# Old keys with one value that overt has anyway, and what to do about any other.
ONLY = {
    "model.use_flash_attention": (True, "fused attention is always used"),
    "data.pin_memory": (True, "memory is always pinned"),
    "data.dataset": (None, "name the images: data.root"),
    "data.use_multi_dataset": (False, "see `overt docs configuration` for mixtures"),
    "training.optimizer": ("adamw", "set optimizer=sgd and so on"),
    "training.lr_schedule": ("cosine", "set schedule=linear and so on"),
    "training.early_stopping.enabled": (False, "set training.patience"),
    "training.online_eval.enabled": (None, "set training.evaluate_every_steps"),
    "checkpoint.resume": (None, "runs resume by themselves"),
    "distributed.enabled": (None, "start with torchrun"),
    "evaluation.linear_probe.dataset": (None, "name the images: data.val_root"),
}
# Old keys that count in epochs or describe processes: said elsewhere here.
ELSEWHERE = (
    "training.early_stopping.", "training.online_eval.", "training.ema_momentum_schedule.",
    "checkpoint.save_frequency", "distributed.", "evaluation.eval_frequency", "data.datasets",
    "data.sampling_strategy", "logging.wandb.entity",
)  # fmt: skip


def translate(old: Mapping[Any, Any]) -> list[str]:
    """Return the words of a command line for old settings; refuse keys without a counterpart."""
    words = {"recipe": "recipe=hjepa"}
    unknown = []
    for key, value in _flat(old).items():
        if key in SAME:
            pairs = [(SAME[key], value)]
        elif key in OTHERWISE:
            pairs = OTHERWISE[key](value)
        elif key in ONLY:
            expected, remedy = ONLY[key]
            if expected is not None and value != expected:
                raise ConfigError(f"{key}={value}: only {expected} is translated; {remedy}")
            continue
        elif key.startswith(ELSEWHERE):
            continue
        else:
            unknown.append(key)
            continue
        for name, content in pairs:
            words[name] = f"{name}={_word(content)}"
    if unknown:
        allowed = [*SAME, *OTHERWISE, *ONLY]
        raise ConfigError(
            f"no counterpart for {', '.join(unknown)}{nearest(unknown[0], allowed)}; remove the "
            "key, or set its new name as KEY=VALUE (see `overt docs coming_from_hjepa`)"
        )
    return list(words.values())


def _flat(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value).replace(" ", "")
