"""PCDiff against the recorded values of the published implementation."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import find_cases, load_case, run_case
from fill_rule import fill
from pcdiff_cases import Case, Tensors, assert_near, denoiser, fill_denoiser, rows
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from overt.data.skulls.lists import known_cloud, rotation_matrix, training_cloud
from overt.metrics.implants import implant_scores
from overt.ops.dispatch import HAS_TRITON
from overt.ops.point_rows.api import mix_rows
from overt.ops.point_search.api import ball_query, furthest_point_sample, three_nearest
from overt.ops.point_voxels.api import average_voxels, grid_coordinates, make_grid, read_voxels
from overt.recipes.pcdiff import diffusion
from overt.recipes.pcdiff.denoiser import time_embedding
from overt.recipes.pcdiff.geometry import LevelPlan, Nearest, find_level, furthest_centers
from overt.recipes.pcdiff.layers import (
    Attention,
    FeaturePropagation,
    PVConv,
    SetAbstraction,
    SqueezeExcite,
)


@pytest.mark.parametrize("path", find_cases("pcdiff"))
def test_case(path: Path) -> None:
    run_case(path, CHECKS)


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton"
)
@pytest.mark.parametrize("path", find_cases("pcdiff"))
def test_case_on_the_gpu(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same cases through the kernels."""
    case, tensors = load_case(path)
    if case["kind"] not in ON_DEVICE:
        pytest.skip("has nothing to compute on the device")
    for part in (torch.backends.cuda.matmul, torch.backends.cudnn):
        monkeypatch.setattr(part, "allow_tf32", False)
    on_device = {name: tensor.cuda() for name, tensor in tensors.items()}
    with torch.device("cuda"):
        CHECKS[case["kind"]](case, on_device)


# --- operations ----------------------------------------------------------------------------------


def check_voxelize(case: Case, tensors: Tensors) -> None:
    resolution = case["resolution"]
    places = grid_coordinates(
        rows(tensors["coords"]), resolution, case.get("normalize", True), case.get("eps", 0)
    )
    assert_near(rows(places), tensors["norm_coords"], 1e-5)
    assert torch.equal(rows(places).round().int(), tensors["vox_coords"])
    grid = make_grid(places, resolution)
    batch, cells = grid.batch, resolution**3
    first = torch.arange(batch, dtype=torch.int32, device=places.device)[:, None] * cells
    assert torch.equal(grid.bins.view(batch, -1) - first, tensors["flat_index"])
    counts = torch.zeros(batch * cells, device=places.device)
    counts.index_add_(0, grid.bins.flatten(), torch.ones(len(grid.bins), device=places.device))
    assert torch.equal(counts.int().view(batch, cells), tensors["count"])
    assert torch.equal(counts.view(batch, cells, 1) > 0, grid.occupied > 0)

    features = tensors["features"].clone().requires_grad_()
    voxels = rows(average_voxels(rows(features), grid))
    assert_near(voxels.view_as(tensors["out"]), tensors["out"], 1e-5)
    voxels.backward(tensors["grad_out"].view_as(voxels))
    assert_near(features.grad, tensors["grad_features"], 1e-5)


def check_devoxelize(case: Case, tensors: Tensors) -> None:
    grid = make_grid(rows(tensors["norm_coords"]), case["resolution"])
    batch, cells = grid.batch, case["resolution"] ** 3
    points = tensors["norm_coords"].shape[2]
    device = grid.corners.device
    first = torch.arange(batch, dtype=torch.int32, device=device)[:, None, None] * cells
    corners = grid.corners.view(batch, points, 8) - first
    assert torch.equal(rows(corners), tensors["corner_index"])
    weights = rows(grid.corner_weights.view(batch, points, 8))
    assert_near(weights, tensors["corner_weight"], 1e-5)
    voxels = tensors["voxel_features"].clone().requires_grad_()
    found = rows(read_voxels(rows(voxels.flatten(2)), grid))
    assert_near(found, tensors["out"], 1e-5)
    found.backward(tensors["grad_out"])
    assert_near(voxels.grad, tensors["grad_voxel_features"], 1e-5)


def check_furthest(case: Case, tensors: Tensors) -> None:
    coords = rows(tensors["coords"])
    assert torch.equal(furthest_point_sample(coords, case["num_samples"]), tensors["index"])
    centers = furthest_centers(coords, case["num_samples"])
    assert torch.equal(rows(centers), tensors["centers"])


def check_ball_query(case: Case, tensors: Tensors) -> None:
    points = rows(tensors["points"])
    pairs = (("centers", "index"), ("centers_with_empty", "index_with_empty"))
    for centers, expected in (pair for pair in pairs if pair[0] in tensors):
        index, hits = ball_query(
            rows(tensors[centers]), points, case["radius"], case["num_neighbors"]
        )
        assert torch.equal(index, tensors[expected])
        used = torch.arange(case["num_neighbors"], device=hits.device) < hits[..., None]
        assert (index[~used] == index[..., :1].expand_as(index)[~used]).all()


def gather(features: Tensor, index: Tensor) -> Tensor:
    """Features (B, C, N) at indices (B, M, U): (B, C, M, U)."""
    batch, _, points = features.shape
    first = torch.arange(batch, dtype=torch.int32, device=index.device) * points
    flat = (index + first[:, None, None]).view(-1, 1)
    grouped = mix_rows(rows(features).flatten(0, 1), flat)
    return grouped.view(*index.shape, -1).permute(0, 3, 1, 2)


def check_grouping(case: Case, tensors: Tensors) -> None:
    features = tensors["features"].clone().requires_grad_()
    grouped = gather(features, tensors["index"])
    assert torch.equal(grouped, tensors["out"])
    grouped.backward(tensors["grad_out"])
    assert_near(features.grad, tensors["grad_features"], 1e-5)


def nearest_rows(index: Tensor, weight: Tensor, centers: int) -> Nearest:
    first = torch.arange(len(index), dtype=torch.int32, device=index.device) * centers
    return Nearest((index + first[:, None, None]).view(-1, 3), weight.view(-1, 3))


def interpolate(features: Tensor, nearest: Nearest) -> Tensor:
    """Center features (B, C, M) at the points: (B, C, N)."""
    mixed = mix_rows(rows(features).flatten(0, 1), nearest.rows, nearest.weights)
    return rows(mixed.unflatten(0, (len(features), -1)))


def check_interpolate(case: Case, tensors: Tensors) -> None:
    index, weight = three_nearest(rows(tensors["points"]), rows(tensors["centers"]))
    assert torch.equal(rows(index), tensors["index"])
    assert_near(rows(weight), tensors["weight"], 1e-5)
    features = tensors["center_features"].clone().requires_grad_()
    found = interpolate(features, nearest_rows(index, weight, features.shape[2]))
    assert_near(found, tensors["out"], 1e-5)
    found.backward(tensors["grad_out"])
    assert_near(features.grad, tensors["grad_center_features"], 1e-5)


# --- modules -------------------------------------------------------------------------------------


def check_pvconv(case: Case, tensors: Tensors) -> None:
    assert case["kernel_size"] == 3
    module = PVConv(
        case["in_channels"],
        case["out_channels"],
        case["resolution"],
        dropout=case["dropout"],
        attention=case["attention"],
        squeeze_excite=case["with_se"],
    )
    fill(module).eval()
    places = grid_coordinates(rows(tensors["coords"]), case["resolution"])
    grid = make_grid(places, case["resolution"])
    assert_near(rows(module(rows(tensors["features"]), grid)), tensors["out"], 5e-5)


def check_se(case: Case, tensors: Tensors) -> None:
    assert case["reduction"] == 8
    assert case["use_relu"]
    module = SqueezeExcite(case["channel"])
    fill(module)
    found = rows(module(rows(tensors["x"].flatten(2)))).view_as(tensors["x"])
    assert_near(found, tensors["out"], 1e-5)


def check_attention(case: Case, tensors: Tensors) -> None:
    assert case["num_groups"] == 8
    module = Attention(case["in_ch"], dimensions=case["D"])
    fill(module)
    found = rows(module(rows(tensors["x"].flatten(2)))).view_as(tensors["x"])
    assert_near(found, tensors["out"], 5e-5)


def check_set_abstraction(case: Case, tensors: Tensors) -> None:
    assert case["include_coordinates"]
    coords = rows(tensors["coords"])
    plan = LevelPlan(case["num_centers"], case["radius"], case["num_neighbors"], (), None)
    level = find_level(coords, furthest_centers(coords, plan.centers), plan)
    module = SetAbstraction(case["in_channels"], case["out_channels"])
    fill(module)
    found = module(rows(tensors["features"]), level.pairs, level.relative)
    assert_near(rows(found), tensors["out"], 2e-5)
    assert_near(rows(level.centers), tensors["out_coords"], 0)
    # The time embedding of this case differs from point to point: it takes the real grouping.
    index, _ = ball_query(level.centers, coords, plan.radius, plan.neighbours)
    assert_near(gather(tensors["temb"], index).amax(3), tensors["out_temb"], 2e-5)


def check_feature_propagation(case: Case, tensors: Tensors) -> None:
    centers = rows(tensors["centers_coords"])
    index, weight = three_nearest(rows(tensors["points_coords"]), centers)
    nearest = nearest_rows(index, weight, centers.shape[1])
    module = FeaturePropagation(case["in_channels"], case["out_channels"])
    fill(module)
    coords = tensors["points_coords"]
    has_skip = "points_features" in tensors  # the finest level may have none
    skip = rows(tensors["points_features"] if has_skip else coords[:, :0])
    found = module(rows(tensors["centers_features"]), nearest, skip)
    assert_near(rows(found), tensors["out"], 2e-5)
    assert_near(interpolate(tensors["temb"], nearest), tensors["out_temb"], 2e-5)


def check_time_embedding(case: Case, tensors: Tensors) -> None:
    width = case["embed_dim"]
    tolerance = 1e-4 if tensors["t"].is_cuda else 1e-5
    sinusoid = time_embedding(tensors["t"], width)
    assert_near(sinusoid, tensors["sinusoid"], tolerance)
    layers = nn.ModuleDict(
        {
            "embedf": nn.Sequential(
                nn.Linear(width, width), nn.LeakyReLU(0.1), nn.Linear(width, width)
            )
        }
    )
    fill_denoiser(layers)
    assert_near(layers["embedf"](sinusoid), tensors["out"], tolerance)


# --- diffusion -----------------------------------------------------------------------------------


def assert_relative(found: Tensor, expected: Tensor, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(found.cpu().numpy(), expected.cpu().numpy(), tolerance, 0)


def base_arrays(case: Case, schedule: str) -> diffusion.Arrays:
    return diffusion.make_arrays(
        diffusion.make_betas(schedule, case["beta_start"], case["beta_end"], case["time_num"])
    )


def check_schedule(case: Case, tensors: Tensors) -> None:
    found = {name: base_arrays(case, name) for name in case["schedules"]}
    spaced = diffusion.respace(found[case["ddim_base"]], case["ddim_sampling_steps"])
    found["ddim"] = spaced.arrays
    for key in tensors:
        name, _, array = key.rpartition(".")
        if array == "timesteps":
            assert spaced.timesteps == tensors[key].tolist()
        else:
            assert_relative(getattr(found[name], array), tensors[key])


def check_diffusion(case: Case, tensors: Tensors) -> None:
    arrays = base_arrays(case, case["schedule"])
    spaced = diffusion.respace(arrays, case["ddim_sampling_steps"]).arrays
    x, t, predicted = tensors["x_t"], tensors["t"], tensors["eps_pred"]
    late = tensors["t_ddim"]
    start = diffusion.predict_start(arrays, x, t, predicted)
    found = {
        "x_t": diffusion.add_noise(arrays, tensors["x0"], t, tensors["noise"]),
        "pred_x0": start,
        "posterior_mean": diffusion.posterior_mean(arrays, start, x, t),
        "p_sample": diffusion.ddpm_step(
            arrays, x, t, predicted, tensors["step_noise"],
            diffusion.log_variance(arrays, case["var_type"]),
        ),
        "loss_mse": diffusion.squared_error(tensors["noise"], predicted),
        "loss_mse_minsnr5": diffusion.squared_error(tensors["noise"], predicted)
        * diffusion.min_snr_weight(arrays, t, 5.0),
        "ddim_pred_x0": diffusion.predict_start(spaced, x, late, predicted),
        "ddim_sample": diffusion.ddim_step(
            spaced, x, late, predicted, tensors["step_noise"], case["eta"]
        ),
    }  # fmt: skip
    for name, value in found.items():
        steps = late if name.startswith("ddim") else t
        for step, one, other in zip(steps.tolist(), value, tensors[name], strict=True):
            # Near the last step the noise is magnified, and its rounding with it.
            large = float(arrays.sqrt_recip_alphas_cumprod[step]) > 10
            tolerance = 1e-3 if large else 1e-5
            np.testing.assert_allclose(one.numpy(), other.numpy(), tolerance, 1e-5, err_msg=name)


# --- the whole network ---------------------------------------------------------------------------


def check_denoiser(case: Case, tensors: Tensors) -> None:
    assert case["mode"] == "eval"
    model = denoiser(case).eval()
    with torch.no_grad():
        found = model(tensors["x"], tensors["t"])
    assert_near(found, tensors["out"], 2e-4)


def check_train_step(case: Case, tensors: Tensors) -> None:
    model = denoiser(case).train()
    names = [f"{case.get('keys_prefix', 'model.')}{name}" for name, _ in model.named_parameters()]
    assert names == case["parameter_names"]
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    arrays = diffusion.make_arrays(diffusion.make_betas("linear", 1e-4, 0.02, 1000))
    arrays = arrays.to(tensors["t"].device)
    known, implant = tensors["data"].split(
        [case["sv_points"], tensors["data"].shape[2] - case["sv_points"]], dim=2
    )
    x = diffusion.add_noise(arrays, implant, tensors["t"], tensors["noise"])
    inputs = torch.cat([known, x], dim=2)
    assert_near(inputs, tensors["model_input"], 1e-5)
    predicted = model(inputs, tensors["t"])[:, :, case["sv_points"] :]
    assert_near(predicted, tensors["eps_pred"], 2e-4)
    losses = diffusion.squared_error(tensors["noise"], predicted)
    assert_near(losses, tensors["loss_per_sample"], 1e-5)
    assert_near(losses.mean(), tensors["loss"], 1e-5)
    losses.mean().backward()
    check_gradients(model, case, tensors)

    settings = case["optimizer"]
    assert settings["name"] == "Adam"
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=settings["lr"],
        betas=settings["betas"],
        eps=settings["eps"],
        weight_decay=settings["weight_decay"],
    )
    clip_grad_norm_(model.parameters(), case["grad_clip_norm"])
    optimizer.step()
    after = dict(zip(case["parameter_names"], model.parameters(), strict=True))
    for key in tensors:
        if key.startswith("after_step."):
            error = (after[key.removeprefix("after_step.")].detach() - tensors[key]).abs()
            # Where the gradient is rounding noise, its sign and so the step are chance.
            assert (error <= 1e-6).float().mean() >= 0.99


def check_gradients(model: nn.Module, case: Case, tensors: Tensors) -> None:
    total = case["total_grad_norm"]
    gradients = dict(
        zip(case["parameter_names"], (p.grad for p in model.parameters()), strict=True)
    )
    for gradient, expected in zip(
        gradients.values(), tensors["grad_norm_per_parameter"].tolist(), strict=True
    ):
        norm = float(gradient.norm())
        if expected > 1e-4 * total:
            assert norm == pytest.approx(expected, rel=1e-3)
        else:
            assert norm == pytest.approx(expected, abs=1e-3)
    for key in tensors:
        if key.startswith("grad."):
            assert_near(gradients[key.removeprefix("grad.")], tensors[key], 1e-5 * total)


# --- data and metrics ----------------------------------------------------------------------------


def check_data_item(case: Case, tensors: Tensors) -> None:
    assert case["norm_mode"] == "shape_bbox"
    assert case["rotation"].startswith("Rx @ Ry @ Rz")
    skull, implant = tensors["skull"].numpy(), tensors["implant"].numpy()
    chosen = skull[tensors["skull_index"].numpy()], implant[tensors["implant_index"].numpy()]
    rotation = rotation_matrix(np.deg2rad(case["angles_degrees"]))
    found = {
        "": ("train_points", training_cloud(*chosen)),
        "_augmented": ("train_points_augmented", training_cloud(*chosen, rotation)),
        "_eval": ("eval_points", known_cloud(chosen[0])),
    }
    for suffix, (name, cloud) in found.items():
        assert cloud.points.dtype == np.float32
        assert_near(torch.from_numpy(cloud.points), tensors[name], 1e-5)
        assert_near(torch.from_numpy(cloud.shift), tensors[f"shift{suffix}"], 1e-5)
        assert_near(torch.from_numpy(cloud.scale), tensors[f"scale{suffix}"], 1e-5)


def check_metrics(case: Case, tensors: Tensors) -> None:
    found = implant_scores(
        tensors["pred"].numpy().astype(bool),
        tensors["gt"].numpy().astype(bool),
        tensors["defective_skull"].numpy().astype(bool),
        case["voxel_spacing"],
        case["border_distance"],
    )
    for name in ("dsc", "bdsc", "hd95", "assd", "hd"):
        # Undefined where a mask is empty: recorded as null, or not at all.
        recorded = case.get(name)
        expected = math.nan if recorded is None else recorded
        assert found[name] == pytest.approx(expected, abs=1e-6, nan_ok=True)


CHECKS: dict[str, Callable[[Case, Tensors], None]] = {
    "op_avg_voxelize": check_voxelize,
    "op_trilinear_devoxelize": check_devoxelize,
    "op_furthest_point_sample": check_furthest,
    "op_ball_query": check_ball_query,
    "op_grouping": check_grouping,
    "op_three_nn_interpolate": check_interpolate,
    "mod_pvconv": check_pvconv,
    "mod_se3d": check_se,
    "mod_attention": check_attention,
    "mod_set_abstraction": check_set_abstraction,
    "mod_feature_propagation": check_feature_propagation,
    "time_embedding": check_time_embedding,
    "schedule": check_schedule,
    "diffusion": check_diffusion,
    "denoiser": check_denoiser,
    "train_step": check_train_step,
    "data_item": check_data_item,
    "metrics": check_metrics,
}
ON_DEVICE = {kind for kind in CHECKS if kind.startswith(("op_", "mod_"))}
ON_DEVICE |= {"time_embedding", "denoiser", "train_step"}
