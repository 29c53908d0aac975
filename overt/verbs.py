"""Every verb of the command line: its module, and what it does."""

VERBS = {
    "train": ("overt.train", "train a recipe"),
    "evaluate": ("overt.commands.evaluate", "score a checkpoint on held-out data"),
    "track": ("overt.commands.track", "track points through a video, and draw them"),
    "complete": ("overt.commands.complete", "complete a defective skull with an implant"),
    "estimate": ("overt.commands.estimate", "estimate mesh and camera of the person in a picture"),
    "launch": (
        "overt.commands.launch",
        "start training on Slurm, in the background, or as a service",
    ),
    "stages": (
        "overt.commands.stages",
        "run a chain of trainings that use one another",
    ),
    "plan": ("overt.commands.plan", "predict memory and time of a run"),
    "recipes": ("overt.commands.recipes", "list what can be trained"),
    "config": ("overt.commands.config", "print a configuration, explain its keys"),
    "features": ("overt.commands.features", "write the features of images to a file"),
    "ckpt": ("overt.commands.ckpt", "inspect a checkpoint, or export it"),
    "data": ("overt.commands.data", "generate, pack and prepare data sets"),
    "runs": ("overt.commands.runs", "list runs: status, step, best score, time left"),
    "watch": ("overt.commands.watch", "follow a run in the terminal"),
    "report": ("overt.commands.report", "write one HTML page about runs"),
    "doctor": ("overt.commands.doctor", "check machine, cluster and run before training"),
    "prove": ("overt.commands.prove", "kill and resume a short run, compare every bit"),
    "new": ("overt.commands.new", "write a recipe folder to start from"),
    "examples": ("overt.commands.examples", "list and copy examples"),
    "docs": ("overt.commands.docs", "read the documentation, here or in a browser"),
    "completion": ("overt.commands.completion", "complete verbs, keys and values in your shell"),
    "demo": ("overt.commands.demo", "train, score and draw a small tracker in minutes"),
}
