"""The end of a run: after its last step, or early: saved if possible, and explained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from overt.checkpoint.finite import nonfinite_tensors
from overt.checkpoint.manager import CheckpointManager
from overt.distributed import broadcast_object, gather_objects, is_lost_peer
from overt.engine.build import Parts
from overt.engine.state import State
from overt.errors import (
    DataError,
    LaunchError,
    NonFiniteWeightsError,
    OvertError,
    Preempted,
    StopError,
    StoppedAtStart,
    exit_code_of,
)
from overt.health import memory
from overt.health.heartbeat import Heartbeat
from overt.health.preemption import Preemption, stop_within
from overt.health.profile import StepProfile
from overt.run import messages
from overt.run.events import LostPeer, NonFiniteWeights
from overt.run.session import Run


def refuse_nonfinite_weights(parts: Parts, run: Run, manager: CheckpointManager, step: int) -> None:
    """Stop where weights hold NaN or Inf, on every rank: they are never saved."""
    by_rank = gather_objects(nonfinite_tensors(parts.model, parts.average))
    bad = dict.fromkeys(name for names in by_rank for name in names)
    if bad:
        run.record(event := NonFiniteWeights(step, list(bad)))
        newest = broadcast_object(manager.get_latest_checkpoint())
        raise NonFiniteWeightsError(messages.nonfinite_weights(event, newest))


@dataclass(frozen=True)
class Ending:
    """What is needed to explain an early end."""

    parts: Parts
    state: State
    heartbeat: Heartbeat
    preemption: Preemption
    manager: CheckpointManager
    run: Run

    @contextmanager
    def in_order(
        self, save: Callable[[], None], close: Callable[[BaseException | None], None]
    ) -> Iterator[None]:
        """Save, explain and close, whatever ends the run in here."""
        try:
            with self._explained(save):
                yield
        except BaseException as error:
            close(error)
            raise
        close(None)

    @contextmanager
    def _explained(self, save: Callable[[], None]) -> Iterator[None]:
        try:
            yield
        except StoppedAtStart:  # in the middle of the first step: nothing can be saved
            raise
        except (DataError, StopError) as error:
            # A run that stops itself does so on every rank at this same step; a broken sample stops
            # one rank, which may save only where it need not wait for others.
            may_save = isinstance(error, StopError) or self.run.world.world_size == 1
            is_saved = isinstance(error, Preempted) and self.state.is_saved
            reason: OvertError = error
            if may_save and not is_saved and not isinstance(error, NonFiniteWeightsError):
                try:
                    save()
                except NonFiniteWeightsError as worse:  # on every rank: nothing was saved
                    reason = worse
            if isinstance(reason, StopError):  # leave only when every rank has written
                self.manager.wait()
                self.preemption.leave_together()
            if reason is not error:
                raise reason from error
            raise
        except (MemoryError, RuntimeError, OSError) as error:
            if stopped := stop_within(error):
                raise stopped from None
            if memory.is_out_of_memory(error):
                raise memory.explain(error, self._situation()) from error
            if self.run.world.world_size > 1 and is_lost_peer(error):
                reason_known = self.preemption.asked_at_start()  # the others left for it as well
                raise reason_known or LaunchError(self._lost_peer(error)) from error
            raise

    def close(self, profile: StepProfile, error: BaseException | None, is_done: bool) -> None:
        """Close what the run used; record the end once the last file is safe."""
        code = exit_code_of(error) or (0 if is_done else 1)
        try:
            for part in (profile, self.heartbeat, self.preemption, self.parts.loader):
                part.close()
            self.manager.wait()  # a failed background write surfaces here
        except BaseException:
            self.run.close(1)
            raise
        if error is None and is_done:
            best = self.manager.get_best_checkpoint() if self.run.world.is_main else None
            self.run.conclude(
                self.state.step, self.parts.total_steps, best, self.manager.best_metric
            )
        self.run.close(code, self.state.step)

    def _situation(self) -> memory.Situation:
        return memory.Situation(
            self.state.step,
            self.heartbeat.doing,
            self.run.world,
            self.parts.speed.training,
            self.parts.plan,
            self.parts.wrapping.has_blocks,
        )

    def _lost_peer(self, error: BaseException) -> str:
        event = LostPeer(self.state.step, str(error).partition("\n")[0])
        self.run.record(event)
        return messages.lost_peer(
            event, self.run.world.rank, self.run.config.training.timeout_minutes
        )
