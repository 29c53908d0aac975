"""Several weighted sets of training images."""

from __future__ import annotations

from collections.abc import Callable

from overt.data.images.folder import ReadableImages
from overt.data.images.opening import open_images
from overt.data.mixture import InterleavedMixture
from overt.data.source import SampleSource
from overt.recipes.hjepa.data_config import DataSettings


def with_mixture(
    settings: DataSettings,
    images: ReadableImages,
    make: Callable[[ReadableImages], SampleSource],
) -> SampleSource:
    """Return the samples of `images` and of the sets of `data.mixture`, built by `make`."""
    own = make(images)
    if not settings.mixture:
        return own
    further = [make(ReadableImages(open_images(each.root, False))) for each in settings.mixture]
    return InterleavedMixture([own, *further], [1.0, *(each.weight for each in settings.mixture)])
