"""Every key of the engine's configuration, with its type, its meaning and what is refused.

Values live in the YAML files under `conf`; fields here have no default.
A comment line above a field is its explanation in `overt config --explain`. Never imports torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from overt.checks import each_within, one_of, within
from overt.errors import ConfigError


@dataclass
class RecipeSection:
    # name of the recipe; also the default name of the experiment
    name: str = MISSING
    # the class of the recipe, a dotted path; built once the configuration is checked
    _target_: str = MISSING
    # the dataclass of its sections model, data, loss and evaluation; a module without torch
    settings: str = MISSING


@dataclass
class TrainingSection:
    # total optimizer steps; null: use num_epochs
    num_steps: int | None = MISSING
    # total passes over the data set; null: use num_steps
    num_epochs: int | None = MISSING
    # samples per process and micro-batch; null: derived from global_batch_size
    batch_size: int | None = MISSING
    # samples per optimizer step over all processes and micro-batches; null: derived
    global_batch_size: int | None = MISSING
    # micro-batches per optimizer step; null: derived, 1 if global_batch_size is null too
    accumulation_steps: int | None = MISSING
    # drop the last, smaller global batch of an epoch
    drop_last: bool = MISSING
    # loader processes per training process; 0: load in the training process
    num_workers: int = MISSING
    # auto, cpu, cuda, cuda:N or mps (a Mac, image encoders only); auto uses CUDA if available
    device: str = MISSING
    # auto, single, ddp or fsdp (shards parameters, gradients and optimizer state); auto is
    # ddp with several processes
    strategy: str = MISSING
    # fsdp with accumulation: reduce gradients after every micro-batch, not only the last; less
    # memory, more communication
    reduce_every_micro_batch: bool = MISSING
    # fp32, tf32, bf16 or fp16
    precision: str = MISSING
    # largest norm of the gradient over all parameters; null: no clipping
    grad_clip_norm: float | None = MISSING
    # auto (blocks on CUDA where it pays, else none), none, blocks (the recipe's repeated blocks,
    # one by one) or model
    compile: str = MISSING
    # backend of torch.compile
    compile_backend: str = MISSING
    # fraction of the activations that compiled code stores for the backward pass; the rest is
    # recomputed, the cheapest first; 1: fastest
    compile_memory_budget: float = MISSING
    # compiled code recomputes norms and activation functions in the backward pass: less memory,
    # slightly slower
    compile_recompute: bool = MISSING
    # replay forward and backward as one CUDA graph: auto (on CUDA, for recipes whose steps have
    # one shape), true or false
    cuda_graph: bool | str = MISSING
    # GiB of the device that recipes with model.recompute=auto may fill; null: what is free
    memory_gib: float | None = MISSING
    # recompute the recipe's blocks in the backward pass instead of storing their activations
    activation_checkpointing: bool = MISSING
    # use deterministic kernels: slower, and reproducible bit for bit on CUDA too
    deterministic: bool = MISSING
    # momentum of the EMA of the weights used for evaluation; null: no EMA
    ema_momentum: float | None = MISSING
    # momentum at the last step, reached linearly; null: stays at ema_momentum
    ema_final_momentum: float | None = MISSING
    # evaluate every N steps, and after the last; null: only after the last
    evaluate_every_steps: int | None = MISSING
    # the interval of single evaluation sets of the recipe, {NAME: steps or null}; others follow
    # evaluate_every_steps
    evaluate_sets: dict[str, int | None] = MISSING
    # also evaluate before the first step
    evaluate_at_start: bool = MISSING
    # stop after this many evaluations in which checkpoint.metric_name did not improve; null: never
    patience: int | None = MISSING
    # what to do with a step whose loss or gradient is NaN or Inf: skip or stop
    nonfinite: str = MISSING
    # with skip: stop after this many skipped steps in a row
    max_skipped_in_a_row: int = MISSING
    # run a skipped batch again and name the first module that produced NaN or Inf
    name_nonfinite_module: bool = MISSING
    # what to do with a step whose loss is far above the recent ones: ignore, report or skip
    loss_spike: str = MISSING
    # limit: this many robust standard deviations above the median of the window
    loss_spike_deviations: float = MISSING
    # steps in the window; a quarter of them must be known before anything counts as a spike
    loss_spike_window: int = MISSING
    # minutes that a process waits for the others before it exits with an error
    timeout_minutes: float = MISSING
    # profile these steps, [first, last], to RUN/profile: a trace and a table; null: none
    profile_steps: list[int] | None = MISSING
    # record CUDA allocations; an out-of-memory error writes them to RUN/profile
    memory_snapshot: bool = MISSING
    # minutes without progress before all ranks dump their stacks and name the one that is
    # behind; longer than the longest evaluation; null: never
    hang_minutes: float | None = MISSING
    # after hang_minutes: report (keep waiting until timeout_minutes) or stop (exit)
    hang: str = MISSING

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cuda:\d+", self.device):  # one of several, for a single process
            one_of("training.device", self.device, ("auto", "cpu", "cuda", "cuda:0", "mps"))
        one_of("training.strategy", self.strategy, ("auto", "single", "ddp", "fsdp"))
        one_of("training.precision", self.precision, ("fp32", "tf32", "bf16", "fp16"))
        one_of("training.compile", self.compile, ("auto", "none", "blocks", "model"))
        graph = str(self.cuda_graph).lower()
        one_of("training.cuda_graph", graph, ("auto", "true", "false"))
        self.cuda_graph = graph if graph == "auto" else graph == "true"
        one_of("training.nonfinite", self.nonfinite, ("skip", "stop"))
        one_of("training.loss_spike", self.loss_spike, ("ignore", "report", "skip"))
        one_of("training.hang", self.hang, ("report", "stop"))
        if self.device == "mps" and self.precision == "fp16":
            raise ConfigError(
                "training.precision=fp16 with training.device=mps: the loss scaler needs CUDA; use "
                "bf16 or fp32"
            )
        if self.loss_spike == "skip" and self.precision == "fp16":
            raise ConfigError(
                "training.loss_spike=skip with training.precision=fp16: the loss scaler decides "
                "which steps are made; use bf16, or training.loss_spike=report"
            )
        if (self.num_steps is None) == (self.num_epochs is None):
            raise ConfigError(
                f"training.num_steps={self.num_steps} and training.num_epochs={self.num_epochs}: "
                "give exactly one of the two and set the other to null"
            )
        if self.batch_size is None and self.global_batch_size is None:
            raise ConfigError(
                "training.batch_size and training.global_batch_size are both null; give at least "
                "one: samples per process and micro-batch, or samples per optimizer step"
            )
        positive = (
            "num_steps", "num_epochs", "batch_size", "global_batch_size", "accumulation_steps",
            "grad_clip_norm", "evaluate_every_steps", "max_skipped_in_a_row", "timeout_minutes",
            "loss_spike_deviations", "loss_spike_window", "hang_minutes", "patience", "memory_gib",
        )  # fmt: skip
        each_within("training", self, positive, 0, above=True)
        for name, every_steps in self.evaluate_sets.items():
            if every_steps is not None and every_steps < 1:
                raise ConfigError(
                    f"training.evaluate_sets.{name}={every_steps}; use 1 or more, or null"
                )
        within("training.compile_memory_budget", self.compile_memory_budget, 0, 1, above=True)
        steps = self.profile_steps
        if steps is not None and not (len(steps) == 2 and 1 <= steps[0] <= steps[1]):
            raise ConfigError(
                f"training.profile_steps={steps}; give the first and the last step, such as "
                "[100,105], or null"
            )
        within("training.num_workers", self.num_workers, 0)
        each_within("training", self, ("ema_momentum", "ema_final_momentum"), 0, 1)
        if self.ema_final_momentum is not None and self.ema_momentum is None:
            raise ConfigError("training.ema_final_momentum is set; set training.ema_momentum too")


@dataclass
class OptimizerRule:
    """Parameters with their own optimizer class. What a rule does not say has a default."""

    # matrices (2-D weights except embeddings), or a regular expression searched in the names
    match: str = MISSING
    # class of their optimizer
    _target_: str = MISSING
    # regular expression of names that the rule excludes; null: none
    skip: str | None = None
    # learning rate instead of optimizer.lr, with the same schedule; null: use lr_scale
    lr: float | None = None
    # factor of the learning rate
    lr_scale: float = 1.0
    # null: optimizer.weight_decay
    weight_decay: float | None = None
    # additional arguments of the class
    arguments: dict[str, Any] = field(default_factory=dict)

    def check(self, key: str) -> None:
        """Refuse invalid values of the rule with this key."""
        for name in ("match", "skip"):
            try:
                re.compile(getattr(self, name) or "")
            except re.error as error:
                raise ConfigError(
                    f"{key}.{name}={getattr(self, name)} is not a regular expression: {error}"
                ) from None
        for name in ("lr", "lr_scale"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{key}.{name}={value}; use a number above 0")
        if self.lr is not None and self.lr_scale != 1.0:
            raise ConfigError(
                f"{key}.lr={self.lr} and {key}.lr_scale={self.lr_scale}: give one of the two"
            )
        if self.weight_decay is not None and not self.weight_decay >= 0:
            raise ConfigError(f"{key}.weight_decay={self.weight_decay}; use 0 or more")


@dataclass
class OptimizerSection:
    # class of the optimizer, from torch.optim or an allowed package
    _target_: str = MISSING
    # learning rate at lr_base_batch; see lr_scaling
    lr: float = MISSING
    # decoupled (AdamW) or added to the gradient (SGD, Adam), as the class does it; 0: none
    weight_decay: float = MISSING
    # class and arguments of a schedule that starts from weight_decay; null: constant
    weight_decay_schedule: Any = MISSING
    # no weight decay for biases, norms and other tensors of fewer than two dimensions
    decay_only_matrices: bool = MISSING
    # how the learning rate follows the global batch: none, linear or sqrt
    lr_scaling: str = MISSING
    # global batch size that lr applies to; required by linear and sqrt
    lr_base_batch: int | None = MISSING
    # additional arguments of the class, such as betas and eps
    arguments: dict[str, Any] = MISSING
    # parameters with another class, the first rule that matches: [{match: matrices or a
    # regular expression, _target_: torch.optim.Muon, skip, lr or lr_scale, weight_decay,
    # arguments}]
    rules: list[OptimizerRule] = field(default_factory=list)

    @property
    def rule_targets(self) -> dict[str, str]:
        """Return the classes of the rules by their keys."""
        return {f"optimizer.rules.{n}._target_": rule._target_ for n, rule in enumerate(self.rules)}

    def __post_init__(self) -> None:
        for number, rule in enumerate(self.rules):
            rule.check(f"optimizer.rules.{number}")
        one_of("optimizer.lr_scaling", self.lr_scaling, ("none", "linear", "sqrt"))
        each_within("optimizer", self, ("lr", "lr_base_batch"), 0, above=True)
        within("optimizer.weight_decay", self.weight_decay, 0)
        if self.lr_scaling != "none" and self.lr_base_batch is None:
            raise ConfigError(
                f"optimizer.lr_scaling={self.lr_scaling} needs optimizer.lr_base_batch: the "
                "global batch size that optimizer.lr is meant for"
            )


@dataclass
class LoggingSection:
    # log losses, rates and speeds every N steps
    every_steps: int = MISSING
    # also write event files for TensorBoard, to RUN/tensorboard
    use_tensorboard: bool = MISSING
    # also log to Weights & Biases (pip install 'overt[wandb]')
    use_wandb: bool = MISSING
    # project of Weights & Biases that the run belongs to
    wandb_project: str = MISSING
    # user or team that owns the project; null: the default of the W&B account
    wandb_entity: str | None = MISSING
    # tags of the run in Weights & Biases: [ablation, seed1]
    wandb_tags: list[str] = MISSING
    # online or offline; null: the environment variable WANDB_MODE, or online
    wandb_mode: str | None = MISSING
    # with each log line: utilization of CPU, memory, disk, network and GPUs
    system_metrics: bool = MISSING
    # with each log line: norms of gradients and weights of modules at this depth; null: none
    norms_depth: int | None = MISSING
    # histograms of gradients and weights every N steps; null: none
    histograms_every_steps: int | None = MISSING
    # count the FLOPs of a step once, with one extra pass, and log the utilization of the device
    model_flops: bool = MISSING
    # more trackers: classes with their arguments, [{_target_: package.module.Class, key: value}]
    trackers: list[Any] = MISSING

    def __post_init__(self) -> None:
        each_within("logging", self, ("every_steps", "norms_depth", "histograms_every_steps"), 1)
        for entry in self.trackers:
            if not isinstance(entry, dict) or not isinstance(entry.get("_target_"), str):
                raise ConfigError(
                    f"logging.trackers has {entry!r}; write {{_target_: package.module.Class}} and "
                    "the arguments of the class"
                )
        if self.wandb_mode is not None:
            one_of("logging.wandb_mode", self.wandb_mode, ("online", "offline"))


@dataclass
class KeyRule:
    """Tensors of `checkpoint.init_from` under other names."""

    # regular expression searched in tensor names
    match: str = MISSING
    # replacement of the matched text, \\1 for its first group; null: drop these tensors
    to: str | None = MISSING

    def check(self, key: str) -> None:
        """Refuse invalid values of the rule with this key."""
        try:
            re.compile(self.match)
        except re.error as error:
            raise ConfigError(
                f"{key}.match={self.match} is not a regular expression: {error}"
            ) from None


@dataclass
class CheckpointSection:
    # save every N steps, and after the last
    every_steps: int = MISSING
    # how many of the newest checkpoints to keep
    keep_last_n: int = MISSING
    # how many of the best checkpoints to keep in addition
    keep_best_n: int = MISSING
    # the score that ranks checkpoints; null: none
    metric_name: str | None = MISSING
    # whether a lower (min) or higher (max) metric_name is better
    mode: str = MISSING
    # further scores, better in the same direction: the best checkpoint by each is kept and named
    # best_SCORE
    also_best: list[str] = field(default_factory=list)
    # copy the state, then write it while training continues
    background: bool = MISSING
    # also write checkpoint_latest.pth and checkpoint_best.pth, for scripts of older projects
    legacy_names: bool = False
    # auto (resume from the run folder), never, the path of a checkpoint, or a training file of
    # an original project (model, optimizer and scheduler in one torch file), whose run is continued
    resume: str = MISSING
    # keys that may differ from the saved run although they change the result: [training.num_steps]
    accept_changes: list[str] = MISSING
    # weights to start from: any checkpoint file or folder, or shipped:NAME, those of a recipe that
    # come with the package; null: fresh weights
    init_from: str | None = MISSING
    # keys or prefixes of tensors that init_from does not load: [head, encoder.pos]
    init_skip: list[str] = MISSING
    # names of tensors in init_from, rewritten by rules that all apply in turn: [{match: a regular
    # expression, to: its replacement or null}]
    init_map: list[KeyRule] = MISSING

    def __post_init__(self) -> None:
        for number, rule in enumerate(self.init_map):
            rule.check(f"checkpoint.init_map.{number}")
        one_of("checkpoint.mode", self.mode, ("min", "max"))
        each_within("checkpoint", self, ("every_steps", "keep_last_n"), 1)
        within("checkpoint.keep_best_n", self.keep_best_n, 0)
        for name in ("init_skip", "init_map"):
            if getattr(self, name) and self.init_from is None:
                raise ConfigError(
                    f"checkpoint.{name}={list(getattr(self, name))} has no effect without weights "
                    f"to start from; set checkpoint.init_from, or checkpoint.{name}=[]"
                )


@dataclass
class Schema:
    # name of the run folder below output_dir
    exp_name: str = MISSING
    # parent of the run folders
    output_dir: str = MISSING
    # random seed; all randomness of the run is derived from it
    seed: int = MISSING
    recipe: RecipeSection = MISSING
    training: TrainingSection = MISSING
    optimizer: OptimizerSection = MISSING
    # class and arguments of a schedule of overt.schedule
    schedule: Any = MISSING
    logging: LoggingSection = MISSING
    checkpoint: CheckpointSection = MISSING
    # the four sections of the recipe, typed by recipe.settings
    model: Any = MISSING
    data: Any = MISSING
    loss: Any = MISSING
    evaluation: Any = MISSING
