"""H-JEPA and I-JEPA against the recorded values of the published implementations."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import find_cases, run_case
from check_jepa_masks import check_masks
from fill_rule import fill
from jepa_cases import (
    GRADIENTS,
    LOSSES,
    Case,
    Tensors,
    assert_relative,
    fill_with_prefix,
    hierarchy_layout,
    hierarchy_model,
    ijepa_layout,
    ijepa_model,
)
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from overt import schedule
from overt.config.schema import OptimizerSection
from overt.engine.optimizer import build_optimizer, set_learning_rate
from overt.metrics.collapse import TOKEN_NAMES, reference_metrics, token_statistics
from overt.nn.ema import update_ema
from overt.nn.vit import VisionTransformer
from overt.recipes.hjepa.encoder_recipe import parameter_groups
from overt.recipes.hjepa.loss import contrastive, level_losses, sigreg, sigreg_by_points, spread
from overt.schedule import CosineScheduler, EMAScheduler, HierarchicalScheduler

EXACT = 1e-12


@pytest.mark.parametrize("path", find_cases("hjepa"))
def test_case(path: Path) -> None:
    run_case(path, CHECKS)


# --- encoder -------------------------------------------------------------------------------------


def check_encoder(case: Case, tensors: Tensors) -> None:
    side = case["img_size"]
    vit = VisionTransformer(
        (side, side),
        case["patch_size"],
        case["embed_dim"],
        case["depth"],
        case["num_heads"],
        mlp_ratio=case["mlp_ratio"],
        norm_eps=case["norm_eps"],
    )
    fill(vit)
    assert {key for key in case["state_dict_keys_sample"] if "..." not in key} <= set(
        vit.state_dict()
    )
    blocks: dict[str, Tensor] = {}
    for number, block in enumerate(vit.blocks):
        block.register_forward_hook(
            lambda _, x, y, number=number: blocks.update({f"full.block{number}": y})
        )
    with torch.no_grad():
        found = {"full.out": vit(tensors["images"])}
        found |= blocks
        found["full.patch_embed"] = vit.patch_embed(tensors["images"])
        found["zeroed.out"] = vit(tensors["images"], hidden=tensors["mask"])
        found["dropped.out"] = vit(tensors["images"], keep=tensors["keep"])
    for name in tensors.keys() - {"images", "mask", "keep"}:
        assert_relative(found[name], tensors[name])


# --- hierarchy -----------------------------------------------------------------------------------


def check_hierarchy(case: Case, tensors: Tensors) -> None:
    model = hierarchy_model(case)
    assert {f"predictor.{key}" for key in case["predictor_keys"]} <= set(model.state_dict())
    fill(model).eval()
    layout = hierarchy_layout(model, tensors["mask"])
    predicted: list[Tensor] = []
    model.predictor.register_forward_hook(lambda _, x, y: predicted.append(y))
    output = model(tensors["images"], layout)

    with torch.no_grad():
        context = model.context_encoder.vit(tensors["images"], hidden=tensors["mask"])
        assert model.target_encoder is not None
        assert_relative(context, tensors["context_features"])
        assert_relative(model.target_encoder.vit(tensors["images"]), tensors["target_features"])
        batch, length = tensors["mask_indices"].shape
        places = layout.prediction.positions.view(batch, length)
        assert torch.equal(places, tensors["mask_indices"])
        assert_relative(predicted[0].view(batch, length, -1), tensors["predictor_out"])
        for level in range(model.num_hierarchies):
            assert_relative(output.predictions[level], tensors[f"pred.{level}"])
            assert_relative(output.targets[level], tensors[f"target.{level}"])
            assert torch.equal(output.valid[level], tensors[f"valid.{level}"])
            features = model.extract_features(tensors["images"], level)
            assert_relative(features, tensors[f"extract.{level}"])

    for spec in case["losses"].values():
        # The reference's masked mean divides by tokens, ours by tokens and features.
        masked = spec.get("use_masks", False)
        valid = output.valid if masked else [torch.ones_like(one) for one in output.valid]
        levels = level_losses(
            output.predictions,
            [target.detach() for target in output.targets],
            valid,
            torch.stack([one.sum() for one in valid]),
            spec["loss_type"],
            spec.get("huber_delta", 1.0),
            spec["normalize_embeddings"],
        )
        width = output.predictions[0].shape[-1] if masked else 1
        expected = spec["values_float64"]
        check_levels([loss * width for loss in levels], spec["hierarchy_weights"], expected)
        total = sum(
            loss * weight * width
            for loss, weight in zip(levels, spec["hierarchy_weights"], strict=True)
        )
        model.zero_grad()
        total.backward(retain_graph=True)
        parameters = dict(model.named_parameters())
        for name, norm in expected["grad_norms"].items():
            assert parameters[name].grad.norm().item() == pytest.approx(norm, rel=GRADIENTS)


def check_levels(losses: list[Tensor], weights: list[float], expected: dict[str, Any]) -> None:
    """Level by level, their weighted sum and their mean."""
    for level, loss in enumerate(losses):
        assert loss.item() == pytest.approx(expected[f"loss_h{level}"], rel=LOSSES)
    total = sum(loss.item() * weight for loss, weight in zip(losses, weights, strict=True))
    mean = sum(loss.item() for loss in losses) / len(losses)
    assert mean == pytest.approx(expected["loss_unweighted"], rel=LOSSES)
    assert total == pytest.approx(expected.get("jepa_loss", expected["loss"]), rel=LOSSES)


# --- I-JEPA --------------------------------------------------------------------------------------


def numbered(tensors: Tensors, prefix: str) -> list[Tensor]:
    """`prefix.0`, `prefix.1` and so on."""
    count = sum(name.rpartition(".")[0] == prefix for name in tensors)
    return [tensors[f"{prefix}.{number}"] for number in range(count)]


def smooth_l1(predictions: Tensor, targets: Tensor) -> Tensor:
    valid = torch.ones(len(targets))
    (loss,) = level_losses([predictions], [targets], [valid], valid.sum()[None], "smoothl1")
    return loss


def check_ijepa(case: Case, tensors: Tensors) -> None:
    model = ijepa_model(case)
    vit = model.context_encoder.vit
    assert model.target_encoder is not None
    for name, key in (("pos_embed", vit.pos_embed), ("predictor_pos_embed", None)):
        table = model.predictor.predictor_pos_embed if key is None else key
        assert_relative(table, tensors[name])
    fill_with_prefix(vit, "encoder.")
    fill_with_prefix(model.target_encoder.vit, "target_encoder.")
    fill_with_prefix(model.predictor, "predictor.")
    contexts, targets = numbered(tensors, "masks_enc"), numbered(tensors, "masks_pred")
    layout = ijepa_layout(model, contexts, targets)
    output = model(tensors["images"], layout)

    with torch.no_grad():
        full = model.encode_targets(tensors["images"])
    assert_relative(full.view_as(tensors["target_full"]), tensors["target_full"])
    assert_relative(output.context.view_as(tensors["context"]), tensors["context"])
    assert_relative(output.predictions[0].view_as(tensors["z"]), tensors["z"])
    assert_relative(output.targets[0].view_as(tensors["h"]), tensors["h"])

    loss = smooth_l1(output.predictions[0], output.targets[0])
    assert loss.item() == pytest.approx(case["smooth_l1_loss_float64"], rel=LOSSES)
    loss.backward()
    modules = {"encoder": vit, "predictor": model.predictor}
    found = {
        f"{name}.{key}": parameter.grad.norm().item()
        for name, module in modules.items()
        for key, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    assert found.keys() == case["grad_norms_float64"].keys()
    for name, norm in case["grad_norms_float64"].items():
        assert found[name] == pytest.approx(norm, rel=GRADIENTS)


def check_ijepa_steps(case: Case, tensors: Tensors) -> None:
    model = ijepa_model(case)
    vit, target = model.context_encoder.vit, model.target_encoder
    assert target is not None
    fill_with_prefix(vit, "encoder.")
    fill_with_prefix(target.vit, "encoder.")
    fill_with_prefix(model.predictor, "predictor.")
    options = case["optimization"]
    # An epoch of one step: as a fraction of one epoch the warm-up could lose a step to rounding.
    length = {"epochs": options["total_steps"], "steps_per_epoch": 1}
    rate = CosineScheduler(
        options["lr"],
        options["final_lr"],
        warmup_epochs=options["warmup_steps"],
        start_warmup_value=options["start_lr"],
        first_step=1,
        **length,
    )
    decay = CosineScheduler(options["wd"], options["final_wd"], first_step=1, **length)
    momentum = EMAScheduler(*options["ema"], **length)
    section = OptimizerSection(
        _target_="torch.optim.AdamW",
        lr=options["lr"],
        weight_decay=options["wd"],
        weight_decay_schedule=None,  # set below, also where it starts at 0
        decay_only_matrices=False,
        lr_scaling="none",
        lr_base_batch=None,
        arguments=dict(case["adamw"]),
    )
    optimizer = build_optimizer(section, model, parameter_groups(model, no_decay=()))
    decaying = [group for group in optimizer.param_groups if group["params"][0].ndim >= 2]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    for step, row in enumerate(case["log_float64"]):
        contexts = [tensors[f"masks_enc.{step}"]]
        layout = ijepa_layout(model, contexts, numbered(tensors, f"masks_pred.{step}"))
        output = model(tensors[f"images.{step}"], layout)
        loss = smooth_l1(output.predictions[0], output.targets[0])
        optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(parameters, options.get("clip_grad", math.inf))
        assert set_learning_rate(optimizer, rate, step) == pytest.approx(row["lr"], rel=EXACT)
        for group in decaying:
            group["weight_decay"] = decay(step)
        optimizer.step()
        update_ema(target, model.context_encoder, momentum(step))

        assert loss.item() == pytest.approx(row["loss"], rel=1e-4)
        assert decay(step) == pytest.approx(row["wd"], rel=EXACT)
        assert momentum(step) == pytest.approx(row["momentum"], rel=EXACT)
        if row["grad_norm_before_clip"] is not None:
            assert norm.item() == pytest.approx(row["grad_norm_before_clip"], rel=1e-4)
        # The norms move by 1e-5 a step: closer than the tolerance, so that a missed update shows.
        assert norm_of(vit) == pytest.approx(row["encoder_norm"], rel=1e-6)
        assert norm_of(model.predictor) == pytest.approx(row["predictor_norm"], rel=1e-6)
        assert norm_of(target.vit) == pytest.approx(row["target_norm"], rel=1e-7)

    with torch.no_grad():
        features = target.vit(tensors["images.0"])
    assert_relative(features, tensors["final_target_features_of_images0"], 1e-4)
    modules = {"encoder": vit, "target": target.vit, "predictor": model.predictor}
    for key in tensors:
        owner, _, name = key.partition(".")
        if owner in modules:
            assert_relative(modules[owner].get_parameter(name), tensors[key], 1e-4)


def norm_of(module: nn.Module) -> float:
    """One norm over all parameters but the position tables."""
    squares = [
        parameter.detach().double().square().sum()
        for name, parameter in module.named_parameters()
        if not name.endswith("pos_embed")
    ]
    return math.sqrt(torch.stack(squares).sum().item())


# --- losses and collapse -------------------------------------------------------------------------


def check_losses(case: Case, tensors: Tensors) -> None:
    expected = dict(case["values_float64"])
    levels = range(case["levels"])
    predictions = [tensors[f"pred.{level}"] for level in levels]
    targets = [tensors[f"target.{level}"] for level in levels]
    weights = [0.5**level for level in levels]

    def distances(kind: str, normalize: bool, masked: bool) -> list[Tensor]:
        valid = [tensors[f"valid.{level}"] for level in levels]
        valid = valid if masked else [torch.ones_like(one) for one in valid]
        counts = torch.stack([one.sum() for one in valid])
        found = level_losses(predictions, targets, valid, counts, kind, 0.7, normalize)
        return [loss * (case["D"] if masked else 1) for loss in found]

    for name in [name for name in expected if name.startswith("hjepa.")]:
        _, kind, norm, *rest = name.split(".")
        found = distances(kind, norm == "norm1", rest == ["masked"])
        check_levels(found, weights, expected.pop(name))

    one, other = predictions[0], targets[0]
    check_numbers(vicreg(one, other, 1e-4), expected.pop("vicreg"))
    check_numbers(vicreg(one[:, 0], other[:, 0], 1e-4), expected.pop("vicreg.2d"))

    half = case["B"] // 2
    base = distances("smoothl1", normalize=True, masked=False)
    context = expected.pop("combined.context")
    check_levels(base, weights, context)
    whole = tensors["context_features"]
    found = vicreg(whole[:half], whole[half:], 1e-8)
    terms = ("invariance", "variance", "covariance")
    for term in terms:
        assert found[f"{term}_loss"] == pytest.approx(context[f"vicreg_{term}"], rel=LOSSES)
    assert found["loss"] == pytest.approx(context["vicreg_encoder"], rel=LOSSES)
    assert 0.1 * found["loss"] == pytest.approx(context["vicreg_loss"], rel=LOSSES)
    assert context["jepa_loss"] + 0.1 * found["loss"] == pytest.approx(context["loss"], rel=LOSSES)

    per_level = expected.pop("combined.per_level")
    check_levels(base, weights, per_level)
    total = 0.0
    for level in levels:
        found = vicreg(predictions[level][:half], predictions[level][half:], 1e-8)
        assert found["loss"] == pytest.approx(per_level[f"vicreg_h{level}"], rel=LOSSES)
        for term in terms:
            recorded = per_level[f"vicreg_{term}_h{level}"]
            assert found[f"{term}_loss"] == pytest.approx(recorded, rel=LOSSES)
        total += 0.1 * found["loss"]
    assert total == pytest.approx(per_level["vicreg_loss"], rel=LOSSES)
    assert per_level["jepa_loss"] + total == pytest.approx(per_level["loss"], rel=LOSSES)

    views = {"a": one[:, :4].flatten(0, 1), "b": other[:, :4].flatten(0, 1)}
    invariance = (views["a"] - views["b"]).square().mean().item()
    for name, test in (("char_function", sigreg), ("reference_points", sigreg_by_points)):
        found = {
            f"sigreg_loss_{view}": test(rows, tensors["slices"], standardize=True).item()
            for view, rows in views.items()
        }
        found["sigreg_loss"] = sum(found.values()) / 2
        found["invariance_loss"] = invariance
        found["loss"] = 25 * invariance + 25 * found["sigreg_loss"]
        check_numbers(found, expected.pop(f"sigreg.{name}"))

    found = {name: value.item() for name, value in contrastive(one[:, 0], other[:, 0]).items()}
    check_numbers(found, expected.pop("ntxent"))
    assert not expected


def vicreg(one: Tensor, other: Tensor, eps: float) -> dict[str, float]:
    """The whole of VICReg for two views, from our terms."""
    found = {"invariance_loss": (one - other).square().mean().item()}
    for name, view in (("a", one), ("b", other)):
        variance, covariance = spread(view.flatten(0, -2), eps)
        found |= {
            f"variance_loss_{name}": variance.item(),
            f"covariance_loss_{name}": covariance.item(),
        }
    for term in ("variance", "covariance"):
        found[f"{term}_loss"] = (found[f"{term}_loss_a"] + found[f"{term}_loss_b"]) / 2
    found["loss"] = (
        25 * found["invariance_loss"] + 25 * found["variance_loss"] + found["covariance_loss"]
    )
    return found


def check_numbers(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=LOSSES)


def check_collapse(case: Case, tensors: Tensors) -> None:
    for name, recorded in case["cases"].items():
        context, target = tensors[f"{name}.context"], tensors[f"{name}.target"]
        found = reference_metrics(context, target)
        reference = recorded["reference_float64"]
        assert found == pytest.approx(reference, rel=1e-6, abs=1e-12, nan_ok=True)
        rows = context.flatten(0, -2)
        tokens = dict(zip(TOKEN_NAMES, token_statistics(rows).tolist(), strict=True))
        expected = recorded["token_level_context_float64"]
        names = ("token_std_per_dim_mean", "token_norm_mean", "token_centred_eff_rank")
        for own, theirs in zip(("std", "norm", "rank"), names, strict=True):
            assert tokens[own] == pytest.approx(expected[theirs], rel=1e-6, abs=1e-12)


# --- schedules -----------------------------------------------------------------------------------


def check_schedulers(case: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    built = []
    for name, spec in case["specs"].items():
        scheduler = getattr(schedule, spec["class"])(**spec["kwargs"])
        built.append(scheduler)
        # Beyond the end the originals rise again or fall below; ours keep the final value.
        compare(scheduler, tensors[name][: scheduler.total_steps + 1])
        if f"{name}.epoch" in tensors:
            compare(scheduler.get_epoch_value, tensors[f"{name}.epoch"])

    levels = HierarchicalScheduler(built)
    expected = tensors["hierarchical"]  # (steps, levels)
    assert levels.num_levels == expected.shape[1]
    for level, scheduler in enumerate(built):
        column = expected[: scheduler.total_steps + 1, level]
        compare(lambda step, level=level: levels(step)[level], column)
        compare(lambda step, level=level: levels.get_level_value(step, level), column)

    for name, ijepa in case["ijepa"].items():
        length = {
            "epochs": ijepa["epochs"],
            "steps_per_epoch": ijepa["ipe"],
            "stretch": ijepa["ipe_scale"],
        }
        rate = CosineScheduler(
            ijepa["lr"],
            ijepa["final_lr"],
            warmup_epochs=ijepa["warmup"],
            start_warmup_value=ijepa["start_lr"],
            first_step=1,
            **length,
        )
        decay = CosineScheduler(ijepa["wd"], ijepa["final_wd"], first_step=1, **length)
        momentum = EMAScheduler(*ijepa["ema"], **length)
        compare(rate, tensors[f"{name}.lr"][: rate.total_steps])
        compare(decay, tensors[f"{name}.wd"][: decay.total_steps])
        compare(momentum, tensors[f"{name}.momentum"][: momentum.total_steps + 1])


def compare(scheduler: Any, expected: Tensor) -> None:
    found = [scheduler(step) for step in range(len(expected))]
    assert found == pytest.approx(expected.tolist(), abs=EXACT, rel=0)


CHECKS: dict[str, Callable[[Case, Tensors], None]] = {
    "encoder": check_encoder,
    "hierarchy": check_hierarchy,
    "ijepa": check_ijepa,
    "ijepa_steps": check_ijepa_steps,
    "losses": check_losses,
    "collapse": check_collapse,
    "mask_statistics": check_masks,
    "schedulers": check_schedulers,
}
