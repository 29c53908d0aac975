"""The one list of what a run folder holds, and where.

runs/NAME/
  config.yaml        the resolved configuration; `overt train --config` starts from it alone
  command.txt        every command that worked on this run, with its time
  metrics.jsonl      losses, rates, scores by step         events.jsonl   restarts, skipped steps
  checkpoints/       step_00001000/ ..., latest and best   tensorboard/   the same for its viewer
  pictures/          what the recipe drew                  skipped/       samples of skipped steps
  warnings/          warnings of each rank and its loader workers
  profile/           traces of `training.profile_steps`, memory snapshots
  lock.json          who trains this run now; gone when nobody does
  hang/              stacks and collectives of every rank, if the run ever made no progress
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Folders that a run, its trackers and the commands on it write: another folder is another run's.
OWN_FOLDERS = frozenset(
    {"checkpoints", "evaluation", "hang", "pictures", "profile", "skipped", "slurm", "tensorboard",
     "wandb", "warnings"}
)  # fmt: skip


@dataclass(frozen=True)
class RunPaths:
    """The paths of one run folder."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def lock(self) -> Path:
        return self.root / "lock.json"

    @property
    def command(self) -> Path:
        return self.root / "command.txt"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    def earlier_metrics(self, number: int) -> Path:
        """Return where the metrics of an earlier start from scratch are kept."""
        return self.root / f"metrics.{number}.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def pictures(self) -> Path:
        return self.root / "pictures"

    @property
    def profile(self) -> Path:
        return self.root / "profile"

    @property
    def hang(self) -> Path:
        return self.root / "hang"

    @property
    def wandb_run_id(self) -> Path:
        return self.root / "wandb_run_id"

    @property
    def mlflow_run_id(self) -> Path:
        return self.root / "mlflow_run_id"

    @property
    def skipped(self) -> Path:
        return self.root / "skipped"

    def skipped_by(self, rank: int) -> Path:
        return self.skipped / f"rank_{rank}.jsonl"

    def warnings_of(self, rank: int) -> Path:
        """Return the file of a rank and its loader workers."""
        return self.root / "warnings" / f"rank_{rank}.txt"
