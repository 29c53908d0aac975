"""The people of a data set: pictures and labels row by row, for every kind of label."""

from __future__ import annotations

import logging
import os
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from overt.data.images.decode import decode_image, read_file, upright_size
from overt.data.people.bedlam import read_bedlam
from overt.data.people.conventions import CONVENTIONS, limb_columns, names_of
from overt.data.people.crops import box_square, keypoint_square
from overt.data.people.human_data import (
    SMPL_SHAPES,
    SMPLX_SHAPES,
    HumanData,
    bad_boxes,
    labeled_rows,
    non_finite_rows,
    require_directions,
    rows_without_extent,
)
from overt.data.people.plausible import implausible_rows
from overt.errors import DataError
from overt.geometry.body import (
    BODY_JOINTS,
    HAND_JOINTS,
    SHAPE_NUMBERS,
    SMPL_JOINTS,
    BodyFile,
    BodyModel,
)
from overt.geometry.body_anny import ANNY
from overt.geometry.body_files import CAPSULE, load_body, read_regressor
from overt.geometry.crop import Picture
from overt.geometry.rotation import axis_angle_to_matrix
from overt.recipes.blade.config import BodySettings, DataSettings, SourceSettings

logger = logging.getLogger(__name__)

Array = NDArray[np.float32]
# Rows of J_regressor_extra.npy, and which of them are the hips.
EXTRA_JOINTS, HIP_ROWS = 9, (0, 1)
# Folders that appear in the annotation paths of a source, but not in its pictures.
DROPPED_FOLDERS = {"h36m": "images"}
RENDERED_BODIES = (CAPSULE, ANNY)


# The columns of a label, in the order of `SmplxLabel`.
SMPLX_PARTS = (
    "global_orient", "body_pose", "left_hand_pose", "right_hand_pose", "betas", "transl",
)  # fmt: skip


class SmplxLabel(NamedTuple):
    """Pose and shape of a person."""

    root: Array  # (3,)
    body: Array  # (21, 3)
    left_hand: Array  # (15, 3)
    right_hand: Array  # (15, 3)
    shape: Array  # (S,), ten or more
    translation: Array  # (3,)


class LabeledPeople(Protocol):
    """Source of training samples: `People`, or generated ones."""

    def __len__(self) -> int: ...

    def picture(self, row: int) -> Picture: ...

    def square(
        self, row: int, image_size: tuple[int, int]
    ) -> tuple[tuple[float, float], float]: ...

    def limb_keypoints(self, row: int) -> Array | None: ...

    def principal_point(self, row: int, image_size: tuple[int, int]) -> tuple[float, float]: ...

    def label(self, row: int) -> SmplxLabel: ...

    def pelvis(self, row: int) -> Array: ...

    def depth_map(self, row: int) -> Array: ...


class People:
    """Rows of one data set, checked when it is opened."""

    def __init__(
        self,
        source: SourceSettings,
        settings: DataSettings,
        body: BodySettings,
        root: Path,
        needs_pose: bool,
    ) -> None:
        self.name, self.whole_image = source.name, source.whole_image
        self.images = root / source.images
        self.dropped_folder = DROPPED_FOLDERS.get(source.name)
        self.settings, self.body = settings, body
        path = root / source.annotations
        if source.layout == "bedlamcc":
            data = read_bedlam(path, self.images)
        else:
            data = HumanData.load(path, cache=settings.cache_annotations)
        check_body(data, body, needs_pose or "pelvis" not in data)
        if needs_pose:
            require_smplx(data)
        if "pelvis" not in data:
            require_labels(data)
        if data.has("smplx") and (needs_pose or "pelvis" not in data):
            count = body_file(body.model).shape_directions.shape[-1]
            require_directions(data, "smplx", count, f"model.body.model={body.model}")
        self.data = self._usable(_labeled(data), settings.drop_bad_rows)
        if needs_pose:
            _ = self.limbs  # names missing keypoints now
            warn_of_long_shapes(data)
        if "pelvis" not in data and not (data.has("smplx") and "smplx/transl" in data):
            count = self.hips.model.shape_numbers  # names missing files of SMPL now
            require_directions(data, "smpl", count, f"model.body.smpl={body.smpl}")
        first = self.picture_path(0)
        if first.suffix == ".smc":
            raise DataError(
                f"{path} lists {first.name}, a HuMMan container, not a picture; write its "
                "frames as pictures first, and their paths into image_path"
            )
        if not first.is_file():
            raise DataError(
                f"{path} lists {first}, which does not exist; check data.root and the source's "
                f"images ({self.images}), or link the data set there"
            )
        self.check_picture(0)  # boxes of pictures in another size would be wrong in all rows

    def _usable(self, data: HumanData, drop: bool) -> HumanData:
        """Return all usable rows; reject unusable ones unless the user asked to drop them."""
        nameless = np.nonzero(data.columns["image_path"] == "")[0].tolist()
        bad = dict.fromkeys(nameless, "names no picture (image_path is empty)")
        if "bbox_xywh" in data and not self.whole_image:
            boxes = data.columns["bbox_xywh"]
            for row in bad_boxes(data).tolist():
                bad[row] = f"has a box without size ({boxes[row, 2]:g} x {boxes[row, 3]:g} pixels)"
        elif not self.whole_image:
            data.require(("keypoints2d",))
            for row in rows_without_extent(data).tolist():
                bad[row] = "has neither a box nor two visible keypoints apart"
        for row, problem in bad_labels(data).items():
            bad.setdefault(row, problem)
        depth = pelvis_depths(data, self.body)
        for row in np.nonzero(~(depth > 0))[0].tolist():
            bad.setdefault(row, f"is behind the camera (pelvis at {depth[row]:.3g} m)")
        if not bad:
            return data
        row = min(bad)
        message = (
            f"{data.path}: {len(bad)} of {len(data)} rows cannot be used; row {row} "
            f"({data.columns['image_path'][row]}) {bad[row]}"
        )
        if not drop:
            raise DataError(
                f"{message}. Fix the annotations, or skip such rows with data.drop_bad_rows=true"
            )
        _warn_once(f"{message}; all of these are skipped")
        rows = np.array([row for row in range(len(data)) if row not in bad])
        if len(rows) == 0:
            raise DataError(f"{message}; none is left")
        return data.chosen(rows)

    def __len__(self) -> int:
        return len(self.data)

    def picture_path(self, row: int) -> Path:
        stored = str(self.data.columns["image_path"][row])
        name = Path(stored.replace("\\", "/").lstrip("/"))  # it may come from Windows
        if self.dropped_folder is not None:
            parts = [part for part in name.parts[:-1] if part != self.dropped_folder]
            name = Path(*parts, name.name)
        return self.images / name

    def picture(self, row: int) -> Picture:
        """Return the pixels (H, W, 3) of a row."""
        path = self._existing(row)
        return decode_image(read_file(path), str(path))

    def picture_size(self, row: int) -> tuple[int, int]:
        """Return height and width of the picture, by the header of its file alone."""
        return upright_size(self._existing(row))

    def check_pictures(self) -> None:
        """Reject missing pictures before the first step, or skip them with data.drop_bad_rows.

        Folders are listed once each: asking for a million files takes long on a shared disk.
        """
        names_in: dict[Path, set[str]] = {}
        missing = []
        for row in range(len(self)):
            path = self.picture_path(row)
            if path.parent not in names_in:
                folder = path.parent
                names_in[folder] = set(os.listdir(folder)) if folder.is_dir() else set()
            # A file system may ignore the case of a name.
            if path.name not in names_in[path.parent] and not path.is_file():
                missing.append(row)
        if not missing:
            return
        message = (
            f"{self.data.path}: {len(missing)} of {len(self)} pictures are missing, such as "
            f"{self.picture_path(missing[0])} (row {missing[0]})"
        )
        if not self.settings.drop_bad_rows:
            raise DataError(
                f"{message}. Get them again, or skip such rows with data.drop_bad_rows=true"
            )
        _warn_once(f"{message}; all of these are skipped")
        self.data = self.data.chosen(np.delete(np.arange(len(self)), missing))

    def check_picture(self, row: int) -> None:
        """Reject a missing or unreadable picture, and one outside of which the person is."""
        height, width = self.picture_size(row)
        (x, y), side = self.square(row, (height, width))
        if min(x, y) < -side / 2 or x > width + side / 2 or y > height + side / 2:
            raise DataError(
                f"{self.data.path}: the person of row {row}, a square of {side:g} pixels about "
                f"{x:g}, {y:g}, is outside of {self.picture_path(row)}, which has {width} x "
                f"{height} pixels. Use the pictures in the size that boxes and keypoints are for, "
                "or fix the annotations"
            )

    def _existing(self, row: int) -> Path:
        path = self.picture_path(row)
        if not path.is_file():
            raise DataError(
                f"{path}: listed in {self.data.path} (row {row}) but missing; get the pictures "
                "again, or remove the row"
            )
        return path

    def square(self, row: int, image_size: tuple[int, int]) -> tuple[tuple[float, float], float]:
        """Return center and side of the square around the person."""
        height, width = image_size
        if self.whole_image:
            return (width / 2, height / 2), float(max(height, width))
        if "bbox_xywh" in self.data:
            return box_square(self.data.columns["bbox_xywh"][row])
        return keypoint_square(self.data.columns["keypoints2d"][row])

    def limb_keypoints(self, row: int) -> Array | None:
        """Return twelve limb joints (12, 3) in pixels with their confidence."""
        if self.limbs is None:
            return None
        return np.asarray(self.data.columns["keypoints2d"][row, self.limbs], dtype=np.float32)

    def principal_point(self, row: int, image_size: tuple[int, int]) -> tuple[float, float]:
        """Return x, y in pixels: the middle of the picture unless the file has K."""
        height, width = image_size
        camera = self.data.focal(row, image_size)
        return (width / 2, height / 2) if camera is None else camera[1]

    def label(self, row: int) -> SmplxLabel:
        """Return pose and shape as SMPL-X parameters.

        Hands are absolute rotations, to which nothing is added. Unlabeled hands are the mean hands
        of the body, as for predictions.
        """
        values = []
        for name in SMPLX_PARTS:
            column = self.data.columns.get(f"smplx/{name}")
            if column is not None:
                # A copy: cached columns are read-only maps, of which torch warns.
                values.append(np.array(column[row], np.float32))
            elif name.endswith("_hand_pose"):
                values.append(self.mean_hands[int(name.startswith("right"))])
            else:
                values.append(np.zeros(SMPLX_SHAPES[name], np.float32))
        return SmplxLabel(*values)

    def pelvis(self, row: int) -> Array:
        """Return the pelvis position in the camera frame, (3,) meters."""
        columns = self.data.columns
        if "pelvis" in self.data:
            return np.array(columns["pelvis"][row], np.float32)
        if self.data.has("smplx") and "smplx/transl" in columns:
            rest_pelvis = self.root(columns["smplx/betas"][row][None])[0]
            return np.asarray(rest_pelvis + columns["smplx/transl"][row], np.float32)
        return self.hips.pelvis(self.data, row)

    def depth_map(self, row: int) -> Array:
        """Return depth in meters (H, W), 0 for background, from depth/NAME.png in millimeters."""
        picture = self.picture_path(row)
        path = picture.parent.parent / "depth" / f"{picture.stem}.png"
        if not path.is_file():
            raise DataError(
                f"{path}: the pretext needs the depth of every pixel; make the data by `overt data "
                "people ... --depth-maps`, or set data.synthetic.depth_maps=true"
            )
        with Image.open(path) as image:
            return np.asarray(image, dtype=np.float32) / np.float32(1000)

    @cached_property
    def limbs(self) -> list[int] | None:
        """Return the columns of the limb joints, which only PoseNet's training reads."""
        return limbs_of(self.data, self.settings)

    @cached_property
    def root(self) -> RootJoint:
        return RootJoint(body_file(self.body.model))

    @cached_property
    def mean_hands(self) -> Array:  # (2, 15, 3)
        mean = body_file(self.body.model).hands_mean
        return np.zeros((2, HAND_JOINTS, 3), np.float32) if mean is None else mean

    @cached_property
    def hips(self) -> SmplHips:
        return SmplHips(self.body)


@lru_cache(maxsize=1)
def body_file(name: str) -> BodyFile:
    """Return the file of model.body.model, read once for all data sets of a run."""
    return load_body(name, "model.body.model")


def check_body(data: HumanData, body: BodySettings, is_used: bool = True) -> None:
    """Reject the body of rendered people for real ones, and vice versa.

    DepthNet does not use the body (`is_used`) if the pelvis itself is stored.
    """
    rendered = data.header.body
    if rendered is None and data.header.width == len(CONVENTIONS["people"]):
        rendered = CAPSULE  # written before the file said so
    if rendered is not None and body.model != rendered:
        is_file = Path(body.model).is_file()
        if not is_file or body_file(body.model).rendered_as != rendered:
            raise DataError(
                f"{data.path}: these people were rendered with the body {rendered}, but "
                f"model.body.model={body.model}; set model.body.model={rendered}, or another "
                "data.root to render others"
            )
    if not is_used:
        return
    if rendered is None and not data.has("smplx") and body.smpl in RENDERED_BODIES:
        raise DataError(
            f"model.body.smpl={body.smpl} is the body of rendered people, but {data.path} holds "
            "labels of SMPL; set model.body.smpl to body_models/smpl/SMPL_NEUTRAL.pkl "
            "(smpl.is.tue.mpg.de, registration)"
        )
    if rendered is None and data.has("smplx") and body_file(body.model).rendered_as is not None:
        raise DataError(
            f"model.body.model={body.model} is the body of rendered people, but {data.path} holds "
            "labels of SMPL-X; set model.body.model to body_models/smplx/SMPLX_NEUTRAL.npz "
            "(smpl-x.is.tue.mpg.de, registration)"
        )


def require_smplx(data: HumanData) -> None:
    """Reject labels that PoseNet cannot be trained on; SMPL labels can be converted."""
    if data.has("smpl") and not data.has("smplx"):
        raise DataError(
            f"{data.path}: its labels are SMPL's, but PoseNet is trained on those of SMPL-X; make "
            f"them by `overt data smplx-labels {data.path} ...`"
        )
    data.require([f"smplx/{name}" for name in ("global_orient", "body_pose", "betas")])


def warn_of_long_shapes(data: HumanData) -> None:
    count = data.columns["smplx/betas"].shape[1]
    if count > SHAPE_NUMBERS:
        _warn_once(
            f"{data.path}: its labels have {count} shape coefficients; PoseNet predicts and learns "
            f"the first {SHAPE_NUMBERS}. Depths and scores use all of them."
        )


def require_labels(data: HumanData) -> None:
    """Reject labels that lack a part, before such a row is used."""
    has_smpl = any(name.startswith("smpl/") for name in data.columns)
    if has_smpl and not (data.has("smplx") and "smplx/transl" in data):
        data.require([f"smpl/{name}" for name in SMPL_SHAPES])
    elif not data.has("smplx"):
        data.require(("smplx/body_pose", "smplx/transl"))
    if data.has("smplx"):
        require_smplx(data)


def require_scored(data: HumanData) -> None:
    """Reject labels without a whole pose, which no prediction can be compared with."""
    if "pelvis" in data and data.has("smplx"):
        require_smplx(data)
    else:
        require_labels(data)


def bad_labels(data: HumanData) -> dict[int, str]:
    """Return what is wrong with rows whose label or camera is non-finite or impossible."""
    columns = data.columns
    bad: dict[int, str] = {}
    camera = "K" if "K" in data else "focal_length"
    for name in (*_used_labels(data), camera):
        if name in data:
            for row in non_finite_rows(data, name).tolist():
                bad.setdefault(row, f"has a non-finite {name}")
            if name != camera:
                bad = implausible_rows(data, name) | bad
    if camera in data:
        focal = np.asarray(columns[camera]).reshape(len(data), -1)[:, 0]
        for row in np.nonzero(~(focal > 0))[0].tolist():
            bad.setdefault(row, f"has a focal length of {focal[row]:g} pixels ({camera})")
    return bad


def _used_labels(data: HumanData) -> list[str]:
    """Return the columns that pose and pelvis come from."""
    groups = ["smplx/"] if data.has("smplx") else ["smpl/"]
    if "pelvis" not in data and "smplx/transl" not in data:
        groups.append("smpl/")
    labels = [name for name in data.columns if name.startswith(tuple(groups))]
    return ["pelvis", *labels]


def limbs_of(data: HumanData, settings: DataSettings) -> list[int] | None:
    """Return the columns of the twelve limb joints, or None without keypoints."""
    if "keypoints2d" not in data:
        return None
    header, title = data.header, str(data.path)
    stored = data.columns["keypoints2d"].shape[1]
    columns_kept = header.kept or tuple(range(stored))
    if settings.limb_keypoints is not None:
        columns = list(settings.limb_keypoints)
        missing = [column for column in columns if column not in columns_kept]
        if missing:
            raise DataError(f"{title}: keypoints2d has no columns {missing} (data.limb_keypoints)")
        return [columns_kept.index(column) for column in columns]
    width = header.width or stored
    names = names_of(settings.keypoint_convention, header.convention, width, title)
    return limb_columns([names[column] for column in columns_kept], title)


@cache  # a set is opened to be checked, and again to be read
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _labeled(data: HumanData) -> HumanData:
    """Return the rows that have labels, if the file states it."""
    rows = np.nonzero(labeled_rows(data))[0]
    if len(rows) == len(data):
        return data
    if len(rows) == 0:
        raise DataError(
            f"{data.path}: has_smpl is 0 in all {len(data)} rows: no person has a label"
        )
    _warn_once(
        f"{data.path}: {len(data) - len(rows)} of {len(data)} rows have no label (has_smpl) and "
        "are skipped"
    )
    return data.chosen(rows)


class RootJoint:
    """Return the first joint of bodies at rest, which no pose moves: linear in the shape."""

    def __init__(self, file: BodyFile) -> None:
        row = file.J_regressor[0]
        self.rest_position = row @ file.v_template  # (3,)
        self.directions = np.einsum("v,vcs->sc", row, file.shape_directions)  # (S, 3)

    def __call__(self, shape: Array) -> Array:  # (N, S') to (N, 3)
        return np.asarray(self.rest_position + shape @ self.directions[: shape.shape[1]])


def pelvis_depths(data: HumanData, body: BodySettings) -> NDArray[np.floating]:
    """Return pelvis distances from the camera (N,); approximate for SMPL labels."""
    columns = data.columns
    if "pelvis" in data:
        return np.asarray(columns["pelvis"][:, 2])
    for group in ("smplx", "smpl"):
        if data.has(group) and f"{group}/transl" in columns:
            depth = np.asarray(columns[f"{group}/transl"][:, 2])
            if group == "smplx":
                depth = (
                    depth
                    + RootJoint(body_file(body.model))(np.asarray(columns["smplx/betas"]))[:, 2]
                )
            return depth
    raise DataError(
        f"{data.path}: neither pelvis nor transl, so the depth is unknown; it has "
        f"{', '.join(sorted(columns))}"
    )


class SmplHips:
    """Return the pelvis of SMPL labels: the midpoint of two hips regressed from its mesh."""

    def __init__(self, body: BodySettings) -> None:
        if body.smpl is None:
            raise DataError(
                "these people are labeled with SMPL; set model.body.smpl to SMPL_NEUTRAL.pkl (or "
                ".npz) and model.body.smpl_regressor to J_regressor_extra.npy"
            )
        file = load_body(body.smpl, "model.body.smpl")
        if body.smpl == CAPSULE:
            # The stand-in body has SMPL's 22 body joints first, including the hips.
            hips = file.J_regressor[[1, 2]]
        elif body.smpl_regressor is None:
            raise DataError(
                "model.body.smpl_regressor=null: the hips of SMPL's labels need "
                "J_regressor_extra.npy"
            )
        else:
            hips = _read_hips(Path(body.smpl_regressor), len(file.v_template))
        row = hips.mean(0).astype(np.float32)  # (V,)
        used = np.nonzero(row)[0]
        self.row = torch.from_numpy(row[used])
        self.model = BodyModel(file)
        # Only the required vertices are computed.
        count = len(file.v_template)
        keep = torch.from_numpy(used)
        self.model.template = self.model.template[keep]
        self.model.skin_weights = self.model.skin_weights[keep]
        for name in ("directions", "pose_directions"):
            value = getattr(self.model, name)
            if value is not None:
                wide = value.view(len(value), count, 3)[:, keep]
                setattr(self.model, name, wide.reshape(len(value), -1))

    def pelvis(self, data: HumanData, row: int) -> Array:
        columns = data.columns
        pose = np.concatenate(
            [columns["smpl/global_orient"][row][None], columns["smpl/body_pose"][row]]
        )
        rotations = axis_angle_to_matrix(torch.from_numpy(pose.astype(np.float32)))[None]
        if len(self.model.parents) > SMPL_JOINTS:  # the stand-in: its hands are joints of fingers
            rotations = rotations[:, :BODY_JOINTS]
        # A copy: cached columns are read-only maps, of which torch warns.
        shape = torch.from_numpy(np.array(columns["smpl/betas"][row], np.float32))[None]
        with torch.autocast("cpu", enabled=False):  # a label, whatever the networks compute in
            vertices = self.model(shape, rotations).vertices[0]
            middle = (self.row @ vertices).numpy()
        return np.asarray(middle + columns["smpl/transl"][row], np.float32)


def _read_hips(path: Path, vertices: int) -> NDArray[np.floating]:  # (2, V)
    """Return the rows of the hips in J_regressor_extra.npy; in others they are other joints."""
    key = "model.body.smpl_regressor"
    regressor = read_regressor(path, key, vertices)
    if len(regressor) != EXTRA_JOINTS:
        raise DataError(
            f"{key}={path}: its shape is {regressor.shape}, expected {(EXTRA_JOINTS, vertices)}: "
            "name J_regressor_extra.npy (J_regressor_h36m.npy, with 17 rows, goes to "
            "model.body.smpl_joint_regressor)"
        )
    return np.asarray(regressor[list(HIP_ROWS)])
