"""Sample implants with a trained network, and turn them into volumes."""

from __future__ import annotations

import argparse
import logging
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overt.commands.arguments import configure_model
from overt.commands.complete.result import Clock
from overt.commands.complete.skull import Skull, axes_of
from overt.config import Config, build_recipe
from overt.data.skulls.volumes import CloudFrame, Spacing
from overt.errors import ConfigError
from overt.tasks import ImplantVoxelizer, SkullCompleter, need_task

logger = logging.getLogger(__name__)


class Voxelizer(NamedTuple):
    """A second stage."""

    task: ImplantVoxelizer
    model: Any
    how: str


def sample(options: argparse.Namespace, config: Config, skull: Skull, clock: Clock) -> Any:
    """Return the recipe's implants for the skull."""
    import torch

    from overt.checkpoint.trained import load_model
    from overt.distributed import init_distributed
    from overt.engine.precision import AUTOCAST, set_precision

    world = init_distributed(config.training.device)
    recipe = build_recipe(config)
    completer = need_task(recipe, SkullCompleter, config.recipe.name)
    model, report = load_model(recipe, options.checkpoint, options.part, options.rename)
    clock.end("load", str(report))
    set_precision(config.training.precision, config.training.deterministic)
    # CPUs without 16-bit arithmetic emulate it, at a tenth of the speed.
    dtype = AUTOCAST.get(config.training.precision) if world.device.type == "cuda" else None
    with (
        torch.inference_mode(),
        torch.autocast(world.device.type, dtype, enabled=dtype is not None),
    ):
        completion = completer.complete(model.to(world.device), skull.cloud, str(options.scan))
    clock.end("sample", f"{len(completion.implants)} implant(s) on {world.device}")
    return completion


def load_voxelizer(options: argparse.Namespace, axes: str) -> Voxelizer:
    """Return the second stage of --voxels, for clouds with the axes of the first stage."""
    from overt.checkpoint.recorded import recorded_recipe
    from overt.checkpoint.trained import load_model

    if options.voxels.is_file() and recorded_recipe(options.voxels) is None:  # --recipe: stage one
        raise ConfigError(
            f"--voxels {options.voxels} does not name its recipe; give a checkpoint folder, or a "
            "safetensors file that `overt ckpt export` wrote"
        )
    config = configure_model(options.voxels, None, [], options.package)
    recipe = build_recipe(config)
    task = need_task(recipe, ImplantVoxelizer, config.recipe.name)
    if axes_of(config) != axes:
        raise ConfigError(
            f"--voxels {options.voxels} was trained on skulls with data.axes={axes_of(config)}, "
            f"--checkpoint {options.checkpoint} with {axes}; use two stages of one data set"
        )
    model, report = load_model(recipe, options.voxels, options.part)
    return Voxelizer(task, model, f"by {config.recipe.name}; {report}")


def along_scan(spacing: Spacing | None, frame: CloudFrame) -> Spacing | None:
    """Return sizes along the axes of clouds as sizes along those of a scan."""
    if spacing is None:
        return None
    x, y, z = (spacing[axis] for axis in np.abs(frame.matrix).argmax(axis=0).tolist())
    return x, y, z


def make_volumes(
    config: Config, skull: Skull, completion: Any, voxelizer: Voxelizer | None, clock: Clock
) -> list[NDArray[np.bool_]]:
    """Return a volume for each sample: by the second stage, or by rolling a ball around points."""
    volume, frame = skull.volume, skull.frame
    if volume is None or frame is None:
        return []
    known = completion.known
    if voxelizer is None:
        from overt.geometry.solid import solid_of_points

        ball = vars(config.settings.evaluation).get("solid_mm", 8.0)
        clouds = completion.implants.numpy() * known.scale + known.shift
        # Sampled points lie as far outside the bone as those of the training data, whose voxels may
        # be larger or smaller than the scan's.
        made_in = along_scan(getattr(completion, "cloud_spacing", None), frame)
        if made_in is None:
            logger.warning(
                "The checkpoint does not record the voxels that its training clouds were made in; "
                "half a voxel of the scan is taken off the walls, which is too little if its "
                "voxels are finer and too much if they are coarser"
            )
        shape, spacing = volume.values.shape, volume.spacing
        samples = [
            solid_of_points(frame.to_indices(cloud), shape, spacing, ball, cloud_spacing=made_in)
            & ~volume.values
            for cloud in clouds
        ]
        clock.end("solid", f"{len(samples)} volume(s)")
        return samples
    from overt.distributed import init_distributed
    from overt.geometry.indicator import ScanGrid

    device = init_distributed(config.training.device).device
    grid = ScanGrid(volume.values, volume.spacing, frame.to_indices)
    volumes: list[NDArray[np.bool_]] = voxelizer.task.implant_volumes(
        voxelizer.model.to(device), known, completion.implants, grid
    )
    clock.end("voxels", f"{len(volumes)} volume(s) {voxelizer.how}")
    return volumes
