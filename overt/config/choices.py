"""When to choose which value: advice for `overt config --explain KEY`, beyond what a key means."""

from __future__ import annotations

# Keys with a few allowed values: when each is right.
CHOICES: dict[str, dict[str, str]] = {
    "training.device": {
        "auto": "CUDA where there is one, else the CPU; right nearly always",
        "cpu": "to debug, or where the GPU belongs to someone else",
        "cuda": "to fail at once without a GPU, instead of training on the CPU",
        "cuda:1": "a single process on the second GPU; so for every other number",
        "mps": "one process on a Mac's GPU, image encoders only; not covered by a test on a Mac",
    },
    "training.strategy": {
        "auto": "single for one process, ddp for several; right unless memory is short",
        "single": "one process, no wrapper",
        "ddp": "the model, its gradients and optimizer state fit on each GPU: fastest",
        "fsdp": "they do not fit: each GPU keeps a shard; more communication. See `overt plan`",
    },
    "training.precision": {
        "fp32": "reference and CPUs; slowest on GPUs",
        "tf32": "GPUs since Ampere, float32 storage with faster matrix products; a safe first step",
        "bf16": "GPUs since Ampere, usually fastest; needs no loss scaling",
        "fp16": "GPUs before Ampere; the loss is scaled, and steps that overflow are skipped",
    },
    "training.compile": {
        "auto": "blocks on CUDA for runs of 500 steps and more where the recipe says that it pays; "
        "a first line says why or why not",
        "none": "short runs, debugging, models whose shapes change from step to step",
        "blocks": "compiles each repeated block once: most of the speed, a start of a minute",
        "model": "fixed shapes and runs of hours: the most speed, the longest start",
    },
    "training.nonfinite": {
        "skip": "long runs: a bad batch costs one step; stops after max_skipped_in_a_row",
        "stop": "while a new model is debugged: the first NaN or Inf ends the run",
    },
    "training.loss_spike": {
        "ignore": "losses that jump by nature, such as those of GANs",
        "report": "spikes are recorded and named, training is not changed",
        "skip": "long runs that spikes have ruined before; not with fp16",
    },
    "training.hang": {
        "report": "someone watches: stacks are written, the run keeps waiting",
        "stop": "nobody watches, and a launcher restarts the run from its last checkpoint",
    },
    "optimizer.lr_scaling": {
        "none": "the rate was tuned for this batch size, or the optimizer hardly depends on it",
        "linear": "SGD, and large batches in self-supervised training (needs lr_base_batch)",
        "sqrt": "Adam and AdamW (needs lr_base_batch)",
    },
    "logging.wandb_mode": {
        "online": "the machine reaches the server",
        "offline": "compute nodes without a network; `wandb sync` uploads later",
        "null": "as the variable WANDB_MODE says",
    },
    "checkpoint.mode": {
        "min": "errors and losses: lower is better",
        "max": "accuracies and scores: higher is better",
    },
}

# Numbers and switches: how to choose them.
ADVICE: dict[str, str] = {
    "training.batch_size": "As large as memory allows; `overt plan` predicts it. The result "
    "depends on global_batch_size only.",
    "training.global_batch_size": "Set this where results are to be compared: it stays the same on "
    "any number of GPUs, and accumulation follows.",
    "training.accumulation_steps": "Leave null and set global_batch_size instead.",
    "training.num_workers": "Raise it while the log shows a data wait above a few percent; up to "
    "the CPU cores of each GPU. 0 helps to debug a data set.",
    "training.grad_clip_norm": "A few times the usual grad_norm of the log; 1 is common for "
    "transformers. null switches clipping off.",
    "training.activation_checkpointing": "true when memory runs out: about a third slower.",
    "training.memory_gib": "null, unless others need memory of the same GPU.",
    "training.deterministic": "true to reproduce a run bit for bit on CUDA; slower.",
    "training.cuda_graph": "auto records the pass on CUDA where every step is the same work, and "
    "continues without it where that fails; true insists on it, false saves its memory.",
    "training.ema_momentum": "0.999 for thousands of steps, 0.9999 for hundreds of thousands; "
    "null: no average.",
    "training.evaluate_every_steps": "Often enough to see a trend, seldom enough that evaluation "
    "takes less than a tenth of the time.",
    "training.patience": "null unless runs are stopped early on purpose.",
    "training.hang_minutes": "Longer than the longest evaluation.",
    "optimizer.lr": "The one number worth a sweep: `overt train -m optimizer.lr=1e-4,3e-4,1e-3`.",
    "optimizer.weight_decay": "0.05 is common for AdamW and transformers, 1e-4 for SGD, 0 for "
    "small models.",
    "optimizer.decay_only_matrices": "true for transformers.",
    "checkpoint.every_steps": "As many steps as you are ready to repeat after a crash; with "
    "background=true saving costs little.",
    "checkpoint.background": "true unless host memory is short: a snapshot is kept while writing.",
    "checkpoint.resume": "auto: the same command resumes; never: refuse to continue a run.",
    "logging.every_steps": "A line waits for the GPU: 10 or more for fast steps.",
}
