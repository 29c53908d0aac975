"""Settings of clips that are made, not read. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from overt.checks import each_within, within
from overt.errors import ConfigError

MOST_LAYERS = 16
PROBABILITIES = (
    "present", "thin", "holes", "boxes", "static_clips", "static_camera", "static_things",
    "lights", "motion_blur", "blur", "grey", "noisy", "compressed", "first_frame", "foreground",
)  # fmt: skip


@dataclass
class ProceduralSettings:
    """What scenes look like and how they move; lengths are parts of the image's side."""

    # clips of an epoch; every epoch makes others
    samples: int = MISSING
    # layers of a scene, the background included
    layers: int = MISSING
    # probability that a layer in front of the background is there
    present: float = MISSING
    # half the extent of a layer, (smallest, largest), in half image sides
    sizes: list[float] = MISSING
    # probabilities of layers that are bars, that are cut by holes or slits, that are boxes
    thin: float = MISSING
    holes: float = MISSING
    boxes: float = MISSING
    # side of the square pictures that textures are cut to
    texture_size: int = MISSING
    # computed textures, besides the photographs
    made_textures: int = MISSING
    # how fine a texture is on its layer, (smallest, largest)
    texels_per_pixel: list[float] = MISSING
    # medians of how far layers themselves move in a clip of 24 frames: shift, turn in radians,
    # logarithm of zoom; of how far the camera shifts; and the deviation of their logarithms
    shift: float = MISSING
    rotation: float = MISSING
    zoom: float = MISSING
    camera_shift: float = MISSING
    spread: float = MISSING
    # largest number of swings in 24 frames
    fastest: float = MISSING
    # deviation of stretch and of perspective; median of bends
    shear: float = MISSING
    perspective: float = MISSING
    bend: float = MISSING
    # probabilities that nothing moves, that the camera stands still, that things do
    static_clips: float = MISSING
    static_camera: float = MISSING
    static_things: float = MISSING
    # probability of each kind of changing light, and its strength
    lights: float = MISSING
    light: float = MISSING
    # probabilities of clips with motion blur, out of focus, without color, with noise (up to so
    # many of 255 levels), compressed
    motion_blur: float = MISSING
    blur: float = MISSING
    grey: float = MISSING
    noisy: float = MISSING
    noise: float = MISSING
    compressed: float = MISSING
    # fraction of queries in the first frame, and of those that are moved to a layer in front of
    # the background where one is near
    first_frame: float = MISSING
    foreground: float = MISSING

    def __post_init__(self) -> None:
        key = "data.procedural"
        each_within(key, self, ("samples", "texture_size"), 1)
        within(f"{key}.layers", self.layers, 2, MOST_LAYERS)
        within(f"{key}.made_textures", self.made_textures, 0)
        each_within(key, self, PROBABILITIES, 0, 1)
        lengths = (
            "shift", "rotation", "zoom", "camera_shift", "spread", "shear", "perspective",
            "bend", "light", "noise",
        )  # fmt: skip
        each_within(key, self, lengths, 0)
        within(f"{key}.fastest", self.fastest, 0.1)
        for name in ("sizes", "texels_per_pixel"):
            limits = getattr(self, name)
            if len(limits) != 2 or not 0 < limits[0] <= limits[1]:
                raise ConfigError(
                    f"{key}.{name}={list(limits)}; expected two numbers above 0, the smaller "
                    "one first"
                )
