"""Stack the slices of a DICOM series, one per file or all in one multi-frame file.

pydicom, which reads the files, is optional. Never imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from overt.data.skulls.volumes import Array, Matrix, Volume
from overt.errors import DataError

logger = logging.getLogger(__name__)

MEDICAL = "pip install 'overt[medical]'"
LARGEST_DEVIATION = 0.1  # of a slice from its regular height, in distances between slices
LARGEST_SHIFT = 0.5  # of a slice within its plane, in pixels
# Where an enhanced multi-frame image has what other images have at their top level.
FUNCTIONAL_GROUPS = {
    "ImagePositionPatient": "PlanePositionSequence",
    "ImageOrientationPatient": "PlaneOrientationSequence",
    "PixelSpacing": "PixelMeasuresSequence",
    "RescaleSlope": "PixelValueTransformationSequence",
    "RescaleIntercept": "PixelValueTransformationSequence",
}


class Slice(NamedTuple):
    """One image: a file, or a frame of it."""

    path: Path
    frame: int
    uid: str
    position: Matrix  # (3,)
    orientation: Matrix  # (6,)
    spacing: Matrix  # (2,) between rows, between columns
    size: tuple[int, int]  # rows, columns


class Series(NamedTuple):
    """Slices of one series with the same orientation."""

    uid: str
    slices: list[Slice]
    number: str
    description: str

    def has(self, uid: str, image: Slice) -> bool:
        difference = np.abs(self.slices[0].orientation - image.orientation).max()
        return self.uid == uid and float(difference) < 1e-3

    def __str__(self) -> str:
        return f"series {self.number} ({self.description})"


def is_dicom(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def read_dicom(source: Path) -> Volume:
    """Read the largest series of a folder or file, in Hounsfield units if its headers define them.

    Images of one series with other orientations, such as scouts, are separate series.
    """
    try:
        import pydicom
    except ImportError as error:
        raise DataError(f"DICOM is read by pydicom, which is not installed; {MEDICAL}") from error
    files = [source] if source.is_file() else sorted(x for x in source.rglob("*") if x.is_file())
    candidates: list[Series] = []
    for path in files:
        try:
            _add(candidates, path, pydicom.dcmread(path, stop_before_pixels=True))
        except Exception:  # not DICOM, or an image without a position, such as a scout
            continue
    largest = max((len(series.slices) for series in candidates), default=0)
    if largest < 2 and source.is_file():
        raise DataError(
            f"{source} is not a readable scan; it is one image of DICOM; give its folder"
        )
    if largest < 2:
        raise _no_series(source)
    chosen, *others = (series for series in candidates if len(series.slices) == largest)
    if others:
        logger.warning(
            "%s holds %d series of %d slices each; reading %s, not %s. To read another one, move "
            "it to a separate folder.",
            source, len(others) + 1, largest, chosen, ", ".join(map(str, others)),
        )  # fmt: skip
    ordered, affine = arrange(chosen.slices, source)
    return Volume(_values(ordered), affine)


def _add(candidates: list[Series], path: Path, header: Any) -> None:
    """Add an image to its series; raises almost any error where it has no position in space."""
    uid = str(header.SeriesInstanceUID)
    for image in _slices(path, header):
        for series in candidates:
            if series.has(uid, image):
                series.slices.append(image)
                break
        else:
            number = header.get("SeriesNumber")
            described = header.get("SeriesDescription") or "no description"
            name = f"of UID {uid}" if number is None else str(number)
            candidates.append(Series(uid, [image], name, str(described)))


def _slices(path: Path, header: Any) -> Iterator[Slice]:
    frames = int(header.get("NumberOfFrames") or 1)
    is_enhanced = "PerFrameFunctionalGroupsSequence" in header
    if header.get("Modality") == "SEG" or (frames > 1 and not is_enhanced):
        raise ValueError("a segmentation, or frames without a position")
    names = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")
    for frame in range(frames):
        position, orientation, spacing = (
            np.array(_element(header, frame, name), dtype=np.float64) for name in names
        )
        if (position.shape, orientation.shape, spacing.shape) != ((3,), (6,), (2,)):
            raise ValueError("an image without a position")
        size = (int(header.Rows), int(header.Columns))
        uid = str(header.get("SOPInstanceUID") or path)
        yield Slice(path, frame, uid, position, orientation, spacing, size)


def _element(image: Any, frame: int, name: str) -> Any:
    """Return an element of an image or of a frame; None where it is absent or empty."""
    groups = [image]
    for sequence in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        items = image.get(sequence) or []
        index = frame if sequence.startswith("Per") else 0
        if index < len(items):
            groups += items[index].get(FUNCTIONAL_GROUPS[name]) or []
    values = [group.get(name) for group in groups]
    return next((value for value in reversed(values) if value is not None), None)


def arrange(slices: Sequence[Slice], source: Path) -> tuple[list[Slice], Matrix]:
    """Return slices in the order of their positions, and the affine of the grid they form."""
    slices = _without_copies(slices, source)
    if len(slices) < 2:
        raise _no_series(source)
    first = slices[0]
    for other in slices:
        is_close = np.allclose(other.spacing, first.spacing, rtol=1e-3)
        if not is_close or other.size != first.size:
            raise DataError(
                f"{source}: one series with different images: {_grid(first)}, but {_grid(other)}. "
                "Move one kind of them to a separate folder."
            )
    rows, columns = first.orientation.reshape(2, 3)
    normal = np.cross(rows, columns)
    ordered = sorted(slices, key=lambda image: float(image.position @ normal))
    positions = np.array([image.position for image in ordered])
    steps = np.diff(positions @ normal)
    step = float(np.median(steps))
    off = np.abs(steps - step)
    if step <= 0 or off.max() > LARGEST_DEVIATION * step:
        worst = int(off.argmax()) if step > 0 else int(steps.argmin())
        raise DataError(
            f"{source}: slices are {steps.min():g} to {steps.max():g} mm apart; expected one "
            f"distance. A slice is missing or duplicated: see {_name(ordered[worst])} and "
            f"{_name(ordered[worst + 1])}, {steps[worst]:g} mm apart. Of two series with one UID, "
            "move one to a separate folder."
        )
    between = (positions[-1] - positions[0]) / (len(ordered) - 1)
    shifts = positions - positions[0] - np.arange(len(ordered))[:, None] * between
    shifts -= (shifts @ normal)[:, None] * normal
    furthest = int(np.linalg.norm(shifts, axis=1).argmax())
    shift = float(np.linalg.norm(shifts[furthest]))
    if shift > LARGEST_SHIFT * float(first.spacing.min()):
        raise DataError(
            f"{source}: slices are shifted against each other, {_name(ordered[furthest])} by "
            f"{shift:.3g} mm within its plane; expected positions on one line. They belong to two "
            "reconstructions: move one to a separate folder."
        )
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1] = rows * first.spacing[1], columns * first.spacing[0]
    affine[:3, 2], affine[:3, 3] = between, positions[0]
    return ordered, affine


def _no_series(source: Path) -> DataError:
    return DataError(
        f"{source} holds no series of DICOM images with a position in space; expected two slices "
        "or more"
    )


def _without_copies(slices: Sequence[Slice], source: Path) -> list[Slice]:
    """Drop further files of the same image."""
    kept: dict[tuple[object, ...], Slice] = {}
    for image in slices:
        kept.setdefault((image.uid, image.frame, *image.position), image)
    if len(kept) < len(slices):
        logger.warning(
            "%s: %d of %d DICOM images are copies of others (same SOPInstanceUID and position) and "
            "are skipped", source, len(slices) - len(kept), len(slices),
        )  # fmt: skip
    return list(kept.values())


def _grid(image: Slice) -> str:
    (rows, columns), (down, across) = image.size, image.spacing
    return f"{_name(image)} has {columns} x {rows} pixels of {across:g} x {down:g} mm"


def _name(image: Slice) -> str:
    frame = f"frame {image.frame + 1} of " if image.frame else ""
    return frame + image.path.name


def _values(slices: Sequence[Slice]) -> Array:  # (column, row, slice)
    """Read the pixels of slices in their order."""
    import pydicom

    opened: dict[Path, Any] = {}
    layers, are_padding = [], []
    for image in slices:
        try:
            if image.path not in opened:
                opened = {image.path: pydicom.dcmread(image.path)}
                if "Rows" not in opened[image.path]:  # it was in the header
                    raise ValueError("its compressed pixels end early")
        except Exception as error:  # a header that was readable, and damaged pixels
            raise DataError(f"{image.path}: this DICOM image cannot be read ({error})") from error
        content = opened[image.path]
        try:
            stored = content.pixel_array
            stored = (stored[image.frame] if content.get("NumberOfFrames", 1) > 1 else stored).T
            if stored.ndim != 2:
                raise ValueError("colors; expected one number for each pixel")
            factor, offset = (
                default if value is None else float(value)
                for value, default in (
                    (_element(content, image.frame, "RescaleSlope"), 1.0),
                    (_element(content, image.frame, "RescaleIntercept"), 0.0),
                )
            )
            layers.append(stored.astype(np.float32) * factor + offset)
            are_padding.append(_is_padding(content, stored))
        except Exception as error:  # pydicom stops with almost any error on a damaged file
            reason = " ".join(str(error).split())
            if "missing dependencies" in reason:  # pydicom names packages, not how to get them
                reason += "; pip install 'pylibjpeg[all]'"
            raise DataError(f"{image.path}: its pixels cannot be read ({reason})") from error
    values = np.stack(layers, axis=2)
    padding = np.stack(are_padding, axis=2)
    if padding.any() and not padding.all():
        # Beyond the field of view; written as a large number, it would be the largest bone.
        values[padding] = np.minimum(values[padding], values[~padding].min())
    is_integral = np.array_equal(values, np.round(values)) and np.abs(values).max() < 2**15
    return values.astype(np.int16) if is_integral else values


def _is_padding(image: Any, stored: Array) -> Array:
    """Return which pixels were not measured."""
    value = image.get("PixelPaddingValue")
    if value is None or stored.dtype.kind not in "iu":
        return np.zeros(stored.shape, dtype=bool)
    limit = image.get("PixelPaddingRangeLimit")
    # Some writers give a signed number for unsigned pixels: -2000 is stored as 63536.
    ends = np.array([value, value if limit is None else limit]).astype(stored.dtype)
    return np.asarray((stored >= ends.min()) & (stored <= ends.max()))
