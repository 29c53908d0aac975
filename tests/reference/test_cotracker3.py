"""CoTracker3 against the recorded cases of the published implementation, float32 on the CPU."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cases import find_cases, run_case
from check_augmentations import check_augmentations
from check_online import check_streaming
from check_predictor import check_predictor
from torch import Tensor
from tracker_cases import Case, Tensors, assert_relative, assert_within, build_model

from overt.geometry.grid import point_grid
from overt.geometry.sample import bilinear_sample
from overt.metrics.tracking import tapvid_metrics
from overt.nn.embedding import fourier_encoding
from overt.recipes.cotracker3.config import LossSettings
from overt.recipes.cotracker3.loss import (
    Targets,
    confidence_loss,
    counts,
    losses,
    position_error,
    position_loss,
    visibility_loss,
)
from overt.recipes.cotracker3.model import CoTracker3, Estimate
from overt.recipes.cotracker3.pyramid import Pyramid, index_pyramid
from overt.recipes.cotracker3.windows import sliding_windows


def pyramid_of(model: CoTracker3, features: Tensor) -> Pyramid:
    """The pyramid of features (B, T, C, H, W) as they are, not scaled to length 1."""
    batch, frames, _, height, width = features.shape
    cells = model.table.lay_out(features.flatten(0, 1))
    return index_pyramid(cells, batch, frames, (height, width), model.corr_levels)


@pytest.mark.parametrize("path", find_cases("cotracker3"))
def test_case(path: Path) -> None:
    run_case(path, CHECKS)


# --- forward -------------------------------------------------------------------------------------


def check_forward(case: Case, tensors: Tensors) -> None:
    model = build_model(case)
    features: list[Tensor] = []
    correlations: list[tuple[Tensor, Tensor]] = []
    updates: list[tuple[Tensor, Tensor]] = []
    model.fnet.register_forward_hook(lambda _, x, y: features.append(y))
    model.corr_mlp.register_forward_hook(lambda _, x, y: correlations.append((x[0], y)))
    model.updateformer.register_forward_hook(lambda _, x, y: updates.append((x[0], y)))
    with torch.no_grad():
        tracks, visibility, confidence, train_data = model(
            tensors["video"].float(), tensors["queries"], **case["call"]
        )

    videos = len(tensors["video"])
    maps = torch.cat(features).unflatten(0, (videos, -1))  # (B, T, C, h, w)
    # The online model repeats the maps of the last frame, the recorded one encoded it again.
    padding = len(tensors["fnet.mean_per_image"]) // videos - maps.shape[1]
    padded = torch.cat([maps, maps[:, -1:].expand(-1, padding, -1, -1, -1)], dim=1).flatten(0, 1)
    assert_relative(padded.mean((1, 2, 3)), tensors["fnet.mean_per_image"])
    assert_relative(padded.std((1, 2, 3)), tensors["fnet.std_per_image"])
    assert_relative(padded[0, :8], tensors["fnet.first_image_8ch"])

    # (B, N, T, .) at level 0, to rows ordered (t, n)
    volume, embedding = (x[:, :, 0].transpose(1, 2).flatten(0, 2) for x in correlations[0])
    assert_relative(volume.mean(-1), tensors["corr.first_call_in_mean"])
    assert_relative(embedding[:, :8], tensors["corr.first_call_out_8ch"])

    tokens, update = updates[0]
    tokens = tokens.flatten(0, 2)
    stats = torch.stack([tokens.mean(0), tokens.abs().amax(0)])
    assert_relative(stats, tensors["transformer_in.first_call_stats"])
    assert_relative(update, tensors["delta.first_call"])

    pixels = case["suggested_atol"]["tracks_px"]
    probability = case["suggested_atol"]["visibility_confidence"]
    assert_within(tracks, tensors["tracks"], pixels)
    assert_within(visibility, tensors["visibility"], probability)
    assert_within(confidence, tensors["confidence"], probability)

    recorded = {name for name in tensors if name.startswith("train.")}
    assert (train_data is not None) == bool(recorded) == case["call"].get("is_train", False)
    if train_data is None:
        return
    assert_within(train_data.valid_mask, tensors["train.valid_mask"], 0)
    recorded.remove("train.valid_mask")
    assert len(train_data.windows) == case["windows"]
    for w, window in enumerate(train_data.windows):
        for i, estimate in enumerate(window):
            coords = f"train.coords.w{w}.i{i}"
            tolerance = min(pixels, 1e-3) if (w, i) == (0, 0) else pixels
            assert_within(estimate.tracks_xy, tensors[coords], tolerance)
            vis, conf = f"train.vis.w{w}.i{i}", f"train.conf.w{w}.i{i}"
            assert_within(estimate.visibility.sigmoid(), tensors[vis], probability)
            assert_within(estimate.confidence.sigmoid(), tensors[conf], probability)
            recorded -= {coords, vis, conf}
    assert not recorded


# --- pieces --------------------------------------------------------------------------------------


def check_pieces(case: Case, tensors: Tensors) -> None:
    model = build_model(case)
    check_sampling(tensors)
    with torch.no_grad():
        check_correlation(case, tensors)

    encoded = fourier_encoding(tensors["posenc.input"], model.motion.frequencies)
    assert_relative(encoded, tensors["posenc.output"])

    own = tensors["time_emb.own_length"]
    every = -(-model.time_emb.shape[-1] // own.shape[-1])
    assert_relative(model.time_embedding(own.shape[1])[..., ::every], own)
    stretched = model.time_embedding(case["T"])[..., ::every]
    assert_relative(stretched, tensors["time_emb.interp_to_T"])

    for name in (name for name in tensors if name.startswith("grid.")):
        assert_relative(grid_of(name, case)[None], tensors[name])


def check_sampling(tensors: Tensors) -> None:
    images, points = tensors["sample4d.input"], tensors["sample4d.coords_xy"]
    assert_relative(bilinear_sample(images, points), tensors["sample4d.output"])
    zeros = bilinear_sample(images, points, padding="zeros")
    assert_relative(zeros, tensors["sample4d.output_align_false_zeros"])


def check_correlation(case: Case, tensors: Tensors) -> None:
    # Only the finest level is recorded, and a small map has no room for others.
    model = build_model({**case, "model_kwargs": {**case["model_kwargs"], "corr_levels": 1}})
    fmaps, queries = tensors["corr.fmaps"], tensors["corr.queries_txy"]
    # A map that holds its own coordinates shows the order of the samples around a centre.
    side = 2 * len(model.square_taps.offsets)
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    ruler = pyramid_of(model, torch.stack([x, y]).float()[None, None])
    centre = torch.full((1, 1, 2), side / 2)
    frame = torch.zeros(1, 1, dtype=torch.long)
    offsets = model.query_features(ruler, frame, centre)[0, 0, 0] - centre[0]  # (P*P, 2)
    assert_within(offsets, tensors["corr.support_points_order"][:, 1:], 1e-5)
    assert not tensors["corr.support_points_order"][:, 0].any()

    pyramid = pyramid_of(model, fmaps)
    support = model.query_features(pyramid, queries[..., 0].long(), queries[..., 1:])
    expected = tensors["corr.track_support_8ch"]  # (B, P*P, N, 8)
    assert_relative(support[:, :, 0, :, : expected.shape[-1]].transpose(1, 2), expected)

    cells_xy = tensors["corr.coords"].transpose(1, 2)  # (B, N, T, 2)
    volume = model.correlate(pyramid, support, cells_xy)[:, :, 0].transpose(1, 2)  # (B, T, N, .)
    stats = torch.stack([volume.mean(-1), volume.std(-1), volume.amax(-1)], dim=-1)
    assert_relative(stats, tensors["corr.volume_stats"])
    first = tensors["corr.volume_first"]
    assert_relative(volume[0, 0, 0].view_as(first), first)
    embedding = tensors["corr.embedding"]  # of one video without its dimension
    found = model.corr_mlp(volume)[..., : embedding.shape[-1]]
    assert_relative(found.reshape(embedding.shape), embedding)


def test_the_correlation_of_maps_too_small_for_a_second_level_is_checked() -> None:
    case = {"model_kwargs": {"corr_radius": 1}}
    offsets = [[0, x, y] for x in (-1, 0, 1) for y in (-1, 0, 1)]
    mlp = build_model(case).corr_mlp.requires_grad_(False)
    tensors = {
        "corr.fmaps": torch.ones(1, 1, 128, 1, 2),
        "corr.queries_txy": torch.tensor([[[0.0, 0.5, 0.0], [0.0, 1.0, 3.0]]]),
        "corr.coords": torch.tensor([[[[0.2, 0.0], [-5.0, 0.0]]]]),
        "corr.support_points_order": torch.tensor(offsets).float(),
        "corr.track_support_8ch": torch.ones(1, 9, 2, 8),
        "corr.volume_stats": torch.tensor([128.0, 0.0, 128.0]).expand(1, 1, 2, 3),
        "corr.volume_first": torch.full((9, 9), 128.0),
        "corr.embedding": mlp(torch.full((1, 2, 81), 128.0)),
    }
    with torch.no_grad():
        check_correlation(case, tensors)


def grid_of(name: str, case: Case) -> Tensor:
    """The grid that a tensor's name and the notes of its case describe."""
    match = re.fullmatch(r"grid\.(\d+)x\1_(?:HxW|local(\d+))", name)
    assert match, name
    if match[2] is None:
        return point_grid(int(match[1]), (8 * case["H"], 8 * case["W"]))
    centre = re.search(r"centre \(y=([\d.]+),x=([\d.]+)\)", case["notes"])
    assert centre, case["notes"]
    extent = (float(match[2]), float(match[2]))
    return point_grid(int(match[1]), extent, (float(centre[1]), float(centre[2])))


# --- losses --------------------------------------------------------------------------------------


def to_logits(probabilities: Tensor) -> Tensor:
    """The logits whose cross-entropy is torch's of the probabilities, saturated ones included.

    torch's takes log(0) for -100, as if the logit were at most 100 in size.
    """
    return torch.logit(probabilities.double()).clamp(-100, 100).float()


def check_losses(case: Case, tensors: Tensors) -> None:
    windows = [
        [
            Estimate(
                tensors[f"pred.coords.w{w}.i{i}"],
                to_logits(tensors[f"pred.vis.w{w}.i{i}"]),
                to_logits(tensors[f"pred.conf.w{w}.i{i}"]),
            )
            for i in range(case["iterations"])
        ]
        for w in range(case["windows"])
    ]
    targets = [
        Targets(tensors[f"gt.tracks.w{w}"], tensors[f"gt.vis.w{w}"], tensors[f"gt.valid.w{w}"])
        for w in range(case["windows"])
    ]
    gamma, delta = case["gamma"], case["huber_delta"]
    radius = case["confidence_threshold_px"]
    huber = position_error(windows[0][0].tracks_xy, targets[0].tracks_xy, delta)
    assert_relative(huber, tensors[f"huber_delta{delta:g}.w0.i0"])

    def position(mask: Callable[[Targets], Tensor], huber_delta: float | None) -> float:
        masks = [target.valid * mask(target) for target in targets]
        sums = torch.stack([mask.sum() for mask in masks])
        return position_loss(windows, targets, masks, sums, gamma, huber_delta).item()

    def everything(target: Targets) -> Tensor:
        return torch.ones_like(target.visible)

    def visible(target: Targets) -> Tensor:
        return target.visible

    def invisible(target: Targets) -> Tensor:
        return 1 - target.visible

    entries = counts(targets)["entries"]
    batch = len(targets[0].valid)
    confidence = [
        confidence_loss(
            [[Estimate(*(x[b : b + 1] for x in estimate)) for estimate in w] for w in windows],
            [Targets(*(x[b : b + 1] for x in target)) for target in targets],
            entries / batch,
            radius,
        ).item()
        for b in range(batch)
    ]
    settings = loss_settings(
        {"gamma": gamma, "huber_visible": True, "huber_delta": delta, "huber_invisible": False},
        {"flow": 0.05, "flow_invisible": 0.01, "visibility": 1.0, "confidence": 1.0},
        radius,
    )
    terms = losses(windows, targets, counts(targets), settings)
    actual = {
        "sequence_loss_l1_all": position(everything, None),
        "sequence_loss_l1_visible": position(visible, None),
        "sequence_loss_huber_visible": position(visible, delta),
        "sequence_loss_l1_invisible": position(invisible, None),
        "sequence_loss_huber_invisible": position(invisible, delta),
        "sequence_bce_visibility": visibility_loss(windows, targets, entries).item(),
        "sequence_prob_confidence_per_batch": confidence,
        "total_training_loss": sum(terms.values()).item(),
    }
    assert actual == {name: pytest.approx(x, rel=1e-5) for name, x in case["outputs"].items()}


def loss_settings(given: Case, weights: dict[str, float], radius: float) -> LossSettings:
    return LossSettings(
        visible_weight=weights["flow"],
        invisible_weight=weights["flow_invisible"],
        visibility_weight=weights["visibility"],
        confidence_weight=weights["confidence"],
        gamma=given["gamma"],
        huber_delta=given["huber_delta"],
        huber_visible=given["huber_visible"],
        huber_invisible=given["huber_invisible"],
        confidence_radius=radius,
    )


def check_training(case: Case, tensors: Tensors) -> None:
    model = build_model(case).train()
    train_data = model(tensors["video"].float(), tensors["queries"], **case["call"]).train_data
    truth = (
        tensors["trajectory"],
        tensors["visibility"],
        tensors["valid"] * train_data.valid_mask,
    )
    spans = [slice(None)]
    if case["model"] == "online":
        spans = sliding_windows(truth[0].shape[1], case["model_kwargs"]["window_len"])
    targets = [Targets(*(part[:, span] for part in truth)) for span in spans]
    given = case["loss_settings"]
    settings = loss_settings(given, given["weights"], given.get("confidence_threshold_px", 12.0))
    terms = losses(train_data.windows, targets, counts(targets), settings)
    total = sum(terms.values())
    total.backward()

    assert {name: term.item() for name, term in terms.items()} == {
        name: pytest.approx(x, rel=1e-5) for name, x in case["losses"].items()
    }
    assert total.item() == pytest.approx(case["total_loss"], rel=1e-5)
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    missing = [name for name, gradient in gradients.items() if gradient is None]
    assert missing == case["params_without_grad"]
    norms = {name: gradients[name].norm().item() for name in case["grad_norms"]}
    assert norms == {name: pytest.approx(x, rel=1e-3) for name, x in case["grad_norms"].items()}
    norm = torch.nn.utils.get_total_norm([g for g in gradients.values() if g is not None])
    assert norm.item() == pytest.approx(case["total_grad_norm"], rel=1e-3)


# --- metrics -------------------------------------------------------------------------------------


def check_metrics(case: Case, tensors: Tensors) -> None:
    names = ("query_points_tyx", "gt_occluded", "gt_tracks_xy", "pred_occluded", "pred_tracks_xy")
    videos = [
        tapvid_metrics(*(tensors[name][v].numpy() for name in names), case["query_mode"])
        for v in range(len(tensors["gt_occluded"]))
    ]
    means = {name: sum(video[name] for video in videos) / len(videos) for name in videos[0]}
    expected = case["outputs"]
    assert means == {name: pytest.approx(x, abs=1e-9, nan_ok=True) for name, x in expected.items()}


CHECKS: dict[str, Callable[[Case, Tensors], None]] = {
    "forward": check_forward,
    "pieces": check_pieces,
    "losses": check_losses,
    "training_loss_and_gradients": check_training,
    "tapvid_metrics": check_metrics,
    "augmentations": check_augmentations,
    "online_streaming": check_streaming,
    "evaluation_predictor": check_predictor,
}
