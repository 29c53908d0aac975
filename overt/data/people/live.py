"""People without files: sampled as numbers on the host, rendered on the device that trains.

Everything random is sampled by the loader from the sample's own generator; rendering is a function
of these numbers alone. Letters: B people, V vertices, S pixels of a side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.people.backdrops import Photographs, Surroundings, draw_surroundings
from overt.data.people.outfits import Looks, Outfit, draw_outfit
from overt.data.people.painter import Painter, visible_depth
from overt.data.people.photograph import (
    Photo,
    PhotographOptions,
    Photos,
    develop,
    draw_photo,
    in_rectangle,
    is_shown,
    shown_rectangle,
    worn,
)
from overt.data.people.scenes import (
    PeopleOptions,
    PeopleTensors,
    PersonSketch,
    Scene,
    boxes,
    finished,
    place_people,
    see,
    sketch_lively_person,
    with_visibility,
)
from overt.geometry.body import BODY_JOINTS, BodyModel
from overt.geometry.body_files import load_body
from overt.nested import concatenated, map_tensors
from overt.ops.exact import exact_products

HOST = torch.device("cpu")
# Rendered at a time. A body of 27,000 faces takes some 3 GiB for 256 people; in large pictures
# the pixels take more than that.
MOST_PEOPLE, MOST_PIXELS = 256, 2**23


class DrawnPerson(NamedTuple):
    """One sampled person."""

    sketch: PersonSketch
    outfit: Outfit
    surroundings: Surroundings  # as bytes, B = 1
    photo: Photo | None = None  # in the framing `photograph`


class Drawn(NamedTuple):
    """Sampled people that are not rendered yet, as tensors."""

    people: PeopleTensors
    looks: Looks
    surroundings: Surroundings  # as bytes
    photos: Photos | None = None  # in the framing `photograph`

    @classmethod
    def of(cls, drawn: list[DrawnPerson]) -> Drawn:
        """Stack sampled people on the host."""
        photos = [sample.photo for sample in drawn if sample.photo is not None]
        return cls(
            PeopleTensors.of(finished([sample.sketch for sample in drawn]), HOST),
            Looks.of([sample.outfit for sample in drawn], HOST),
            concatenated([sample.surroundings for sample in drawn]),
            Photos.of(photos) if photos else None,
        )


class Shots(NamedTuple):
    """Rendered people and the labels that need the body."""

    pictures: Tensor  # (B, 3, S, S) uint8
    boxes: Tensor  # (B, 4) x, y, w, h of the undressed body in the picture
    joints: Tensor  # (B, 22, 3) pixels, and 1 within the picture
    depth: Tensor  # (B,) meters, of the pelvis
    maps: Tensor | None = None  # (B, S, S) meters of every pixel, 0 for background


def draw_live(
    rng: np.random.Generator,
    rest_joints: NDArray[np.float64],
    size: int,
    photographs: Photographs,
    framed: PhotographOptions | None = None,
) -> DrawnPerson:
    """Sample one person in the order of `write_people`, then the photograph if it is `framed`."""
    sketch, outfit = sketch_lively_person(rng, rest_joints), draw_outfit(rng)
    surroundings = draw_surroundings(size, rng, photographs).to_bytes()
    photo = None if framed is None else draw_photo(framed, rng)
    return DrawnPerson(sketch, outfit, surroundings, photo)


class Studio:
    """Renders sampled people on one device."""

    def __init__(self, options: PeopleOptions, model: BodyModel) -> None:
        self.options, self.model = options, model
        self.painter = Painter(model, options.size)

    @classmethod
    def open(cls, options: PeopleOptions, device: torch.device) -> Studio:
        """Load the body onto a device."""
        return cls(options, BodyModel(load_body(options.body, "data.synthetic.body")).to(device))

    @torch.no_grad()
    def shoot(self, drawn: Drawn) -> Shots:
        """Render all people, some at a time; nobody depends on who else is in the batch."""
        with exact_products(drawn.people.depth.device):
            people, size = len(drawn.people.depth), self.options.size
            together = min(max(MOST_PIXELS // size**2, 1), MOST_PEOPLE)
            starts = range(0, people, together)
            return concatenated([self._shoot(_rows(drawn, start, together)) for start in starts])

    def scene(self, drawn: Drawn) -> Scene:
        """Place sampled people in front of the camera.

        They cannot be sampled again here, so those too near stand further away.
        """
        return place_people(
            drawn.people, self.model, self.options, move_back=True, photos=drawn.photos
        )

    def _shoot(self, drawn: Drawn) -> Shots:
        options, looks, photos = self.options, drawn.looks, drawn.photos
        scene = self.scene(drawn)
        if photos is not None:
            looks = worn(looks, photos)
        pixels, _ = see(scene, scene.vertices, options.orthographic)
        joints, _ = see(scene, scene.joints[:, :BODY_JOINTS], options.orthographic)
        dressed = self.painter.tailor.dress(scene.vertices, looks)
        dressed_pixels, depth = see(scene, dressed, options.orthographic)
        surroundings, perspective = drawn.surroundings.from_bytes(), not options.orthographic
        pictures, raster = self.painter.render(
            dressed_pixels, depth, dressed, looks, surroundings, perspective
        )
        maps = None
        if options.depth_maps:
            meters = visible_depth(raster, self.painter.hidden(surroundings))
            maps = torch.where(meters.isinf(), 0.0, meters)
        visible_joints = with_visibility(joints, options.size)
        if photos is not None:
            edges = shown_rectangle(pixels, photos, options.size)
            pictures = develop(pictures, edges, photos)
            maps = None if maps is None else maps * in_rectangle(edges, options.size)
            visible_joints[..., 2] *= is_shown(joints, edges)
        return Shots(pictures, boxes(pixels, options), visible_joints, scene.joints[:, 0, 2], maps)


def _rows(drawn: Drawn, start: int, count: int) -> Drawn:
    rows: Drawn = map_tensors(drawn, lambda tensor: tensor[start : start + count])
    return rows
