"""How a run ends: after its last step, or early: saved where that is possible, and explained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from overt.distributed import is_lost_peer
from overt.errors import DataError, LaunchError, Preempted, StopError
from overt.health.memory import explain, is_out_of_memory
from overt.run import run_folder

if TYPE_CHECKING:
    from overt.engine.trainer import Trainer


@contextmanager
def ends_in_order(trainer: Trainer) -> Iterator[None]:
    """Whatever ends the run in here: it is saved where that is possible, explained, and closed."""
    try:
        yield
    except (DataError, StopError) as error:
        # A run that stops itself does so on every process at this same step; a broken sample stops
        # one process, which may save only where it need not wait for others.
        if isinstance(error, StopError) or trainer.world.world_size == 1:
            _save(trainer, error)
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if is_out_of_memory(error):
            raise explain(trainer, error) from error
        if trainer.world.world_size > 1 and is_lost_peer(error):
            raise LaunchError(run_folder.note_lost_peer(trainer, error)) from error
        raise
    finally:
        trainer.close()


def _save(trainer: Trainer, error: StopError | DataError) -> None:
    """Save, and leave only when every process has written."""
    if not isinstance(error, Preempted) or trainer.saved_step != trainer.state.step:
        trainer.save()
    if isinstance(error, StopError):
        trainer.manager.wait()
        trainer.preemption.leave_together()
