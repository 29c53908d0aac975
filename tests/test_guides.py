"""The guides are followed: their commands and calls run, in order, in a folder of their own.

What a guide shows at full size runs here in small, by the substitutions below and no others:
`recipe=X` becomes the tiny X with the sizes of SMALL, several processes become one, and the files
that a reader brings (weights, videos, data sets) are made first.
"""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from doc_commands import BLOCK, ROOT, commands_of
from small_blade import POSE, SHARED

from overt.cli import main
from overt.config import build_recipe, load
from overt.data.moving_shapes import SceneSettings, make_sequence

TINY = {
    "cotracker3_offline": "cotracker3_tiny",
    "cotracker3_online": "cotracker3_online_tiny",
    **{name: f"{name}_tiny" for name in ("lbm", "hjepa", "pcdiff")},
    **{name: f"{name}_tiny" for name in ("blade_depthnet", "blade_posenet")},
}
RUN = [
    "training.device=cpu",
    "training.num_workers=0",
    "training.num_steps=1",
    "training.num_epochs=null",
    "training.evaluate_every_steps=null",
    "training.evaluate_at_start=false",
    "training.global_batch_size=null",
    "logging.use_tensorboard=false",
    "logging.every_steps=1",
    "checkpoint.background=false",
]
TRACKER = [
    "data.synthetic.count=3",
    "data.synthetic.frames=8",
    "data.synthetic.height=40",
    "data.synthetic.width=40",
    "data.synthetic.points=64",
    "data.crop_size=[32,32]",
    "data.held_out=1",
]
COTRACKER = [
    *TRACKER,
    "data.traj_per_sample=8",
    "model.corr_radius=1",
    "model.corr_levels=2",
    "model.train_iters=1",
    "model.eval_iters=1",
    "evaluation.resolution=[32,32]",
    "evaluation.single_point=false",
]
LBM = [
    *TRACKER,
    "data.frames=4",
    "data.points=8",
    "model.input_size=[32,32]",
    "model.embed_dim=16",
    "model.backbone_width=4",
    "model.memory_size=3",
    "evaluation.memory_size=3",
    "evaluation.frames=4",
]
PCDIFF = [
    "data.synthetic.count=2",
    "data.synthetic.side=24",
    "data.synthetic.points=400",
    "data.num_points=160",
    "data.num_implant_points=32",
    "model.width_multiplier=0.5",
    "model.resolution_multiplier=0.5",
    "model.embed_dim=16",
    "evaluation.steps=2",
    "evaluation.cases=1",
    "evaluation.loss_times=1",
]
HJEPA = [
    "data.synthetic.classes=4",
    "data.synthetic.per_class=9",
    "training.batch_size=8",
    "evaluation.k=3",
]
BLADE = [
    word for word in SHARED if word.startswith(("data.", "model.", "evaluation.", "training.b"))
]
SMALL = {
    "cotracker3_tiny": COTRACKER,
    "cotracker3_online_tiny": COTRACKER,
    "lbm_tiny": LBM,
    "hjepa_tiny": HJEPA,
    "pcdiff_tiny": PCDIFF,
    "blade_depthnet_tiny": BLADE,
    "blade_posenet_tiny": [*BLADE, *POSE],
}
# Words of a reader's machine, and what stands for them here.
HERE_INSTEAD = {
    "video.mp4": "video.npy",
    "runs/hjepa/": "runs/hjepa_tiny/",
    "runs/pcdiff/": "runs/pcdiff_tiny/",
    "runs/blade_depthnet/": "runs/blade_depthnet_tiny/",
    "runs/blade_posenet/": "runs/blade_posenet_tiny/",
    # The tiny DepthNet has a backbone of its own.
    "model.depth.backbone_checkpoint=depth_anything_v2.pth": "model.depth.backbone_checkpoint=null",
}
COMMAND = re.compile(r"`((?:overt|torchrun|srun) [^`]+)`")


def table_commands(page: Path) -> list[str]:
    """The commands in the second column of the page's tables."""
    rows = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    return [command for row in rows for command in COMMAND.findall(row[1])]


def smaller(command: str) -> list[str]:
    """The words of `overt`, with the substitutions of this test."""
    for there, here in HERE_INSTEAD.items():
        command = command.replace(there, here)
    words = shlex.split(re.sub(r"^(torchrun --nproc_per_node=\d+|srun python) ", "", command))
    words = ["train", *words[2:]] if words[:2] == ["-m", "overt.train"] else words[1:]
    verb = words[0]
    chosen = re.search(r"(?:recipe=|--recipe )(\w+)", command)
    if chosen is None:
        stored = re.search(r"runs/(\w+)/", command)
        extra = SMALL[stored[1]] if stored and verb in ("evaluate", "estimate", "complete") else []
        return [*words, *(word for word in extra if word.startswith("evaluation"))]
    tiny = TINY.get(chosen[1], chosen[1])
    words = [re.sub(rf"^(recipe=)?{chosen[1]}$", rf"\g<1>{tiny}", word) for word in words]
    small = [*SMALL[tiny], "training.device=cpu"]
    if verb in ("train", "evaluate", "config"):
        small = [*small, *RUN]
    if verb == "ckpt":
        small = [word for one in small for word in ("--set", one)]
    return [*words, *small]


def make_files(folder: Path, recipes: dict[str, str]) -> None:
    """A video, and weights of small models under the names by which others publish them."""
    frames, _ = make_sequence(SceneSettings(8, 30, 42, 4, seed=0, shapes=3, speed=2), 0)
    np.save(folder / "video.npy", frames)
    for file, recipe in recipes.items():
        torch.manual_seed(0)
        model = build_recipe(load([f"recipe={recipe}", *SMALL[recipe]])).build_model()
        torch.save({"model": model.state_dict()}, folder / file)


def follow(page: str, python: bool = True) -> None:
    """Run what a page shows, its tables first, then its blocks in order."""
    file = ROOT / "docs" / page
    commands = [*table_commands(file), *(one.text for one in commands_of(file) if not one.needs)]
    assert commands
    for command in commands:
        words = smaller(command)
        assert main(words) == 0, f"{page}: {command}\nran as: overt {shlex.join(words)}"
    names: dict[str, object] = {"SMALL": SMALL, "RUN": RUN}
    for _, _, language, text in BLOCK.findall(file.read_text()) if python else ():
        if language == "python":
            for there, here in HERE_INSTEAD.items():
                text = text.replace(there, here)
            for full, tiny in TINY.items():
                text = text.replace(f'"recipe={full}"', f'"recipe={tiny}", *SMALL["{tiny}"], *RUN')
            exec(compile(text, page, "exec"), names)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_davis() -> None:
    size = ["--videos", "1", "--frames", "8", "--size", "32", "40", "--points", "4"]
    assert main(["data", "tapvid", "data/tapvid", "--dataset", "davis", *size]) == 0


def test_coming_from_cotracker(folder: Path) -> None:
    make_files(
        folder,
        {
            "scaled_offline.pth": "cotracker3_tiny",
            "scaled_online.pth": "cotracker3_online_tiny",
        },
    )
    make_davis()
    follow("coming_from_cotracker.md")
    assert (folder / "video_tracks" / "tracks.npz").is_file()


def test_coming_from_lbm(folder: Path) -> None:
    make_files(folder, {"lbm.pt": "lbm_tiny"})
    make_davis()
    follow("coming_from_lbm.md")
    assert (folder / "lbm_step.onnx").is_file()


def test_coming_from_hjepa(folder: Path) -> None:
    follow("coming_from_hjepa.md")
    assert (folder / "runs/from_python/checkpoints/latest").exists()


def test_coming_from_pcdiff(folder: Path) -> None:
    make_files(folder, {"epoch_999.pth": "pcdiff_tiny"})
    skulls = ["data/skullbreak", "--skulls", "2", "--side", "24", "--points", "400"]
    assert main(["data", "skulls", *skulls]) == 0
    shutil.copy("data/skullbreak/defective_skull/bilateral/001.nrrd", "skull.nrrd")
    follow("coming_from_pcdiff.md")
    assert (folder / "skull_implant" / "implant_0.ply").is_file()


def test_coming_from_blade(folder: Path) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")
    people = ["--count", "1", "--size", "32", "--name", "one"]
    assert main(["data", "people", "photos", *people]) == 0
    shutil.copy("photos/datasets/one/imgs/000000.jpg", "photo.jpg")
    follow("coming_from_blade.md")
    assert (folder / "photo_person" / "mesh.obj").is_file()
