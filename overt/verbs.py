"""Every verb of the command line: its module, and what it does."""

VERBS = {
    "train": ("overt.train", "train a recipe"),
    "evaluate": ("overt.commands.evaluate", "score a checkpoint on held-out data"),
    "track": ("overt.commands.track", "follow points through a video, and draw them"),
    "complete": ("overt.commands.complete", "complete a defective skull with an implant"),
    "estimate": ("overt.commands.estimate", "estimate mesh and camera of the person in a picture"),
    "launch": (
        "overt.commands.launch",
        "start training on Slurm, in the background, or as a service",
    ),
    "stages": ("overt.commands.stages", "run a chain of trainings, each fed by the one before"),
    "plan": ("overt.commands.plan", "predict batch, memory and time of a run"),
    "recipes": ("overt.commands.recipes", "list what can be trained"),
    "config": ("overt.commands.config", "print a configuration, explain its keys"),
    "ckpt": ("overt.commands.ckpt", "look into a checkpoint, or export it"),
    "data": ("overt.commands.data", "make, pack and prepare data sets"),
    "runs": ("overt.commands.runs", "list runs: status, step, best score, time left"),
    "watch": ("overt.commands.watch", "follow a run in the terminal"),
    "report": ("overt.commands.report", "write one HTML page about runs"),
    "doctor": ("overt.commands.doctor", "check machine, cluster and run before training"),
    "prove": ("overt.commands.prove", "kill and resume a run of yours, compare every bit"),
    "new": ("overt.commands.new", "write a recipe folder to start from"),
    "examples": ("overt.commands.examples", "list and copy examples"),
    "docs": ("overt.commands.docs", "read the documentation, here or in a browser"),
    "completion": ("overt.commands.completion", "complete verbs, keys and values in your shell"),
    "demo": ("overt.commands.demo", "train, score and draw a small tracker in minutes"),
}
