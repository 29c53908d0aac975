"""Score PoseNet by the protocols: joints, vertices, depth, camera and overlap of every person."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from overt.data.images.decode import as_tensor
from overt.data.images.masks import read_mask_file
from overt.data.people.crops import Crop, cut
from overt.distributed import World
from overt.errors import ConfigError, DataError
from overt.evaluation import Row, score_batches, with_names
from overt.geometry.body import BodyModel
from overt.geometry.crop import Picture
from overt.geometry.rotation import axis_angle_to_matrix
from overt.geometry.silhouette import part_masks, rasterize
from overt.metrics import human
from overt.recipes.blade.camera import (
    LIMB_JOINTS,
    Observation,
    Solution,
    SolveOptions,
    look,
    pelvis_relative,
    solve_camera,
)
from overt.recipes.blade.config import EvaluationSettings, PoseNetSettings
from overt.recipes.blade.data import depth_crop, scored_count, whole_crop
from overt.recipes.blade.estimate import limb_pixels
from overt.recipes.blade.evaluation import depth_row
from overt.recipes.blade.metric_mesh import MetricMesh
from overt.recipes.blade.people import People, require_scored
from overt.recipes.blade.posenet import PoseNet, PoseOutput
from overt.recipes.blade.silhouette import mask_in_picture
from overt.viz.mesh import draw_mesh, write_on

MILLIMETRES = 1000.0
TRUE_MASK = "_true_mask"  # of scores that were helped by the true mesh
OWN = "_own"  # of scores without any help


class Truth(NamedTuple):
    """Ground truth of one person."""

    vertices: Tensor  # (V, 3) relative to the pelvis, in the camera's orientation
    joints: Tensor  # (J, 3) likewise
    pelvis: Tensor  # (3,) meters
    origin: Tensor  # (3,) meters, the place of joint 0; of SMPL-X that is the pelvis
    focal: float | None  # pixels of the whole picture, where the data set tells it
    centre: tuple[float, float]


class Scorer:
    """Scores people in batches."""

    def __init__(
        self, model: PoseNet, body: BodyModel, people: People, settings: PoseNetSettings
    ) -> None:
        self.model, self.body, self.people, self.settings = model, body, people, settings
        self.device = body.template.device
        require_source(settings)
        require_scored(people.data)
        self.mesh = MetricMesh(body, settings.model.body, people.data.has("smplx"))
        self.mesh.check(people.data)
        chosen = settings.evaluation.camera
        self.options = SolveOptions(
            chosen.iterations, chosen.keypoint_weight, chosen.optimize_depth, chosen.optimize_pose
        )

    @property
    def is_own(self) -> bool:
        return self.settings.evaluation.camera.source == "model"

    def rows(self, world: World) -> list[dict[str, Any]]:
        """Return a row for each person, starting with its picture's name."""
        evaluation = self.settings.evaluation
        count = scored_count(self.people, evaluation)
        rows = score_batches(world, count, evaluation.batch_size, self.score)
        names = [str(self.people.data.columns["image_path"][row]) for row in range(count)]
        return with_names(names, rows)

    def score(self, chosen: Sequence[int]) -> list[Row]:
        """The numbers of some people."""
        pictures = [self.people.picture(row) for row in chosen]
        output = self.predict(chosen, pictures)
        # bf16 cannot resolve millimeters, whatever the networks compute in.
        with torch.autocast(self.device.type, enabled=False):
            return self.compare(chosen, pictures, output)

    def compare(
        self, chosen: Sequence[int], pictures: Sequence[Picture], output: PoseOutput
    ) -> list[Row]:
        """Compare predictions with the ground truth of some people."""
        truths = [self.truth(row, picture) for row, picture in zip(chosen, pictures, strict=True)]
        vertices, _ = pelvis_relative(self.body, output.shape, output.rotations)
        rows = [self.pose_row(vertices[n], truth) for n, truth in enumerate(truths)]
        if output.depth is None:
            return rows
        seen: dict[int, tuple[Observation, float]] = {}
        for index, truth in enumerate(truths):
            rows[index] |= depth_row(float(output.depth[index]), float(truth.pelvis[2]))
            if truth.focal is not None:  # without a true camera there is nothing to compare with
                observed, scale = self.observe(chosen[index], pictures[index], truth)
                mask = self.own_mask(output, index, pictures[index], observed.size, scale)
                if mask is not None:
                    rows[index] |= self.silhouette_row(mask, truth, scale)
                if self.is_own:
                    crop, single = whole_crop(pictures[index].shape[:2]), slice(index, index + 1)
                    pixels, good = limb_pixels(output, crop, None, self.device)
                    limbs = (scale * pixels[single], good[single])
                    observed = Observation(mask, *limbs, observed.size, observed.centre)
                seen[index] = (observed, scale)
        for indices in self.solved_together(seen):
            observed = stack_observations([seen[index][0] for index in indices])
            people = (output.shape[indices], output.rotations[indices], output.depth[indices])
            start = solve_camera(self.body, *people, observed, SolveOptions(iterations=0))
            solved = start
            if self.options.iterations:
                solved = solve_camera(self.body, *people, observed, self.options)
            for position, index in enumerate(indices):
                first, last = person_of(start, position), person_of(solved, position)
                row = self.camera_rows(first, last, truths[index], *seen[index])
                if self.is_own:
                    row = {name + OWN: value for name, value in row.items()}
                elif not self.has_mask(chosen[index]):
                    row = {name + TRUE_MASK: value for name, value in row.items()}
                rows[index] |= row
        return rows

    def solved_together(self, seen: dict[int, tuple[Observation, float]]) -> list[list[int]]:
        """Return groups of people whose cameras are solved in one call.

        On CUDA those of one picture size: a person alone takes as long as all of them. On a CPU
        each alone, so that no score depends on who shares its batch.
        """
        if self.device.type != "cuda":
            return [[index] for index in seen]
        groups: dict[object, list[int]] = {}
        for index, (observed, _) in seen.items():
            groups.setdefault((observed.size, observed.centre), []).append(index)
        return list(groups.values())

    def camera_rows(
        self, start: Solution, solved: Solution, truth: Truth, observed: Observation, scale: float
    ) -> Row:
        """Return overlaps before and after the solve, and errors of the camera."""
        row = self.overlap_row(start, truth, observed, scale, "_raw")
        if self.options.iterations and observed.mask is not None:  # which it is refined by
            row |= self.overlap_row(solved, truth, observed, scale, "")
        return row | camera_row(solved, truth, scale)

    def predict(self, chosen: Sequence[int], pictures: Sequence[Picture]) -> PoseOutput:
        """Predict poses from DepthNet's crop and the whole picture."""
        data = self.settings.data
        near = [
            depth_crop(self.people, row, picture, data.depth_size)
            for row, picture in zip(chosen, pictures, strict=True)
        ]
        crops = [
            as_tensor(cut(picture, whole_crop(picture.shape[:2]), data.pose_size)[0])
            for picture in pictures
        ]
        output: PoseOutput = self.model(
            torch.stack(near).to(self.device), torch.stack(crops).to(self.device)
        )
        return output

    def truth(self, row: int, picture: Picture) -> Truth:
        """The labeled person."""
        data = self.people.data
        model = self.mesh.of_labels
        pelvis = torch.from_numpy(np.array(self.people.pelvis(row))).to(self.device)
        if data.has("smplx"):
            label = self.people.label(row)
            unused_joints = np.zeros((3, 3), np.float32)
            pose = np.concatenate(
                [label.root[None], label.body, unused_joints, label.left_hand, label.right_hand]
            )
            shape = label.shape
        else:
            parts = ("smpl/global_orient", "smpl/body_pose", "smpl/betas")
            root, body, shape = (np.asarray(data.columns[name][row]) for name in parts)
            pose = np.concatenate([root[None], body])[: len(model.parents)]
        rotations = axis_angle_to_matrix(torch.tensor(pose, dtype=torch.float32))[None]
        betas = torch.tensor(shape, dtype=torch.float32)[None]
        body = model(betas.to(self.device), rotations.to(self.device))
        joint = body.joints[0, 0]
        # The pelvis of SMPL labels is the midpoint of the hips, which differs from joint 0.
        origin = pelvis
        if not data.has("smplx"):
            origin = joint + torch.tensor(data.columns["smpl/transl"][row], device=self.device)
        height, width = picture.shape[:2]
        focal, centre = data.focal(row, (height, width)) or (None, (width / 2, height / 2))
        return Truth(
            body.vertices[0] - joint, body.joints[0] - joint, pelvis, origin, focal, centre
        )

    def pose_row(self, vertices: Tensor, truth: Truth) -> Row:
        """Return errors of joints and vertices in millimeters."""
        mesh, joints = self.mesh.of_prediction(vertices)
        true_mesh, true_joints = self.mesh.of_truth(truth.vertices)
        predicted = human.pelvis_centred(joints[None]) * MILLIMETRES
        expected = human.pelvis_centred(true_joints[None]) * MILLIMETRES
        # Each mesh relative to the midpoint of its hips.
        hips = [1, 4]
        mesh = (mesh - joints[hips].mean(0))[None] * MILLIMETRES
        true_mesh = (true_mesh - true_joints[hips].mean(0))[None] * MILLIMETRES
        return {
            "mpjpe_mm": human.masked_mean(human.distances(predicted, expected)),
            "pa_mpjpe_mm": human.masked_mean(human.aligned_distances(predicted, expected)),
            "pve_mm": human.masked_mean(human.distances(mesh, true_mesh)),
            "pa_pve_mm": human.masked_mean(human.aligned_distances(mesh, true_mesh)),
        }

    def observe(self, row: int, picture: Picture, truth: Truth) -> tuple[Observation, float]:
        """Return what a detector would provide: a mask (of a file or the true mesh), keypoints.

        In pixels of a smaller picture, whose scale is returned too.
        """
        chosen = self.settings.evaluation.camera
        height, width = picture.shape[:2]
        scale = min(1.0, chosen.size / max(height, width))
        size = (max(round(height * scale), 1), max(round(width * scale), 1))
        # Rounding the size does not move the principal point.
        centre = (width * scale / 2, height * scale / 2)
        pixels = self.project_truth(truth.joints[list(LIMB_JOINTS)], truth) * scale
        noise = np.random.default_rng(row).standard_normal((12, 2)) * chosen.keypoint_noise
        pixels = pixels + torch.tensor(noise, dtype=torch.float32, device=self.device)
        inside = (pixels >= 0) & (pixels <= pixels.new_tensor([size[1] - 1, size[0] - 1]))
        path = self.masks.path(self.people.picture_path(row))
        if path is None:
            mask = self.parts_of_truth(truth, size, scale) > 0
        else:
            full_mask = read_mask(path, (height, width))
            mask = torch.from_numpy(shrunk_mask(full_mask, size, scale)).to(self.device)
        keypoints, good = pixels[None], inside.all(-1)[None]
        return Observation(mask.float()[None], keypoints, good, size, centre), scale

    def own_mask(
        self,
        output: PoseOutput,
        index: int,
        picture: Picture,
        size: tuple[int, int],
        scale: float,
    ) -> Tensor | None:  # (1, *size)
        """Return the silhouette that PoseNet predicts, in pixels of the smaller picture."""
        if output.silhouette is None:
            return None
        crop = whole_crop(picture.shape[:2])
        # The first pixel is at 0 in the smaller picture too, not half a pixel into it.
        x, y = (middle + 0.5 / scale - 0.5 for middle in crop.centre)
        logits, side = output.silhouette[index : index + 1], self.settings.data.pose_size
        return mask_in_picture(logits, Crop((x, y), crop.side), side, size, scale)

    def silhouette_row(self, mask: Tensor, truth: Truth, scale: float) -> Row:
        """Return the overlap of a predicted silhouette with that of the true mesh."""
        size = (mask.shape[1], mask.shape[2])
        true = (self.parts_of_truth(truth, size, scale) > 0)[None].cpu().numpy()
        overlap = human.mask_iou((mask > 0.5).cpu().numpy(), true)
        return {"silhouette_iou_percent": float(overlap[0])}

    @cached_property
    def masks(self) -> MaskFiles:
        return MaskFiles(self.people)

    def has_mask(self, row: int) -> bool:
        return self.masks.path(self.people.picture_path(row)) is not None

    def project_truth(self, points: Tensor, truth: Truth) -> Tensor:
        """Project points relative to joint 0 to pixels with the true camera."""
        assert truth.focal is not None
        moved = points + truth.origin
        centre = moved.new_tensor(truth.centre)
        return truth.focal * moved[:, :2] / moved[:, 2:] + centre

    def parts_of_truth(self, truth: Truth, size: tuple[int, int], scale: float) -> Tensor:
        model = self.mesh.of_labels
        pixels = self.project_truth(truth.vertices, truth) * scale
        depth = (truth.vertices + truth.origin)[:, 2]
        raster = rasterize(pixels[None], depth[None], model.faces, size)
        return part_masks(raster, model.faces, model.part)[0]

    def overlap_row(
        self, solved: Solution, truth: Truth, observed: Observation, scale: float, suffix: str
    ) -> Row:
        """Return the overlap of estimated and true mesh masks, whole and by parts."""
        true = self.parts_of_truth(truth, observed.size, scale)[None].cpu().numpy()
        pixels, depth = look(
            solved.vertices, solved.translation, solved.focal, observed.size, observed.centre
        )
        raster = rasterize(pixels, depth, self.body.faces, observed.size)
        parts = part_masks(raster, self.body.faces, self.body.part).cpu().numpy()
        return {
            f"miou{suffix}_percent": float(human.mask_iou(parts, true)[0]),
            f"pmiou{suffix}_percent": float(human.part_iou(parts, true)[0]),
        }


def require_source(settings: PoseNetSettings) -> None:
    """Reject cameras from what the model predicts (evaluation.camera.source) if it does not."""
    camera, model = settings.evaluation.camera, settings.model
    if camera.source != "model":
        return
    if not model.keypoint_head:
        raise ConfigError(
            "evaluation.camera.source=model scores cameras from the model's own keypoints, but "
            "model.keypoint_head=false; set evaluation.camera.source=truth, or train with "
            "model.keypoint_head=true"
        )
    freed = [name for name in ("optimize_pose", "optimize_depth") if getattr(camera, name)]
    if freed and not model.silhouette_head:
        raise ConfigError(
            f"evaluation.camera.{freed[0]}=true with evaluation.camera.source=model optimizes "
            "against the model's own silhouette, but model.silhouette_head=false; set "
            f"evaluation.camera.{freed[0]}=false, or train with model.silhouette_head=true"
        )


class MaskFiles:
    """Finds masks: `masks` has the folders that the pictures have below their image folder.

    imgs/A/0001.jpg has masks/A/0001.png, and imgs/0001.jpg has masks/0001.png. A `masks` folder
    next to the one of the picture is found too.
    """

    def __init__(self, people: People) -> None:
        self.people = people

    def path(self, picture: Path) -> Path | None:
        """Return the mask of a picture, if there is one; reject one that several would share."""
        path = self._first(picture)
        if path is None:
            return None
        owners = [other for other in self._possible_owners[path] if self._first(other) == path]
        if len(owners) > 1:
            own = self.people.images / "masks" / owners[0].relative_to(self.people.images)
            raise DataError(
                f"{path} could be the mask of {owners[0]} or of {owners[1]}; give each its own, "
                f"such as {own.with_suffix('.png')}"
            )
        return path

    def _first(self, picture: Path) -> Path | None:
        return next((path for path in self._candidates(picture) if path.is_file()), None)

    def _candidates(self, picture: Path) -> list[Path]:
        images = self.people.images
        below = picture.relative_to(images).with_suffix(".png")
        mirrored = [images / "masks" / below]
        if len(below.parts) > 1:
            mirrored.insert(0, images / "masks" / Path(*below.parts[1:]))
        return [*mirrored, picture.parent.parent / "masks" / below.name]

    @cached_property
    def _possible_owners(self) -> dict[Path, list[Path]]:
        """Return the pictures that a mask may belong to, without a look at the file system."""
        owners: dict[Path, list[Path]] = {}
        for picture in sorted({self.people.picture_path(row) for row in range(len(self.people))}):
            for path in dict.fromkeys(self._candidates(picture)):
                owners.setdefault(path, []).append(picture)
        return owners


def read_mask(path: Path, image_size: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the mask (H, W) of a picture of this size."""
    mask = read_mask_file(path)
    if mask.shape != image_size:
        height, width = image_size
        raise DataError(
            f"{path}: the mask has {mask.shape[1]} x {mask.shape[0]} pixels, its picture {width} x "
            f"{height}; write it in the size of the picture, or remove it"
        )
    if not mask.any():
        raise DataError(f"{path}: the mask is black, without a person; draw it, or remove it")
    return mask


def check_scored_masks(people: People, evaluation: EvaluationSettings) -> None:
    """Reject masks that do not fit their pictures before the first step, not at an evaluation."""
    if "K" not in people.data and "focal_length" not in people.data:
        return  # without a true camera none is solved
    masks = MaskFiles(people)
    for row in range(scored_count(people, evaluation)):
        path = masks.path(people.picture_path(row))
        if path is not None:
            read_mask(path, people.picture_size(row))


def shrunk_mask(
    mask: NDArray[np.bool_], size: tuple[int, int], scale: float
) -> NDArray[np.bool_]:  # `size`
    """Return the nearest pixels of a mask, at the exact scale although the size is rounded."""
    rows, columns = (
        np.minimum(np.rint(np.arange(new) / scale).astype(np.int64), old - 1)
        for new, old in zip(size, mask.shape, strict=True)
    )
    return np.asarray(mask[rows[:, None], columns])


def stack_observations(observed: Sequence[Observation]) -> Observation:
    """Make one observation of several people, of one size and center, all with a mask or none."""
    masks = [single.mask for single in observed if single.mask is not None]
    keypoints = torch.cat([single.keypoints for single in observed])
    good = torch.cat([single.good for single in observed])
    mask = torch.cat(masks) if masks else None
    return Observation(mask, keypoints, good, observed[0].size, observed[0].centre)


def person_of(solution: Solution, index: int) -> Solution:
    return Solution(*(part[index : index + 1] for part in solution))


def camera_row(solved: Solution, truth: Truth, scale: float) -> Row:
    """Return errors of the focal length and of the lateral pelvis position."""
    assert truth.focal is not None
    focal = float(solved.focal[0]) / scale
    across = (solved.translation[0, :2] - truth.pelvis[:2]).norm()
    return {
        "focal_percent": 100 * abs(focal - truth.focal) / truth.focal,
        "Txy_m": float(across),
    }


def draw_people(scorer: Scorer, count: int) -> Tensor:
    """Draw the first people side by side, each with the estimated mesh over the picture."""
    chosen = range(min(count, len(scorer.people)))
    pictures = [scorer.people.picture(row) for row in chosen]
    output = scorer.predict(chosen, pictures)
    with torch.autocast(scorer.device.type, enabled=False):
        return _draw(scorer, chosen, pictures, output)


def _draw(
    scorer: Scorer, chosen: Sequence[int], pictures: Sequence[Picture], output: PoseOutput
) -> Tensor:
    assert output.depth is not None
    drawn = []
    for row, picture in zip(chosen, pictures, strict=True):
        truth = scorer.truth(row, picture)
        image = as_tensor(picture).to(scorer.device)
        text = f"{float(output.depth[row]):.2f} m ({float(truth.pelvis[2]):.2f})"
        if truth.focal is None:  # nobody knows where the joints are in the picture
            drawn.append(write_on(torch.cat([image, image], dim=1).cpu(), text))
            continue
        observed, scale = scorer.observe(row, picture, truth)
        single = slice(row, row + 1)
        solved = solve_camera(
            scorer.body, output.shape[single], output.rotations[single], output.depth[single],
            observed, SolveOptions(iterations=0),
        )  # fmt: skip
        vertices = solved.vertices[0] + solved.translation[0]
        pixels, _ = look(
            solved.vertices, solved.translation, solved.focal, observed.size, observed.centre
        )
        over = draw_mesh(image, vertices, scorer.body.faces, pixels[0] / scale)
        both = torch.cat([image, over], dim=1).cpu()
        drawn.append(write_on(both, text))
    height = max(panel.shape[1] for panel in drawn)
    padded = [torch.nn.functional.pad(panel, (0, 0, 0, height - panel.shape[1])) for panel in drawn]
    return torch.cat(padded, dim=2)
