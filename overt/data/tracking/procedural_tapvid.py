"""Write photographs that move by known transforms in TAP-Vid's layout, with exact ground truth.

A test set, generated like training clips (overt/data/tracking/procedural.py) from photographs that
training does not see.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from overt.data.rng import sample_rng
from overt.data.tracking.procedural import ProceduralClips, make_clips
from overt.data.tracking.procedural_settings import ProceduralSettings
from overt.data.tracking.tapvid import FORMATS
from overt.data.tracking.textures import load_textures
from overt.errors import DataError
from overt.files.atomic import new_folder, remove_left_overs
from overt.progress import each

EPOCH = 0


def write_photograph_videos(
    root: Path | str,
    textures: Path | str,
    settings: ProceduralSettings,
    videos: int = 10,
    frames: int = 24,
    size: tuple[int, int] = (256, 256),
    points: int = 64,
    seed: int = 0,
) -> Path:
    """Write ROOT/tapvid_davis/tapvid_davis.pkl; all points are queried in the first frame.

    A video depends only on the settings, the photographs and its number.
    """
    layout = FORMATS["davis"]
    folder = Path(root) / layout.folder
    if folder.exists():
        raise DataError(
            f"{folder} exists; videos are not mixed into other data. Choose another folder, or "
            "remove this one."
        )
    settings = replace(settings, first_frame=1.0, made_textures=0)
    bank = load_textures(str(textures), settings.texture_size, num_procedural=0)
    source = ProceduralClips(settings)
    entries: dict[str, dict[str, Any]] = {}
    corner = torch.tensor([size[1] - 1.0, size[0] - 1.0])
    for index in each(range(videos), "making videos"):
        numbers = source.sample(index, sample_rng(seed, EPOCH, index))
        clip = make_clips(numbers[None], bank, settings, size, frames, points)
        entries[f"photographs-{index:03d}"] = {
            "video": clip.video[0].permute(0, 2, 3, 1).contiguous().numpy(),
            "points": (clip.tracks[0].transpose(0, 1) / corner).contiguous().numpy(),
            "occluded": (~clip.visible[0].T).contiguous().numpy(),
        }
    remove_left_overs(folder.parent)
    with new_folder(folder) as unfinished, (unfinished / layout.pattern).open("wb") as file:
        pickle.dump(entries, file, protocol=4)
    return folder / layout.pattern
