"""Models of the H-JEPA and I-JEPA cases, filled by the rule, and masks of a case as a layout."""

from typing import Any

import numpy as np
import torch
from fill_rule import values
from torch import Tensor, nn

from overt.nn.vit import VisionTransformer, pack_patches
from overt.recipes.hjepa.levels import SequencePooling, grid_cells
from overt.recipes.hjepa.model import HJEPA, Layout
from overt.recipes.hjepa.model_config import ENCODERS
from overt.recipes.hjepa.predictor import Predictor, ReferencePredictor, pack_predictions

Case = dict[str, Any]
Tensors = dict[str, Tensor]

TENSORS = 1e-5
LOSSES = 1e-5
GRADIENTS = 1e-4


def assert_relative(found: Tensor, expected: Tensor, tolerance: float = TENSORS) -> None:
    """max |a - b| / max |b| within the tolerance."""
    assert found.shape == expected.shape
    error = (found.detach().double() - expected.double()).abs().max() / expected.abs().max()
    assert error <= tolerance, f"relative error {error:.2e}"


@torch.no_grad()
def fill_with_prefix(module: nn.Module, prefix: str) -> None:
    """Fill what is trained under `prefix` + its key; position tables stay sines."""
    for key, parameter in module.named_parameters():
        if not key.endswith("pos_embed"):
            parameter.copy_(torch.from_numpy(values(prefix + key, tuple(parameter.shape))))


def lists(masks: list[Tensor]) -> list[list[np.ndarray]]:
    """Index tensors (B, K), one per mask, as lists of arrays per image."""
    return [[row.numpy() for row in mask] for mask in masks]


def ijepa_model(case: Case) -> HJEPA:
    """Encoder, target and predictor with the sizes of a case; not yet filled."""
    sizes, predictor = dict(case["encoder_kwargs"]), dict(case["predictor_kwargs"])
    encoder = VisionTransformer(
        (sizes["img_size"], sizes["img_size"]),
        sizes["patch_size"],
        sizes["embed_dim"],
        sizes["depth"],
        sizes["num_heads"],
        mlp_ratio=sizes.get("mlp_ratio", 4.0),
        norm_eps=sizes.get("norm_eps", 1e-6),
        class_token=False,
        positions="sincos",
    )
    narrow = Predictor(
        encoder.grid,
        sizes["embed_dim"],
        predictor["predictor_embed_dim"],
        predictor["depth"],
        predictor["num_heads"],
        mlp_ratio=predictor.get("mlp_ratio", 4.0),
        norm_eps=predictor.get("norm_eps", 1e-6),
    )
    return HJEPA(encoder, narrow, num_hierarchies=1, projection="none")


def ijepa_layout(model: HJEPA, contexts: list[Tensor], targets: list[Tensor]) -> Layout:
    """The layout of index lists (B, K), one tensor per context and per target."""
    grid = model.context_encoder.vit.grid
    patches, batch = grid[0] * grid[1], len(contexts[0])
    kept = [row for mask in lists(contexts) for row in mask]
    images = list(range(batch)) * len(contexts)
    prediction = pack_predictions([len(row) for row in kept], lists(targets), patches)
    length = targets[0].shape[1]
    sequences = np.repeat(np.arange(len(kept) * len(targets)), length)
    return Layout(
        visible=pack_patches(kept, images, batch, patches, class_token=False),
        hidden=None,
        prediction=prediction,
        pooling=grid_cells(prediction.positions.numpy(), sequences, grid, 1),
    )


def hierarchy_model(case: Case) -> HJEPA:
    """The whole model of a hierarchy case, filled."""
    options = case["model_kwargs"]
    _, name, patch, _ = options["encoder_type"].split("_")
    sizes = ENCODERS[name]
    width, side = options["embed_dim"], options["img_size"]
    assert width == sizes.width
    encoder = VisionTransformer(
        (side, side), int(patch.removeprefix("patch")), width, sizes.depth, sizes.heads
    )
    predictor = ReferencePredictor(
        width,
        options["predictor_depth"],
        options["predictor_num_heads"],
        options.get("predictor_mlp_ratio", 4.0),
    )
    fpn = (options.get("fpn_feature_dim") or width) if options.get("use_fpn") else None
    return HJEPA(
        encoder,
        predictor,
        num_hierarchies=options["num_hierarchies"],
        pooling="sequence",
        projection="shared",
        projection_norm=options.get("projection_norm", "layernorm"),
        normalize_targets=False,
        fpn_feature_dim=fpn,
        fpn_fusion_method=options.get("fpn_fusion_method", "add"),
    )


def hierarchy_layout(model: HJEPA, mask: Tensor) -> Layout:
    """The reference's layout: all patches stay, hidden ones are zero, short lists are padded."""
    batch, patches = mask.shape
    longest = int(mask.sum(1).max())
    hidden = [np.flatnonzero(row.numpy()) for row in mask]
    padded = [np.pad(places, (0, longest - len(places))) for places in hidden]
    valid = torch.tensor([[place < len(row) for place in range(longest)] for row in hidden])
    everything = [np.arange(patches)] * batch
    return Layout(
        visible=pack_patches(everything, list(range(batch)), batch, patches, class_token=True),
        hidden=mask,
        prediction=pack_predictions([patches] * batch, [padded], patches),
        pooling=SequencePooling(valid),
    )
