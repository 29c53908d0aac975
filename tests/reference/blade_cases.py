"""One check for each kind of BLADE's reference cases."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fill_rule import fill
from torch import Tensor, nn

from overt.data.images.transforms import Normalize
from overt.geometry.body import blend_skin
from overt.geometry.camera import crop_camera, fit_camera, intrinsics, project
from overt.geometry.crop import crop_affine, crop_squares, mask_squares, warp
from overt.geometry.pose import mirror_pose, rotate_in_plane
from overt.geometry.rotation import (
    axis_angle_to_matrix,
    matrix_to_axis_angle,
    matrix_to_quaternion,
    relative_angle,
    six_to_matrix,
)
from overt.metrics import human
from overt.nn.dinov2 import DinoVisionTransformer
from overt.recipes.blade.depthnet import (
    DEAD,
    DepthDecoder,
    DepthHead,
    DepthNet,
    make_interface,
)
from overt.recipes.blade.dpt import DepthAnything, DPTHead
from overt.recipes.blade.loss import Bodies, Weights, depth_errors, pose_distances, pose_losses

Case = dict[str, Any]
Tensors = dict[str, Tensor]


def assert_near(case: Case, found: Any, expected: Any, name: str = "") -> None:
    """Within the case's own tolerances."""
    atol = case.get("atol_by_tensor", {}).get(name, case["atol"])
    first = torch.as_tensor(found, dtype=torch.float64)
    second = torch.as_tensor(expected, dtype=torch.float64)
    assert first.shape == second.shape, name
    torch.testing.assert_close(
        first,
        second,
        atol=atol,
        rtol=case["rtol"],
        equal_nan=True,  # an overlap of two empty masks, a mean over nothing
        msg=lambda m: name + m,
    )


def assert_keys(case: Case, module: nn.Module, absent: tuple[str, ...] = ()) -> None:
    """The module has the published names, all of them but those left out on purpose."""
    assert set(case["keys"]) - set(module.state_dict()) == set(absent)
    rest = set(module.state_dict()) - set(case["keys"])
    assert all("backbone_mark" in name for name in rest)


class Under(nn.Module):
    """A module under a name, so that the rule fills it by its published keys."""

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__()
        self.add_module(name, module)


# --- networks ------------------------------------------------------------------------------------


def encoder_of(config: dict[str, Any]) -> DinoVisionTransformer:
    size = (config["img_size"], config["img_size"])
    return DinoVisionTransformer(size, config["embed_dim"], config["depth"], config["num_heads"])


@torch.no_grad()
def check_vit(case: Case, tensors: Tensors) -> None:
    encoder = encoder_of(case["config"]).eval()
    whole = Under(case["key_prefix"].rstrip("."), encoder)
    fill(whole)
    assert_keys(case, whole)
    for size in ("native", "resized"):
        taps = encoder.taps(tensors[f"image_{size}"], case["config"]["layers"])
        for number, tap in enumerate(taps):
            assert_near(case, tap.patches, tensors[f"{size}_patch_{number}"])
            assert_near(case, tap.summary, tensors[f"{size}_cls_{number}"])


@torch.no_grad()
def check_dpt(case: Case, tensors: Tensors) -> None:
    config = case["config"]
    head = DPTHead(config["in_channels"], config["out_channels"], config["features"]).eval()
    whole = Under(case["key_prefix"].rstrip("."), head)
    fill(whole)
    assert_keys(case, whole)
    down, across = config["grid"]
    paths = head.paths([tensors[f"tokens_{number}"] for number in range(4)], (down, across))
    for number, path in zip((4, 3, 2, 1), paths, strict=True):
        assert_near(case, path, tensors[f"path_{number}"], f"path_{number}")
    depth = head.depth(paths[-1], (14 * down, 14 * across))
    assert_near(case, depth, tensors["depth01"], "depth01")


def head_of(case: Case, dropout: float) -> DepthHead:
    options = case["znet"]
    assert options["number_of_embed"] == 1
    return DepthHead(
        DepthDecoder(
            options["embed_dim"],
            options["nhead"],
            options["dim_feedforward"],
            options["numlayers"],
            dropout,
            options["max_depth"],
        )
    )


@torch.no_grad()
def check_depthnet(case: Case, tensors: Tensors) -> None:
    config, width = case["config"], case["znet"]["embed_dim"]
    encoder = encoder_of(config)
    backbone = DepthAnything(encoder, config["layers"], config["out_channels"], width)
    model = DepthNet(backbone, make_interface(width, width), head_of(case, 0.1), save_frozen=True)
    fill(model).eval()
    assert_keys(case, model, absent=DEAD)
    image = tensors["image"]
    grid = encoder.grid_of(image)
    path = backbone.depth_head.paths(backbone.tokens(image), grid)[-1]
    assert_near(case, path[:, ::16, ::4, ::4], tensors["path_1_strided"])
    # The model itself never makes that path: its shorter way must lead to the same place.
    interface = model.depth_interface(backbone(image, model.map_size))
    assert_near(case, interface[:, ::8, ::8, ::8], tensors["interface_strided"])
    assert_near(case, interface.mean((2, 3)), tensors["interface_mean"])
    assert_near(case, model.depth_head(interface), tensors["pred_z"])


def check_depth_step(case: Case, tensors: Tensors) -> None:
    width, options = case["znet"]["embed_dim"], case["optimizer"]
    assert options["type"] == "AdamW"
    model = nn.Module()
    model.depth_interface = make_interface(width, width)
    model.depth_head = head_of(case, 0.0)
    fill(model).train()
    assert_keys(case, model, absent=DEAD)
    optimizer = torch.optim.AdamW(
        [
            {"params": model.depth_interface.parameters(), "lr": options["interface_lr"]},
            {"params": model.depth_head.parameters(), "lr": options["head_lr"]},
        ],
        betas=tuple(options["betas"]),
        weight_decay=options["weight_decay"],
    )
    known = tensors["has_transl"].bool()
    for step, expected in enumerate(tensors["losses"]):
        predicted = model.depth_head(model.depth_interface(tensors["features"]))
        errors = depth_errors(predicted[:, 0], tensors["gt_pelvis"][:, 2], known)
        loss = errors.sum() / len(known)
        optimizer.zero_grad()
        loss.backward()
        assert_near(case, loss.detach(), expected, "loss")
        assert_near(case, predicted.detach(), tensors["pred_z"][step], "pred_z")
        if step == 0:
            check_gradients(case, model)
        optimizer.step()
    interface, decoder = model.depth_interface, model.depth_head.dec_z
    assert_near(case, interface[1].running_mean, tensors["bn1_running_mean"])
    assert_near(case, interface[4].running_var, tensors["bn2_running_var"])
    assert_near(case, decoder.z_out.weight.detach(), tensors["z_out_weight_after"])
    assert_near(case, decoder.z_out.bias.detach(), tensors["z_out_bias_after"])


def check_gradients(case: Case, model: nn.Module) -> None:
    parameters = dict(model.named_parameters())
    for name, norm in case["grad_norms_step0"].items():
        if norm is None:
            assert name in DEAD
        elif norm > 1e-5:  # below, only rounding is left
            gradient = parameters[name].grad
            assert gradient is not None
            assert_near(case, gradient.norm(), norm, name)


# --- losses --------------------------------------------------------------------------------------


def check_losses(case: Case, tensors: Tensors) -> None:
    predicted = tensors["stage1/pred_z"].requires_grad_()
    known = tensors["stage1/has_transl"].bool()
    loss = depth_errors(predicted[:, 0], tensors["stage1/gt_pelvis"][:, 2], known).sum() / len(
        known
    )
    loss.backward()
    assert_near(case, loss.detach(), tensors["stage1/loss"])
    assert_near(case, predicted.grad, tensors["stage1/grad_pred_z"])

    names = ("root_pose", "body_pose", "shape", "joints_3d_no_pelvis", "vert_3d_no_pelvis")
    inputs = {name: tensors[f"stage2/pred/pred_{name}"].requires_grad_() for name in names}
    count = len(inputs["shape"])
    found = Bodies(
        rotations_of(inputs["root_pose"], inputs["body_pose"]),
        inputs["shape"],
        inputs["joints_3d_no_pelvis"],
        inputs["vert_3d_no_pelvis"],
    )
    target = {name.rpartition("/")[2]: tensors[name] for name in tensors if "/target/" in name}
    truth = Bodies(
        rotations_of(target["SMPLX_global_orient"], target["SMPLX_body_pose"]),
        target["SMPLX_betas"],
        target["gt_joints_3d_no_pelvis"],
        target["gt_vert_3d_no_pelvis"],
    )
    terms = {name: term / count for name, term in pose_losses(found, truth, Weights()).items()}
    total = torch.stack(list(terms.values())).sum()
    total.backward()
    for name, term in terms.items():
        assert_near(case, term.detach(), tensors[f"stage2/loss/{name}"], name)
    assert_near(case, total.detach(), tensors["stage2/total"])
    for name, value in inputs.items():
        assert_near(case, value.grad, tensors[f"stage2/grad/pred_{name}"], name)
    for name, value in pose_distances(found, truth).items():
        assert_near(case, value / count, tensors[f"stage2/loss/metric:{name}"], name)
    error = (tensors["stage2/pred/pred_z"][:, 0] - target["smpl_transl"][:, 2]).abs().mean()
    assert_near(case, error, tensors["stage2/loss/metric:Tz_error"])


def rotations_of(root: Tensor, body: Tensor) -> Tensor:
    vectors = torch.cat([root.reshape(-1, 1, 3), body.reshape(len(body), -1, 3)], dim=1)
    return axis_angle_to_matrix(vectors)


# --- geometry ------------------------------------------------------------------------------------


def check_rotations(case: Case, tensors: Tensors) -> None:
    d6 = six_to_matrix(tensors["d6"])
    turned = axis_angle_to_matrix(tensors["axis_angle"])
    assert_near(case, d6, tensors["matrix_from_d6"])
    assert_near(case, turned, tensors["matrix_from_axis_angle"])
    assert_near(case, turned, tensors["rodrigues_smplx"])
    assert_near(case, matrix_to_quaternion(d6), tensors["quaternion_wxyz_from_d6_matrix"])
    # Near a half turn the vector is not unique: compared as matrices.
    back = axis_angle_to_matrix(matrix_to_axis_angle(d6))
    expected = axis_angle_to_matrix(tensors["axis_angle_from_d6_matrix"])
    assert_near(case, back, expected)
    assert_near(case, relative_angle(d6, turned), tensors["relative_angle"])
    same = relative_angle(turned, turned)
    assert_near(case, same, tensors["relative_angle_same"], "relative_angle_same")


def check_projection(case: Case, tensors: Tensors) -> None:
    pixels, depth = project(tensors["points"], tensors["transl"], tensors["K"])
    assert_near(case, torch.cat([pixels, depth[..., None]], -1), tensors["uv_depth"])
    centre, size = tensors["crop_center"], case["config"]["res"]
    sides = tensors["crop_scale"]
    crop = crop_camera(tensors["K"].double(), centre, sides, size, tensors["is_flipped"])
    assert_near(case, crop, tensors["crop_K"])
    for side, affine in zip(sides.tolist(), tensors["crop_affine"], strict=True):
        x, y = centre.tolist()
        assert_near(case, crop_affine((x, y), side, 0.0, size), affine)


def check_camera_init(case: Case, tensors: Tensors) -> None:
    height, width = case["config"]["hw"]
    arguments = (tensors["joints"], tensors["pred_z"][:, 0], tensors["keypoints2d"])
    found = fit_camera(*arguments, tensors["good"], (height, width))
    assert_near(case, found.focal, tensors["init_focal"])
    assert_near(case, found.translation, tensors["init_transl"])
    centre = torch.tensor([width / 2, height / 2]).expand(len(found.focal), 2)
    seen, _ = project(
        tensors["joints"], tensors["true_transl"], intrinsics(tensors["true_focal"], centre)
    )
    good = tensors["good"]
    if case["config"].get("noise") == 0:
        torch.testing.assert_close(seen[good], tensors["keypoints2d"][good], atol=0.05, rtol=1e-3)


def check_crop(case: Case, tensors: Tensors) -> None:
    config = case["config"]
    x, y = config["center"]
    affine = crop_affine((x, y), config["scale"], config["rot"], config["res"])
    # Published from three points in float32, which a turned square rounds.
    assert_near({**case, "atol": min(case["atol"], 1e-3)}, affine, tensors["affine"], "affine")
    rgb = np.ascontiguousarray(tensors["image_bgr"].numpy()[..., ::-1])
    crop = warp(rgb, affine, config["res"])
    difference = crop[..., ::-1].astype(int) - tensors["crop_bgr"].numpy().astype(int)
    assert np.abs(difference).max() <= 2
    pixels = torch.from_numpy(crop.copy()).permute(2, 0, 1)[None]
    assert_near(case, Normalize()(pixels)[0], tensors["normalized_rgb_chw"])


def check_pose_aug(case: Case, tensors: Tensors) -> None:
    count = len(tensors["global_orient"])
    body = tensors["body_pose"].view(count, 21, 3)
    names = ("global_orient", "body_pose", "left_hand", "right_hand")
    parts = mirror_pose(tensors["global_orient"], body, tensors["left_hand"], tensors["right_hand"])
    for name, part in zip(names, parts, strict=True):
        assert_near(case, part, tensors[f"flipped_{name}"], name)
    orient = axis_angle_to_matrix(tensors["global_orient"])
    turned = rotate_in_plane(orient, tensors["rotation_deg"].float())
    assert_near(case, turned, axis_angle_to_matrix(tensors["rotated_global_orient"]))
    turn = rotate_in_plane(torch.eye(3).expand(count, 3, 3), tensors["rotation_deg"].float())
    assert_near(case, turn, tensors["rotation_matrix"])


def check_lbs(case: Case, tensors: Tensors) -> None:
    shape, pose = tensors["betas"], tensors["pose"]
    shaped = tensors["v_template"] + torch.einsum("bs,vcs->bvc", shape, tensors["shapedirs"])
    body = blend_skin(
        shaped,
        tensors["J_regressor"] @ shaped,
        axis_angle_to_matrix(pose.view(len(pose), -1, 3)),
        tensors["posedirs"],
        tuple(tensors["parents"].tolist()),
        tensors["lbs_weights"],
    )
    assert_near(case, body.vertices, tensors["vertices"])
    assert_near(case, body.joints, tensors["joints"])


def check_segcrop(case: Case, tensors: Tensors) -> None:
    corner, side = mask_squares(tensors["mask"][:, 0] > 0, case["scale_factor"])
    crop = crop_squares(tensors["image"], corner, side, case["config"]["res"])
    assert_near(case, crop, tensors["crop"])


# --- metrics -------------------------------------------------------------------------------------


def check_metrics(case: Case, tensors: Tensors) -> None:
    def array(name: str) -> Any:
        return tensors[name].numpy()

    assert tuple(case["j14"]) == human.COMMON_JOINTS
    predicted, true = (human.pelvis_centred(array(f"{n}_joints_m")) for n in ("pred", "gt"))
    predicted, true, mask = predicted * 1000, true * 1000, array("mask").astype(bool)
    each = human.distances(predicted, true)
    assert_near(case, each, array("mpjpe_each_mm"))
    assert_near(case, human.masked_mean(each, mask), array("mpjpe_mm"))
    similarity = human.best_similarity(predicted, true)
    # Where points lie in a plane the rotation is not unique.
    unique = np.linalg.matrix_rank(true - true.mean(1, keepdims=True), tol=1e-6) == 3
    assert_near(case, similarity.scale[unique], array("scale")[unique])
    assert_near(case, similarity.rotation[unique], array("rotation")[unique])
    aligned = similarity.apply(predicted)
    loose = {**case, "atol": 1e-4, "rtol": 1e-4}
    for chosen, tolerance in ((unique, case), (~unique, loose)):
        assert_near(tolerance, aligned[chosen], array("aligned_mm")[chosen])
        each = human.aligned_distances(predicted, true)[chosen]
        assert_near(tolerance, each, array("pa_mpjpe_each_mm")[chosen])
    each = human.aligned_distances(predicted, true)
    assert_near(case, human.masked_mean(each, mask), array("pa_mpjpe_mm"))
    vertices, truth = array("pred_verts_mm"), array("gt_verts_mm")
    assert_near(case, human.distances(vertices, truth), array("pve_each_mm"))
    assert_near(case, human.masked_mean(human.distances(vertices, truth)), array("pve_mm"))
    aligned_mean = human.masked_mean(human.aligned_distances(vertices, truth))
    assert_near(case, aligned_mean, array("pa_pve_mm"))
    depth, true_depth = array("pred_z"), array("gt_z")
    assert_near(case, np.abs(depth - true_depth).mean(), array("z_error"))
    assert_near(case, np.abs(1 / depth - 1 / true_depth).mean(), array("inv_z_error"))


def check_iou(case: Case, tensors: Tensors) -> None:
    true = tensors["gt_parts"].numpy()
    for name in ("raw", "opti"):
        parts = tensors[f"{name}_parts"].numpy()
        assert_near(case, human.mask_iou(parts, true), tensors[f"{name}_miou"])
        assert_near(case, human.part_iou(parts, true), tensors[f"{name}_pmiou"])


CHECKS: dict[str, Callable[[Case, Tensors], None]] = {
    "vit": check_vit,
    "dpt": check_dpt,
    "depthnet": check_depthnet,
    "depth_step": check_depth_step,
    "losses": check_losses,
    "rotations": check_rotations,
    "projection": check_projection,
    "camera_init": check_camera_init,
    "crop": check_crop,
    "pose_aug": check_pose_aug,
    "lbs": check_lbs,
    "segcrop": check_segcrop,
    "metrics": check_metrics,
    "iou": check_iou,
}
