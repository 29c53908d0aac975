"""LBM against the recorded cases of the published implementation, float32 on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from cases import find_cases, load_case, run_case
from fill_rule import fill
from torch import Tensor

from overt.nn.deformable import DeformableAttention
from overt.ops.deformable.api import deformable
from overt.ops.deformable.plain import sampling_locations
from overt.ops.dispatch import HAS_TRITON
from overt.recipes.lbm.config import RECOMPUTE, LossSettings
from overt.recipes.lbm.layer import Found
from overt.recipes.lbm.loss import (
    Targets,
    cell_entropy,
    classification,
    counts,
    losses,
    regression,
    true_cells,
    uncertainty,
    visibility,
)
from overt.recipes.lbm.model import LBM
from overt.recipes.lbm.online import OnlineTracker
from overt.recipes.lbm.transformer import Transformer

Case = dict[str, Any]
Tensors = dict[str, Tensor]

ACTIVATION, LOSS, GRADIENT = 1e-4, 1e-5, 1e-3
WEIGHTS = {"cls": 3.0, "vis": 1.0, "reg": 1.0, "unc": 1.0, "ref": 1.0}


@pytest.mark.parametrize("path", find_cases("lbm"))
def test_case(path: Path) -> None:
    run_case(path, CHECKS)


def assert_relative(actual: Tensor, expected: Tensor, tolerance: float = ACTIVATION) -> None:
    """Within a part of the tensor's largest entry."""
    bound = tolerance * expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, atol=bound, rtol=0)


def build_model(case: Case, **options: Any) -> LBM:
    sizes = dict(case["model"])
    assert sizes.pop("stride", 4) == 4
    sizes["input_size"] = tuple(sizes["input_size"])
    model = LBM(
        **sizes,
        random_memory_mask_drop=0.0,
        visible_threshold=case["visibility_threshold"],
        **options,
    )
    fill(model)
    return model.eval()


# --- deformable attention ------------------------------------------------------------------------


def build_attention(case: Case, device: str) -> DeformableAttention:
    sizes = case["module"]
    attention = DeformableAttention(
        sizes["embed_dims"], sizes["num_heads"], sizes["num_levels"], sizes["num_points"]
    )
    fill(attention)
    with torch.no_grad():
        attention.sampling_offsets.bias *= 20
    return attention.eval().to(device)


def check_attention(case: Case, tensors: Tensors, device: str = "cpu") -> None:
    attention = build_attention(case, device)
    sizes = [(height, width) for height, width in case["spatial_shapes"]]
    names = ("query", "value", "reference_points")
    query, tokens, reference = (tensors[name].requires_grad_() for name in names)
    offsets, logits = attention.offsets_and_logits(query)
    assert_relative(sampling_locations(reference, offsets, sizes), tensors["sampling_locations"])
    weights = logits.flatten(3).softmax(-1).view_as(logits)
    assert_relative(weights, tensors["attention_weights"])
    read = deformable(attention.project(tokens), reference, offsets, logits, sizes)
    assert_relative(read.flatten(2), tensors["core_output"])

    output = attention(query, attention.project(tokens), reference, sizes)
    assert_relative(output, tensors["output"])
    output.backward(tensors["grad_output"])
    assert_relative(query.grad, tensors["grad_query"])
    (last,) = (name for name in tensors if name.startswith("grad_value_level"))
    height, width = sizes[-1]
    assert_relative(tokens.grad[:, -height * width :], tensors[last])
    assert_relative(reference.grad, tensors["grad_reference_points"])
    norms = {name: value.grad.norm().item() for name, value in attention.named_parameters()}
    assert norms == {
        name: pytest.approx(norm, rel=GRADIENT) for name, norm in case["grad_norms"].items()
    }


ATTENTION = "multi-scale deformable attention"


@pytest.mark.gpu
@pytest.mark.skipif(
    not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and Triton"
)
@pytest.mark.parametrize("path", find_cases("lbm"))
def test_attention_case_with_the_kernel(path: Path) -> None:
    case, tensors = load_case(path)
    if case["kind"] != ATTENTION:
        pytest.skip("not a case of the attention")
    # Only the kernels differ: the projections around them stay in float32.
    torch.backends.cuda.matmul.allow_tf32 = False
    check_attention(case, {name: tensor.cuda() for name, tensor in tensors.items()}, "cuda")


# --- losses --------------------------------------------------------------------------------------


def loss_settings(case: Case) -> LossSettings:
    weights = case.get("lambda", WEIGHTS)
    return LossSettings(
        classification_weight=weights["cls"],
        visibility_weight=weights["vis"],
        regression_weight=weights["reg"],
        uncertainty_weight=weights["unc"],
        candidates_weight=weights["ref"],
        after_query=case.get("loss_after_query", True),
    )


def make_targets(case: Case, tracks_xy: Tensor, visible: Tensor, query_frames: Tensor) -> Targets:
    frames = torch.arange(visible.shape[1])[:, None]
    supervised = frames > query_frames[:, None]
    if not case.get("loss_after_query", True):
        supervised = torch.ones_like(supervised)
    return Targets(tracks_xy, visible, supervised)


def check_losses(case: Case, tensors: Tensors) -> None:
    size = tuple(case["size"])
    targets = make_targets(case, tensors["tracks"], tensors["visibility"], tensors["query_times"])
    assert torch.equal(targets.supervised.float(), tensors["mask_time"])
    assert torch.equal(targets.located.float(), tensors["mask_point"])
    cells = true_cells(targets.tracks_xy, size)
    assert torch.equal(cells, tensors["gt_index"])
    names = ("corr", "offset", "vis_logit", "rho_logit")
    corr, offset, vis_logit, rho_logit = (tensors[name].requires_grad_() for name in names)
    points_xy = tensors["reference_points"] + offset
    total, weights = counts(targets), case["lambda"]
    entropy = cell_entropy(corr, cells, case["temperature"]).unsqueeze(0)
    found = {
        "classification": weights["cls"] * classification(entropy, targets) / total["located"],
        "visibility": weights["vis"] * visibility(vis_logit, targets) / total["supervised"],
        "regression": weights["reg"] * regression(points_xy, targets) / total["located"],
        "uncertainty": weights["unc"]
        * uncertainty(points_xy, rho_logit, targets)
        / total["supervised"],
    }
    for name, value in found.items():
        assert value.item() == pytest.approx(tensors[f"loss.{name}"].item(), rel=LOSS)
        assert value.item() == pytest.approx(case["values_float64"][name], rel=LOSS)
    torch.stack(list(found.values())).sum().backward()
    assert_relative(corr.grad.norm(dim=-1), tensors["grad_corr_norm_per_query"])
    assert_relative(offset.grad, tensors["grad_offset"])
    assert_relative(vis_logit.grad, tensors["grad_vis_logit"])
    assert_relative(rho_logit.grad, tensors["grad_rho_logit"])


# --- training ------------------------------------------------------------------------------------


TRAINING = "training forward"


def check_training(case: Case, tensors: Tensors, recompute: str = "auto") -> None:
    model = build_model(case, recompute=recompute)
    trains = case["mode"].startswith("train")
    model.train(trains)
    watched = Watch(model)
    video, queries = tensors["video"], tensors["queries"]
    size = (video.shape[-2], video.shape[-1])
    tracks = model.to_model_pixels(tensors["tracks"], size)
    targets = make_targets(case, tracks, tensors["visibility"], queries[..., 0].floor())
    with torch.set_grad_enabled(trains):
        prediction = model(video, queries, true_cells(tracks, model.input_size))
        terms = losses(prediction, targets, counts(targets), loss_settings(case))
    watched.compare(tensors, len(model.transformer.layers))

    assert_relative(model.to_video_pixels(prediction.points_xy, size), tensors["points"])
    assert torch.equal(model.is_visible(prediction.visibility), tensors["visible"])
    assert_relative(prediction.visibility, tensors["vis_logit"])
    assert_relative(prediction.rho, tensors["rho_logit"])
    for number, (places, rho) in enumerate(
        zip(prediction.candidates_xy, prediction.candidates_rho, strict=True)
    ):
        # The order among the best cells may differ by rounding.
        wanted = tensors[f"reference_points.{number}"]
        order, wanted_order = by_place(places), by_place(wanted)
        pair = order.unsqueeze(-1).expand_as(places), wanted_order.unsqueeze(-1).expand_as(wanted)
        assert_relative(places.gather(3, pair[0]), wanted.gather(3, pair[1]))
        wanted_rho = tensors[f"reference_rho.{number}"].gather(3, wanted_order)
        assert_relative(rho.gather(3, order), wanted_rho)

    names = {"uncertainty_topk": "out.uncertainty_loss_topk"}
    for name, term in terms.items():
        wanted_term = tensors[names.get(name, f"out.{name}_loss")].item()
        assert term.item() == pytest.approx(wanted_term, rel=LOSS), name
    total = torch.stack(list(terms.values())).sum()
    assert total.item() == pytest.approx(tensors["loss"].item(), rel=LOSS)
    if trains:
        check_gradients(case, tensors, model, total)


# That these agree at a small size, tests/recipes/lbm/test_model.py shows every time.
@pytest.mark.long
@pytest.mark.parametrize("recompute", sorted({*RECOMPUTE} - {"auto"}))
@pytest.mark.parametrize("path", find_cases("lbm"))
def test_training_case_with_recomputing(path: Path, recompute: str) -> None:
    case, tensors = load_case(path)
    if case["kind"] != TRAINING:
        pytest.skip("not a case of training")
    check_training(case, tensors, recompute)


def check_gradients(case: Case, tensors: Tensors, model: LBM, total: Tensor) -> None:
    total.backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    # What the published code skips is masked here: no gradient there may be zeros here.
    missing = {name for name, gradient in gradients.items() if gradient is None}
    zero = {name for name in gradients if name not in missing and not gradients[name].any()}
    assert missing <= set(case["params_without_grad"]) <= missing | zero
    norms = {name: gradients[name].norm().item() for name in case["grad_norms"]}
    assert norms == {
        name: pytest.approx(norm, rel=GRADIENT) for name, norm in case["grad_norms"].items()
    }
    known = [gradient for gradient in gradients.values() if gradient is not None]
    norm = torch.nn.utils.get_total_norm(known).item()
    assert norm == pytest.approx(case["grad_norm_total"], rel=GRADIENT)
    # Also after the backward pass, in which stages may have been run again.
    stem, fusion = model.backbone.layer1[1], model.backbone.fusion[1]
    assert_relative(stem.running_mean, tensors["bn_running_mean_after"])
    assert_relative(fusion.running_var, tensors["bn_running_var_after"])
    assert int(stem.num_batches_tracked) == 1


def by_place(points_xy: Tensor) -> Tensor:
    """The order (y, x) of the candidates (B, T, N, K, 2), whole numbers of pixels."""
    return (points_xy[..., 1] * 1e4 + points_xy[..., 0]).argsort(dim=-1)


class Watch:
    """Keeps what passes through the model in its first forward pass."""

    def __init__(self, model: LBM) -> None:
        self.layers: list[list[Found]] = [[] for _ in model.transformer.layers]
        self.steps: list[Any] = []
        self.queries: list[Tensor] = []
        self.features: list[Tensor] = []
        self.temperature = model.transformer.temperature
        for number, layer in enumerate(model.transformer.layers):
            layer.register_forward_hook(lambda _, x, y, n=number: self.layers[n].append(y))
        model.transformer.register_forward_hook(self.note_step)
        model.backbone.register_forward_hook(lambda _, x, y: self.features.append(y))

    def note_step(self, module: Transformer, inputs: Any, output: Any) -> None:
        self.queries.append(inputs[0])
        self.steps.append(output)

    def compare(self, tensors: Tensors, layers: int) -> None:
        batch, frames = tensors["video"].shape[:2]
        clip = self.features[0].unflatten(0, (batch, frames)).detach()
        tokens = clip[:, 1].flatten(1, 2)
        wanted = tensors["tokens_frame1_first64"]
        assert_relative(tokens[:, : wanted.shape[1]], wanted)
        assert_relative(self.queries[0].detach(), tensors["q_init"])
        steps = self.steps[:frames]
        offset = torch.stack([step[0].offset for step in steps], dim=1)
        assert_relative(offset.detach(), tensors["offset"])
        _, collision, stream, _ = steps[-1]
        assert_relative(collision.detach(), tensors["memory_collision_last"])
        assert_relative(stream.detach(), tensors["memory_stream_last"])
        for number in range(layers):
            found = [one.correlation.detach() for one in self.layers[number][:frames]]
            assert_relative(found[-1][:, 0], tensors[f"corr_query0_last.{number}"])
            sums = torch.stack(found, dim=1).div(self.temperature).logsumexp(-1)
            assert_relative(sums, tensors[f"corr_lse.{number}"])


# --- online --------------------------------------------------------------------------------------


def check_online(case: Case, tensors: Tensors) -> None:
    model = build_model(case)
    memory_size = case["memory_size_at_inference"]
    if "collision_time_emb_layer0" in tensors:
        rows = model.transformer.layers[0].time_embedding("collision", memory_size)
        assert_relative(rows.detach()[None], tensors["collision_time_emb_layer0"])
    video = tensors["video"]
    logits: list[Tensor] = []
    model.transformer.register_forward_hook(lambda _, x, y: logits.append(y[0].visibility))
    tracker = OnlineTracker(
        model, (video.shape[-2], video.shape[-1]), slots=len(tensors["query_points"]),
        memory_size=memory_size,
    )  # fmt: skip
    tracker.observe(video[0])
    # The published tracker takes any points; ours refuses those outside the frame.
    with patch("overt.recipes.lbm.online.refuse_points_outside"):
        tracker.add(tensors["query_points"])
    assert_relative(tracker.query, tensors["query"])
    found = [tracker.advance(), *(tracker.step(frame) for frame in video[1:])]
    assert_relative(torch.stack([one.points_xy for one in found]), tensors["coords"])
    assert torch.equal(torch.stack([one.visible for one in found]), tensors["visible"])
    assert_relative(torch.stack([one.rho for one in found]), tensors["rho"])
    assert_relative(torch.cat(logits), tensors["vis_logit"])
    collision, stream, ignore = tracker.memory
    assert_relative(collision[0, :, -2:], tensors["collision_dist_last"])
    assert_relative(stream[0, :, -2:], tensors["stream_dist_last"])
    assert torch.equal(ignore[0], tensors["mem_mask_last"] | tensors["vis_mask_last"])


CHECKS: dict[str, Callable[[Case, Tensors], None]] = {
    ATTENTION: check_attention,
    "losses": check_losses,
    TRAINING: check_training,
    "online": check_online,
}
