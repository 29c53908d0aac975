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
    # probabilities of layers that are bars, that are cut by holes or slits, that are boxes
    thin: float = MISSING
    holes: float = MISSING
    boxes: float = MISSING
    # probabilities of a clip with a box that rotates in space (layers 1 to 3), and with three limbs
    # on joints (layers 4 to 6)
    solids: float = MISSING
    articulated: float = MISSING
    # side of the square crops of textures
    texture_size: int = MISSING
    # computed textures, besides the photographs
    made_textures: int = MISSING
    # texture scale on its layer, (smallest, largest)
    texels_per_pixel: list[float] = MISSING
    # medians of layer motion in a clip of 24 frames: shift, rotation in radians, log zoom; median
    # of the camera shift; and the standard deviation of their logarithms
    shift: float = MISSING
    rotation: float = MISSING
    zoom: float = MISSING
    camera_shift: float = MISSING
    spread: float = MISSING
    # largest number of oscillations in 24 frames
    fastest: float = MISSING
    # standard deviation of stretch and of perspective; median of bends
    shear: float = MISSING
    perspective: float = MISSING
    bend: float = MISSING
    # probabilities that nothing moves, that the camera is static, that objects are static
    static_clips: float = MISSING
    static_camera: float = MISSING
    static_things: float = MISSING
    # probability of each kind of illumination change, and its strength
    lights: float = MISSING
    light: float = MISSING
    # probabilities of clips with motion blur, defocus, grayscale, noise (up to this many of 255
    # levels), compression
    motion_blur: float = MISSING
    blur: float = MISSING
    gray: float = MISSING
    noisy: float = MISSING
    noise: float = MISSING
    compressed: float = MISSING
    # fraction of queries in the first frame, and of queries moved to a nearby layer in front of the
    # background
    first_frame: float = MISSING
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
