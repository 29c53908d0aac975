"""CheckpointManager: the full state of a run by name, saved whole, in the background if asked.

The main process writes, of a sharded model each process its share; nobody waits in a collective
while a file is written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from overt.checkpoint import optimizer_state, plain_values, storage
from overt.checkpoint.tensor_files import Bytes, Content, Snapshot, TensorFile
from overt.checkpoint.weights import (
    clean_keys,
    folder_parts,
    load_tensors,
    read_part,
    read_safetensors,
    split_tied,
)
from overt.config import Config
from overt.distributed import (
    broadcast_object,
    gather_objects,
    get_rank,
    get_world_size,
    is_main_process,
    is_sharded,
)
from overt.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

# Of state.json.
STATE_KEYS = {
    "epoch", "step", "metrics", "best_metric", "scheduler", "scaler", "optimizer", "state"
}  # fmt: skip


class HasState(Protocol):
    """A scheduler or scaler: its state is a dictionary of plain values."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None: ...


class CheckpointManager:
    """Saves, finds, checks and loads the checkpoints of one run, and deletes the superfluous ones.

    Kept are the `keep_best_n` best by `metric_name` and, apart from these, the `keep_last_n` last.
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
        background: bool = False,
        timeout_minutes: float = 30.0,  # how long the main process waits for others' shares
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
        self.keep_best_n = keep_best_n
        self.keep_last_n = keep_last_n
        self.save_frequency = save_frequency
        self.metric_name = metric_name
        self.mode = mode
        self.timeout_minutes = timeout_minutes
        self.best_metric: float | None = None
        self._stored: list[storage.Stored] = []
        self._snapshots: dict[str, Snapshot] | None = {} if background else None
        self._writer = _Writer()
        # Runs at the latest when Python exits: a failed save is never silent.
        weakref.finalize(self, self._writer.report)
        if is_main_process():
            storage.make_folder(self.checkpoint_dir)
            for path in storage.clean_left_overs(self.checkpoint_dir):
                logger.info("removed %s, left by a process that was killed", path)
        self._read_disk()
        if is_main_process():
            self._move_pointers()

    # --- which and when ----------------------------------------------------------------------

    def should_save(self, epoch: int) -> bool:
        """Whether a periodic save is due after this epoch, counted from 0."""
        return (epoch + 1) % self.save_frequency == 0

    def is_better_metric(self, value: float) -> bool:
        """Whether `value` beats the best one so far; NaN never does."""
        if math.isnan(value):
            return False
        if self.best_metric is None:
            return True
        return value < self.best_metric if self.mode == "min" else value > self.best_metric

    def get_latest_checkpoint(self) -> Path | None:
        """The newest checkpoint that is complete by names and sizes; a pending save is not yet."""
        complete = (one.path for one in reversed(self._stored) if _is_complete(one.path))
        return next(complete, None)

    def get_best_checkpoint(self) -> Path | None:
        """The best checkpoint by the metric, unless none was ever measured."""
        best = self._best()
        return None if best is None or not _is_complete(best.path) else best.path

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
            background=config.checkpoint.background,
            timeout_minutes=config.training.timeout_minutes,
        )

    def save_checkpoint(
        self,
        epoch: int,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        scheduler: HasState | None = None,
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
        process must, since each has its share to save.
        """
        name = f"epoch_{epoch:04d}" if step is None else f"step_{step:08d}"
        sharded = is_sharded(model)
        if not sharded and not is_main_process():
            return self.checkpoint_dir / name
        # One save in flight; an error of the last one surfaces here.
        if sharded:
            name, hidden = self._begin_together(name)
        else:
            self.wait()
            name = storage.free_name(self.checkpoint_dir, name)
        metric = self._metric(metrics, is_best)
        best = is_best
        if best is None:
            best = metric is not None and self.is_better_metric(metric)
        best_metric = metric if best else self.best_metric
        facts = {
            "serial": self._stored[-1].serial + 1 if self._stored else 1,
            "step": step,
            "epoch": epoch,
            "metric_name": self.metric_name,
            "metric": metric,
            "is_best": best,
            "world_size": get_world_size(),
            "config_sha256": None
            if config_yaml is None
            else hashlib.sha256(config_yaml.encode()).hexdigest(),
        }
        described: dict[str, Any] = {
            "epoch": epoch,
            "step": step,
            "metrics": dict(metrics or {}),
            "best_metric": best_metric,
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "optimizer": None,
            "state": dict(state or {}),
        }
        files: dict[str, Content] = {}
        moments: dict[str, Tensor] | None = None
        if optimizer is not None:
            moments, described["optimizer"] = optimizer_state.describe(model, optimizer)
        if sharded:
            from overt.checkpoint import shards

            share, index = shards.collect(model, ema, moments)
            files[shards.share_file(get_rank())] = self._content("share", share)
            if index is not None:
                files[storage.SHARDS] = index
        else:
            files["model.safetensors"] = self._content("model", _weights(model))
            if moments is not None:
                files["optimizer.safetensors"] = self._content("optimizer", TensorFile(moments))
            if ema is not None:
                files["ema.safetensors"] = self._content("ema", _weights(ema))
        self.best_metric = best_metric  # at once, although the file may take a while
        if not is_main_process():
            self._run(partial(self._write_share, hidden, files))
            return self.checkpoint_dir / name
        if tensors is not None:
            files["rng.safetensors"] = self._content("rng", TensorFile(tensors))
        if config_yaml is not None:
            files["config.yaml"] = Bytes(config_yaml.encode())
        files["state.json"] = Bytes(plain_values.encode(described, "state"))

        self._run(partial(self._write, name, files, facts, self._shares() if sharded else None))
        return self.checkpoint_dir / name

    def wait(self) -> None:
        """Until the work in the background is done; raises the error of a save."""
        self._writer.wait()

    def _begin_together(self, name: str) -> tuple[str, Path]:
        """The name of a save in shares and the folder to write to, the same on every process."""
        proposal: tuple[str, Path] | None = None
        problem: str | None = None
        try:
            self.wait()
            if is_main_process():
                name = storage.free_name(self.checkpoint_dir, name)
                hidden = self.checkpoint_dir / storage.hidden_name("writing", name)
                storage.remove([hidden])  # of an earlier save that failed, in this process
                proposal = name, hidden
        except (CheckpointError, OSError) as error:
            problem = str(error)  # raised on every process, or the others would wait for ever
        answers = gather_objects((proposal, problem))
        found = dict.fromkeys(problem for _, problem in answers if problem is not None)
        if found:
            raise CheckpointError("; ".join(found))
        agreed: tuple[str, Path] = answers[0][0]
        return agreed

    def _shares(self) -> storage.Shares:
        from overt.checkpoint import shards

        others = range(1, get_world_size())
        files = tuple(shards.share_file(rank) for rank in others)
        return storage.Shares(files, 60 * self.timeout_minutes)

    def _run(self, task: Callable[[], None]) -> None:
        """Now, or in the background."""
        if self._snapshots is None:
            task()
        else:
            self._writer.start(task)

    def _write_share(self, hidden: Path, files: dict[str, Content]) -> None:
        for file, content in files.items():
            storage.write_share(hidden, file, content, parallel=self._snapshots is None)

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

    def _content(self, name: str, file: TensorFile) -> Content:
        if self._snapshots is None:
            return file
        snapshot = self._snapshots.setdefault(name, Snapshot())
        snapshot.take(file)
        return snapshot

    def _write(
        self,
        name: str,
        files: dict[str, Content],
        facts: dict[str, Any],
        shares: storage.Shares | None,
    ) -> None:
        try:
            stored = storage.write_folder(
                self.checkpoint_dir, name, files, facts, self._snapshots is None, shares
            )
        except BaseException:
            self._read_disk()  # a best value that was not saved does not count
            raise
        # The list is replaced, never changed: the training thread may be reading it.
        self._stored = [*self._stored, stored]
        self._move_pointers()
        found = storage.verify(stored.path, contents=False)
        if not found.good:
            raise CheckpointError(
                f"{stored.path} was written but is not as it should be ({found}); older "
                "checkpoints are kept. Check the disk, and that no other run saves to this folder."
            )
        superfluous = self._hide_superfluous()
        if self._snapshots is not None:
            storage.remove(superfluous)
        elif superfluous:
            self._writer.start(lambda: storage.remove(superfluous))  # training need not wait

    def _hide_superfluous(self) -> list[Path]:
        keep = {one.path for one in self._stored[-self.keep_last_n :]}
        keep |= {one.path for one in self._ranking()[: self.keep_best_n]}
        go = [
            one.path
            for one in self._stored
            if one.path not in keep and not storage.is_pinned(one.path)
        ]
        self._stored = [one for one in self._stored if one.path not in go]
        self._move_pointers()  # before their targets go: a pointer never dangles
        return [storage.hide(path) for path in go]

    def _ranking(self) -> list[storage.Stored]:
        """What was measured by this metric, the best first."""
        best = self._best()
        sign = 1.0 if self.mode == "min" else -1.0
        ranked = [
            (one is not best, sign * one.metric, one.serial, one)
            for one in self._stored
            if one.metric is not None
            and not math.isnan(one.metric)
            and one.manifest.get("metric_name") == self.metric_name
        ]
        return [one for *_, one in sorted(ranked, key=lambda entry: entry[:3])]

    def _best(self) -> storage.Stored | None:
        """The last one that was saved as best: it beat, or was said to beat, all before it."""
        flagged = (
            one
            for one in reversed(self._stored)
            if one.is_best and one.manifest.get("metric_name") == self.metric_name
        )
        return next(flagged, None)

    def _move_pointers(self) -> None:
        newest = self._stored[-1].path if self._stored else None
        best = self._best()
        storage.point(self.checkpoint_dir / "latest", newest)
        storage.point(self.checkpoint_dir / "best", None if best is None else best.path)

    def _read_disk(self) -> None:
        self._stored, _ = storage.scan(self.checkpoint_dir)
        best = self._best()
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
        files = storage.read_manifest(path)["files"]
        described = _read_state(path / "state.json")
        if optimizer is not None and model is None:
            raise CheckpointError(
                "optimizer state is kept by parameter name: pass the model together with the "
                "optimizer"
            )
        if ema is not None:
            _require(path, "ema")
        if optimizer is not None:
            _require(path, "optimizer")
        if model is not None and is_sharded(model):
            from overt.checkpoint import shards

            shards.restore(path, described["optimizer"], model, ema, optimizer)
        else:
            if model is not None:
                _restore_weights(path, "model", model)
            if ema is not None:
                _restore_weights(path, "ema", ema)
            if model is not None and optimizer is not None:
                moments = read_part(path, "optimizer")
                optimizer_state.restore(model, optimizer, moments, described["optimizer"])
        if scaler is not None and described["scaler"]:
            scaler.load_state_dict(described["scaler"])
        elif scaler is not None and scaler.state_dict():
            logger.warning("%s holds no scaler state; the loss scale starts anew", path)
        if self.best_metric is None:  # the best one itself is gone, or lies in another folder
            self.best_metric = described["best_metric"]
        tensors: dict[str, Tensor] = {}
        if "rng.safetensors" in files:
            tensors, _ = read_safetensors(path / "rng.safetensors")
        config = (path / "config.yaml").read_text() if "config.yaml" in files else None
        returned = ("epoch", "step", "metrics", "best_metric", "scheduler", "state")
        return {
            "path": path,
            **{key: described[key] for key in returned},
            "tensors": tensors,
            "config_yaml": config,
        }

    def _agree_on(self, given: str | Path | None) -> Path:
        """The checkpoint to load, chosen and checked by the main process for all."""
        path: Path | None = None
        problem: str | None = None
        if is_main_process():
            try:
                self.wait()
                path = self._newest_good() if given is None else _checked(Path(given))
            except (CheckpointError, OSError) as error:
                problem = str(error)  # raised on every process, or the others would wait for ever
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
        self._move_pointers()
        if path is None:
            raise CheckpointError(
                f"there is no good checkpoint in {self.checkpoint_dir}; start the run anew, or "
                "name a checkpoint elsewhere"
            )
        return path


class _Writer:
    """One task in flight, in a thread; its error is kept until someone hears it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, task: Callable[[], None]) -> None:
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(task,), name="overt-checkpoint")
        self._thread.start()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # handed over to the thread that waits
            self._error = error

    def wait(self) -> None:
        # The thread itself comes by here when it held the last reference to the manager.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def report(self) -> None:
        """For the end, when nobody is left to raise to."""
        try:
            self.wait()
        except Exception as error:
            logger.error("the last checkpoint was NOT saved: %s", error)


def _weights(module: nn.Module) -> TensorFile:
    """A module's tensors under the bare module's names, tied ones once."""
    state = module.state_dict()
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"{key} of {type(module).__name__} is a {type(value).__name__}, not a tensor; a "
                "checkpoint holds tensors. Return a tensor from get_extra_state, or keep it in "
                "the configuration."
            )
    clean = clean_keys(state, "the model")
    kept, aliases = split_tied({clean[key]: value for key, value in state.items()})
    return TensorFile(kept, {"format": "pt", "overt.tied": json.dumps(aliases)})


def _restore_weights(path: Path, part: str, module: nn.Module) -> None:
    tensors = read_part(path, part)
    report = load_tensors(tensors, module, strict=True, source=str(path / part))
    if report.skipped:
        raise CheckpointError(
            f"{report}\nA resumed run needs the sizes it was saved with; to start another run "
            "from these weights use init_from."
        )


def _require(path: Path, part: str) -> None:
    held = folder_parts(path)
    if part not in held:
        raise CheckpointError(
            f"{path} has no {part} part, so the run cannot go on from it exactly; it holds "
            f"{', '.join(held)}. Start a new run from its weights instead (init_from)."
        )


def _read_state(file: Path) -> dict[str, Any]:
    """What is not tensors, with every key that is read from it."""
    try:
        described = plain_values.decode(file.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from None
    if not isinstance(described, dict) or not described.keys() >= STATE_KEYS:
        raise CheckpointError(f"{file} was not written by overt: keys are missing")
    return described


def _checked(path: Path) -> Path:
    if not path.is_dir():
        raise CheckpointError(
            f"{path} is not a checkpoint folder of overt. To resume, name a folder such as "
            "checkpoints/latest; to start from the weights of any other file use init_from."
        )
    path = path.resolve()
    found = storage.verify(path)
    if not found.good:
        raise CheckpointError(
            f"{path} cannot be used: {found}. Name an older checkpoint beside it."
        )
    return path


def _is_complete(path: Path) -> bool:
    return storage.verify(path, contents=False).good
