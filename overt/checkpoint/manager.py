"""CheckpointManager: the full state of a run by name, saved atomically, in the background if asked.

The main process writes; of a sharded model every rank writes its shard. No rank waits in a
collective while a file is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from overt.checkpoint import optimizer_state, plain_values, storage, writing
from overt.checkpoint.background import BackgroundWriter
from overt.checkpoint.finite import nonfinite_tensors
from overt.checkpoint.legacy_names import write_legacy_names
from overt.checkpoint.manifest import SHARDS, Stored, read_manifest, verify
from overt.checkpoint.named_tensors import is_sharded, named_tensors, split_tied
from overt.checkpoint.plain_values import HasState
from overt.checkpoint.restoring import checked_folder, restore_folder
from overt.checkpoint.retention import Retention, is_complete
from overt.checkpoint.tensor_files import Bytes, Content, Snapshot, TensorFile
from overt.config import Config
from overt.distributed import (
    broadcast_object,
    gather_objects,
    get_rank,
    get_world_size,
    is_main_process,
)
from overt.errors import CheckpointError, ConfigError
from overt.nn.base import stands_on

logger = logging.getLogger(__name__)


class CheckpointManager:
    """Saves, finds, checks and loads the checkpoints of one run, and prunes the others.

    It keeps the `keep_best_n` best by `metric_name` and, apart from these, the `keep_last_n` last.

    Examples:
        >>> manager = overt.CheckpointManager("saved", metric_name="val_loss", mode="min")
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> folder = manager.save_checkpoint(
        ...     epoch=1, model=model, optimizer=optimizer, metrics={"val_loss": 0.5}
        ... )
        >>> state = manager.load_checkpoint(model=model, optimizer=optimizer)
    """

    def __init__(
        self,
        checkpoint_dir: str | Path,
        keep_best_n: int = 3,
        save_frequency: int = 10,
        metric_name: str | None = "val_loss",
        mode: str = "min",
        *,
        keep_last_n: int = 2,
        also_best: Sequence[str] = (),
        background: bool = False,
        legacy_names: bool = False,  # also write checkpoint_latest.pth and checkpoint_best.pth
        timeout_minutes: float = 30.0,  # how long the main process waits for other ranks' shards
    ) -> None:
        if mode not in ("min", "max"):
            raise ConfigError(f"checkpoint.mode={mode!r} is unknown; use 'min' or 'max'")
        for name, value, least in (
            ("keep_best_n", keep_best_n, 0),
            ("save_frequency", save_frequency, 1),
            ("keep_last_n", keep_last_n, 1),
        ):
            if value < least:
                raise ConfigError(f"checkpoint.{name}={value} is too small; use {least} or more")
        self.checkpoint_dir = Path(checkpoint_dir)
        self.save_frequency = save_frequency
        self.metric_name = metric_name
        self.legacy_names = legacy_names
        self.timeout_minutes = timeout_minutes
        self.best_metric: float | None = None
        # Called on the main process with every checkpoint that is on disk and complete.
        self.on_saved: Callable[[Stored], None] = lambda stored: None
        # Called before anything is written; raises where the folder has another owner.
        self.before_save: Callable[[], None] = lambda: None
        self._retention = Retention(
            self.checkpoint_dir, metric_name, mode, keep_best_n, keep_last_n, also_best
        )
        self._snapshots: dict[str, Snapshot] | None = {} if background else None
        self._writer = BackgroundWriter()
        self._resumed_from: Path | None = None  # until the first save after loading
        # Runs at the latest when Python exits: a failed save is never silent.
        weakref.finalize(self, self._writer.report)
        if is_main_process():
            storage.make_folder(self.checkpoint_dir)
            for path in storage.clean_left_overs(self.checkpoint_dir):
                logger.info("removed %s, left by a process that was killed", path)
            storage.restore_copies(self.checkpoint_dir)
        self._read_disk()
        if is_main_process():
            self._retention.move_pointers()

    # --- which and when ----------------------------------------------------------------------

    def should_save(self, epoch: int) -> bool:
        """Tell whether a periodic save is due after this epoch, counted from 0."""
        return (epoch + 1) % self.save_frequency == 0

    def is_better_metric(self, value: float) -> bool:
        """Tell whether `value` beats the best one so far; NaN never does."""
        return self._retention.is_better(value, self.best_metric)

    def get_latest_checkpoint(self) -> Path | None:
        """Return the newest checkpoint, complete by names and sizes; never a pending save."""
        return self._retention.newest_complete()

    def get_best_checkpoint(self) -> Path | None:
        """Return the best checkpoint by the metric, or None where none was measured."""
        best = self._retention.best()
        return None if best is None or not is_complete(best.path) else best.path

    # --- saving ------------------------------------------------------------------------------

    @classmethod
    def of_run(cls, config: Config, folder: Path) -> CheckpointManager:
        """Return the manager that the section `checkpoint` asks for."""
        return cls(
            folder,
            keep_best_n=config.checkpoint.keep_best_n,
            keep_last_n=config.checkpoint.keep_last_n,
            metric_name=config.checkpoint.metric_name or "",
            mode=config.checkpoint.mode,
            also_best=config.checkpoint.also_best,
            background=config.checkpoint.background,
            legacy_names=config.checkpoint.legacy_names,
            timeout_minutes=config.training.timeout_minutes,
        )

    def save_checkpoint(
        self,
        epoch: int,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        scheduler: HasState | Mapping[str, Any] | None = None,
        scaler: HasState | None = None,
        metrics: Mapping[str, Any] | None = None,
        is_best: bool | None = None,
        *,
        step: int | None = None,
        ema: nn.Module | None = None,
        state: Mapping[str, Any] | None = None,
        tensors: Mapping[str, Tensor] | None = None,
        config_yaml: str | None = None,
    ) -> Path:
        """Save everything; with `background` return once it is copied. `is_best=None`: by metric.

        Every process may call this: all but the main one return at once. Of a sharded model every
        process must, since each has its shard to save.
        """
        name = storage.name_of(step, epoch)
        sharded = is_sharded(model)
        if not sharded and not is_main_process():
            return self.checkpoint_dir / name
        self.before_save()
        # One save in flight; an error of the last one surfaces here.
        poisoned = nonfinite_tensors(model, ema)
        if sharded:
            name, hidden = self._begin_together(name, poisoned)
        else:
            self.wait()
            _refuse_nonfinite(name, poisoned)
            self._make_space()
            name = storage.free_name(self.checkpoint_dir, name)
        metric = self._metric(metrics, is_best)
        best = is_best
        if best is None:
            best = metric is not None and self.is_better_metric(metric)
        best_metric = metric if best else self.best_metric
        facts = {
            "serial": self._retention.next_serial(),
            "step": step,
            "epoch": epoch,
            "metric_name": self.metric_name,
            "mode": self._retention.mode,
            "metric": metric,
            "is_best": best,
            "world_size": get_world_size(),
            "stands_on": stands_on(model),
            "config_sha256": None
            if config_yaml is None
            else hashlib.sha256(config_yaml.encode()).hexdigest(),
        }
        described: dict[str, Any] = {
            "epoch": epoch,
            "step": step,
            "metrics": dict(metrics or {}),
            "best_metric": best_metric,
            "scheduler": _state_of(scheduler),
            "scaler": None if scaler is None else scaler.state_dict(),
            "optimizer": None,
            "state": dict(state or {}),
        }
        moments: dict[str, Tensor] | None = None
        if optimizer is not None:
            moments, described["optimizer"] = optimizer_state.describe(model, optimizer)
        files = (self._shard_files if sharded else self._whole_files)(model, ema, moments)
        self.best_metric = best_metric  # at once, although the file may take a while
        if not is_main_process():
            self._run(partial(self._write_shard, hidden, files))
            return self.checkpoint_dir / name
        if tensors is not None:
            files["rng.safetensors"] = self._content("rng", TensorFile(tensors))
        if config_yaml is not None:
            files["config.yaml"] = Bytes(config_yaml.encode())
        files["state.json"] = Bytes(plain_values.encode(described, "state"))
        self._run(partial(self._write, name, files, facts, sharded))
        return self.checkpoint_dir / name

    def wait(self) -> None:
        """Wait until the work in the background is done; raises the error of a save."""
        self._writer.wait()

    def _begin_together(self, name: str, poisoned: list[str]) -> tuple[str, Path]:
        """Agree on the name of a sharded save and the folder to write to, on every process."""
        proposal: tuple[str, Path] | None = None
        problem: str | None = None
        try:
            self.wait()
            _refuse_nonfinite(name, poisoned)
            if is_main_process():
                self._make_space()
                name = storage.free_name(self.checkpoint_dir, name)
                hidden = self.checkpoint_dir / storage.hidden_name("writing", name)
                storage.remove([hidden])  # of an earlier save that failed, in this process
                proposal = name, hidden
        except (CheckpointError, OSError) as error:
            problem = str(error)  # raised on every process, or the others would wait forever
        answers = gather_objects((proposal, problem))
        problems = dict.fromkeys(problem for _, problem in answers if problem is not None)
        if problems:
            raise CheckpointError("; ".join(problems))
        agreed: tuple[str, Path] = answers[0][0]
        return agreed

    def _make_space(self) -> None:
        """Prune before the first save of a resumed run: fewer may be kept since the disk was full.

        Not while loading, since a resume may still be refused and must then change nothing.
        """
        resumed_from, self._resumed_from = self._resumed_from, None
        if resumed_from is not None and resumed_from.parent == self.checkpoint_dir.resolve():
            protected = {self.checkpoint_dir / resumed_from.name, *self._retention.linked()}
            storage.remove(self._retention.prune(protected))

    def _metric(self, metrics: Mapping[str, Any] | None, is_best: bool | None) -> float | None:
        if metrics and self.metric_name is not None and self.metric_name in metrics:
            return float(metrics[self.metric_name])
        if is_best or (is_best is None and metrics):
            raise CheckpointError(
                f"the best checkpoint is chosen by {self.metric_name!r}, which is not among the "
                f"metrics given ({', '.join(sorted(metrics or {})) or 'none'}). Set "
                "checkpoint.metric_name to one of these, or save with is_best=False."
            )
        return None

    def _whole_files(
        self, model: nn.Module, ema: nn.Module | None, moments: dict[str, Tensor] | None
    ) -> dict[str, Content]:
        files = {"model.safetensors": self._content("model", _weights(model))}
        if moments is not None:
            files["optimizer.safetensors"] = self._content("optimizer", TensorFile(moments))
        if ema is not None:
            files["ema.safetensors"] = self._content("ema", _weights(ema))
        return files

    def _shard_files(
        self, model: nn.Module, ema: nn.Module | None, moments: dict[str, Tensor] | None
    ) -> dict[str, Content]:
        from overt.checkpoint import shards

        shard, index = shards.collect(model, ema, moments)
        files = {shards.shard_file(get_rank()): self._content("shard", shard)}
        if index is not None:
            files[SHARDS] = index
        return files

    def _content(self, name: str, file: TensorFile) -> Content:
        if self._snapshots is None:
            return file
        snapshot = self._snapshots.setdefault(name, Snapshot())
        snapshot.take(file)
        return snapshot

    def _run(self, task: Callable[[], None]) -> None:
        """Run a task now, or in the background."""
        if self._snapshots is None:
            task()
        else:
            self._writer.start(task)

    def _write_shard(self, hidden: Path, files: dict[str, Content]) -> None:
        for file, content in files.items():
            writing.write_shard(hidden, file, content, parallel=self._snapshots is None)

    def _write(
        self, name: str, files: dict[str, Content], facts: dict[str, Any], sharded: bool
    ) -> None:
        others = self._other_shards() if sharded else None
        try:
            stored = writing.write_folder(
                self.checkpoint_dir, name, files, facts, self._snapshots is None, others
            )
        except BaseException:
            self._read_disk()  # a best value that was not saved does not count
            raise
        self._retention.add(stored)
        verification = verify(stored.path, contents=False)
        if not verification.good:
            raise CheckpointError(
                f"{stored.path} failed verification after writing ({verification}); older "
                "checkpoints are kept. Check the disk, and that no other run saves to this folder."
            )
        if self.legacy_names:
            write_legacy_names(stored.path, bool(facts["is_best"]))
        self.on_saved(stored)
        superfluous = self._retention.prune()
        if self._snapshots is not None:
            storage.remove(superfluous)
        elif superfluous:
            self._writer.start(lambda: storage.remove(superfluous))  # training need not wait

    def _other_shards(self) -> writing.OtherShards:
        from overt.checkpoint import shards

        files = tuple(shards.shard_file(rank) for rank in range(1, get_world_size()))
        return writing.OtherShards(files, 60 * self.timeout_minutes)

    def _read_disk(self) -> None:
        self._retention.read_disk()
        best = self._retention.best()
        self.best_metric = None if best is None else best.metric

    # --- loading -----------------------------------------------------------------------------

    def load_checkpoint(
        self,
        checkpoint_path: str | Path | None = None,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        scaler: HasState | None = None,
        *,
        ema: nn.Module | None = None,
    ) -> dict[str, Any]:
        """Restore what is given from a checkpoint, by default the newest good one.

        All processes call this together: the main one checks the files and tells the others which.
        Returns path, epoch, step, metrics, best_metric, scheduler, state, tensors, config_yaml.
        """
        path = self._agree_on(checkpoint_path)
        restored = restore_folder(path, model, optimizer, scaler, ema)
        loaded = Stored(path, read_manifest(path))
        same = loaded.is_measured_by(self.metric_name, self._retention.mode)
        if self.best_metric is None and same:  # the best is gone, or lies in another folder
            self.best_metric = restored["best_metric"]
        self._resumed_from = path.resolve()
        return restored

    def _agree_on(self, requested: str | Path | None) -> Path:
        """Return the checkpoint to load, chosen and checked by the main process for all."""
        path: Path | None = None
        problem: str | None = None
        if is_main_process():
            try:
                self.wait()
                path = self._newest_good() if requested is None else checked_folder(Path(requested))
            except (CheckpointError, OSError) as error:
                problem = str(error)  # raised on every process, or the others would wait forever
        path, problem = broadcast_object((path, problem))
        if problem is not None:
            raise CheckpointError(problem)
        assert path is not None
        if not path.is_dir():
            raise CheckpointError(
                f"this process does not see {path}, which the main process found. All hosts need "
                "the checkpoint folder: put it on a shared file system."
            )
        self._read_disk()
        return path

    def _newest_good(self) -> Path:
        path = storage.newest_good(self.checkpoint_dir)
        self._read_disk()
        self._retention.move_pointers()
        if path is None:
            raise CheckpointError(
                f"no valid checkpoint in {self.checkpoint_dir}; start the run from scratch, or "
                "name a checkpoint elsewhere"
            )
        return path


def _state_of(scheduler: HasState | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the state of a scheduler, which may be given as such."""
    if scheduler is None:
        return None
    return dict(scheduler) if isinstance(scheduler, Mapping) else scheduler.state_dict()


def _refuse_nonfinite(name: str, poisoned: list[str]) -> None:
    """Refuse to save weights that nothing can be trained or evaluated with."""
    if poisoned:
        raise CheckpointError(
            f"{name} is not saved: {len(poisoned)} tensor(s) of the model hold NaN or Inf, first "
            f"{', '.join(poisoned[:5])}. The checkpoints already there are unharmed; lower the "
            "learning rate and resume from one of them."
        )


def _weights(module: nn.Module) -> TensorFile:
    """Describe the file of a module's tensors, tied ones once."""
    unique, aliases = split_tied(named_tensors(module))
    return TensorFile(unique, {"format": "pt", "overt.tied": json.dumps(aliases)})
