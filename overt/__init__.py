"""overt: explicit distributed training for vision research.

The names below are loaded when first used, so that `import overt` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers, which do not run `__getattr__`
    from overt import testing as testing
    from overt.api import Result as Result
    from overt.api import configure as configure
    from overt.api import evaluate as evaluate
    from overt.api import train as train
    from overt.checkpoint.manager import CheckpointManager as CheckpointManager
    from overt.checkpoint.weights import load_weights as load_checkpoint  # noqa: F401
    from overt.distributed import World as World
    from overt.distributed import barrier as barrier
    from overt.distributed import get_rank as get_rank
    from overt.distributed import get_world_size as get_world_size
    from overt.distributed import init_distributed as init_distributed
    from overt.distributed import is_main_process as is_main_process
    from overt.distributed import seed_everything as seed_everything
    from overt.engine.trainer import Trainer as Trainer
    from overt.recipe import Recipe as Recipe
    from overt.recipe import SampleSource as SampleSource
    from overt.recipe import StepOutput as StepOutput
    from overt.run.log import MetricsLogger as MetricsLogger
    from overt.schedule import ConstantScheduler as ConstantScheduler
    from overt.schedule import CosineScheduler as CosineScheduler
    from overt.schedule import EMAScheduler as EMAScheduler
    from overt.schedule import ExponentialScheduler as ExponentialScheduler
    from overt.schedule import HierarchicalScheduler as HierarchicalScheduler
    from overt.schedule import LinearScheduler as LinearScheduler
    from overt.schedule import OneCycleScheduler as OneCycleScheduler
    from overt.schedule import create_ema_scheduler as create_ema_scheduler
    from overt.schedule import create_lr_scheduler as create_lr_scheduler
    from overt.tracker import load_tracker as load_tracker

__version__ = "0.1.0"

_HOMES = {
    "overt.api": ("Result", "configure", "evaluate"),
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
    "overt.tracker": ("load_tracker",),
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
# `overt.train` is the module that `torchrun -m overt.train` starts, and can be called.
_MODULES = ("testing", "train")
__all__ = sorted([*_HOME_OF, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"overt.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"overt has no {name!r}; it has {', '.join(__all__)}")
    home, its_name = _HOME_OF[name]
    return getattr(import_module(home), its_name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
