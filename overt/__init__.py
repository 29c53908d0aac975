"""overt: explicit distributed training for vision research.

The names below are loaded when first used, so that `import overt` does not import torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "overt.distributed": (
        "World",
        "barrier",
        "get_rank",
        "get_world_size",
        "init_distributed",
        "is_main_process",
        "seed_everything",
    ),
    "overt.checkpoint.manager": ("CheckpointManager",),
    "overt.run.log": ("MetricsLogger",),
    "overt.engine.trainer": ("Trainer",),
    "overt.recipe": ("Recipe", "SampleSource", "StepOutput"),
    "overt.schedule": (
        "ConstantScheduler",
        "CosineScheduler",
        "EMAScheduler",
        "ExponentialScheduler",
        "HierarchicalScheduler",
        "LinearScheduler",
        "OneCycleScheduler",
        "create_ema_scheduler",
        "create_lr_scheduler",
    ),
}
_HOME_OF = {name: (home, name) for home, names in _HOMES.items() for name in names}
# CheckpointManager.load_checkpoint restores a run; this one reads weights of any file.
_HOME_OF["load_checkpoint"] = ("overt.checkpoint.weights", "load_weights")
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"overt has no {name!r}; it has {', '.join(__all__)}")
    home, its_name = _HOME_OF[name]
    return getattr(import_module(home), its_name)
