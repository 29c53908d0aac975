"""Settings of rendered clips. This file does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from overt.checks import each_within, within
from overt.errors import ConfigError

MOST_LAYERS = 16
MOST_POINTS = 1000  # of a clip, which has this many random numbers for them
BLOCK = 8  # pixels of the squares that compression works on
# Layers that are the faces of a box, and the limbs of a chain, in clips that have one.
SOLID_LAYERS = (1, 2, 3)
ARTICULATED_LAYERS = (4, 5, 6)
PROBABILITIES = (
    "present", "thin", "holes", "boxes", "solids", "articulated", "static_clips", "static_camera",
    "static_things", "lights", "motion_blur", "blur", "gray", "noisy", "compressed", "first_frame",
    "foreground",
)  # fmt: skip


@dataclass
class ProceduralSettings:
    """Appearance and motion of scenes; lengths are relative to the image side."""

    # clips per epoch; every epoch renders new ones
    samples: int = MISSING
    # layers of a scene, including the background
    layers: int = MISSING
    # probability of each layer in front of the background
    present: float = MISSING
    # half the extent of a layer, (smallest, largest), in half image sides
    sizes: list[float] = MISSING
    # probability that a layer is a thin bar
    thin: float = MISSING
    # probability that a layer is cut by holes or slits
    holes: float = MISSING
    # probability that the outline of a layer is a rectangle, not a rounded shape
    boxes: float = MISSING
    # probability of a clip with a box that rotates in space, the layers 1 to 3
    solids: float = MISSING
    # probability of a clip with three limbs on joints, the layers 4 to 6
    articulated: float = MISSING
    # side of the square crops of textures
    texture_size: int = MISSING
    # computed textures, besides the photographs
    made_textures: int = MISSING
    # texture scale on its layer, (smallest, largest)
    texels_per_pixel: list[float] = MISSING
    # median of a layer's shift in a clip of 24 frames, in image sides
    shift: float = MISSING
    # median of a layer's rotation in a clip of 24 frames, in radians
    rotation: float = MISSING
    # median of the logarithm of a layer's zoom in a clip of 24 frames
    zoom: float = MISSING
    # median of the camera's shift in a clip of 24 frames, in image sides
    camera_shift: float = MISSING
    # standard deviation of the logarithms of these four over clips and layers; 0: none
    spread: float = MISSING
    # largest number of oscillations in 24 frames
    fastest: float = MISSING
    # standard deviation of the stretch and of the shear of a layer
    shear: float = MISSING
    # standard deviation of the perspective terms of a layer's homography
    perspective: float = MISSING
    # median height of the waves that bend a layer, in half image sides; 0: flat layers
    bend: float = MISSING
    # probability of a clip in which nothing moves
    static_clips: float = MISSING
    # probability of a clip with a static camera
    static_camera: float = MISSING
    # probability of a clip in which only the camera moves
    static_things: float = MISSING
    # probability of each kind of illumination change in a clip: gain, a wave of light, spots
    lights: float = MISSING
    # strength of illumination changes; 1: the gain varies by about 12 %, a spot by up to 55 %
    light: float = MISSING
    # probability of a clip with motion blur, of up to half a frame's duration
    motion_blur: float = MISSING
    # probability of a clip that is out of focus
    blur: float = MISSING
    # probability of a grayscale clip
    gray: float = MISSING
    # probability of a clip with noise
    noisy: float = MISSING
    # largest standard deviation of that noise, in gray levels of 255
    noise: float = MISSING
    # probability of a clip with compression artifacts
    compressed: float = MISSING
    # fraction of queries in the first frame; the others are in random frames
    first_frame: float = MISSING
    # fraction of queries moved to a nearby layer in front of the background, if there is one
    foreground: float = MISSING

    def __post_init__(self) -> None:
        key = "data.procedural"
        each_within(key, self, ("samples", "texture_size"), 1)
        within(f"{key}.layers", self.layers, 2, MOST_LAYERS)
        within(f"{key}.made_textures", self.made_textures, 0)
        each_within(key, self, PROBABILITIES, 0, 1)
        for name, needed in (("solids", SOLID_LAYERS), ("articulated", ARTICULATED_LAYERS)):
            if getattr(self, name) > 0 and self.layers <= needed[-1]:
                raise ConfigError(
                    f"{key}.{name}={getattr(self, name)} needs {key}.layers of at least "
                    f"{needed[-1] + 1}; there are {self.layers}"
                )
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
