"""H-JEPA: a context encoder, its EMA as target, a predictor, and the levels.

I-JEPA is the same with one level and no projection. Shapes: B images, N patches, D features, K
visible patches and T hidden ones of the batch, packed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.errors import CheckpointError
from overt.nn.vit import PackedPatches, VisionTransformer, initialize
from overt.recipes.hjepa.encoder import (
    CONTEXT,
    TARGET,
    FeatureModel,
    fit_encoder,
    keys_of_encoder,
)
from overt.recipes.hjepa.levels import Pooling, SequencePooling, dense_cells, to_device
from overt.recipes.hjepa.predictor import Prediction, Predictor, ReferencePredictor

PREDICTOR_TABLE = "predictor.predictor_pos_embed"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Layout:
    """What is visible, what is predicted from it, and how it is pooled; computed on the host."""

    visible: PackedPatches  # the context of each sequence
    hidden: Tensor | None  # (B, N) bool: zero these and keep all tokens, as the reference does
    prediction: Prediction
    pooling: Pooling
    # visible patches, hidden ones and regions of each level above that only fill the batch up
    filling: tuple[int, ...] = ()


@dataclass(frozen=True)
class Output:
    """Predictions and targets of each level, and the features they are computed from."""

    predictions: list[Tensor]  # per level (..., D)
    targets: list[Tensor]
    valid: list[Tensor]  # per level (...) bool, what counts
    context: Tensor  # (K, D) features of the visible patches
    target: Tensor  # (T, D) the target encoder's features of the hidden patches
    summaries: tuple[Tensor, Tensor] | None  # (B, D) of two views of each image
    filling: tuple[int, ...] = ()  # as in the layout: this many rows at the end are not features


class TokenBatchNorm(nn.Module):
    """Batch norm over all tokens of this rank's micro-batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.bn(tokens.flatten(0, -2)).view_as(tokens)  # type: ignore[no-any-return]


class HJEPA(FeatureModel):
    """The whole model: one forward pass from images and their layout to predictions and targets."""

    def __init__(
        self,
        encoder: VisionTransformer,
        predictor: Predictor | ReferencePredictor,
        *,
        num_hierarchies: int,
        pooling: str = "grid",
        projection: str = "predictions",
        projection_norm: str = "layernorm",
        normalize_targets: bool = True,
        fpn_feature_dim: int | None = None,
        fpn_fusion_method: str = "add",
        use_target_encoder: bool = True,
        fan_in: bool = False,
        pixels: nn.Module | None = None,
        monitor: nn.Module | None = None,
    ) -> None:
        super().__init__(encoder, pixels, use_target_encoder)
        assert pooling in ("grid", "sequence"), pooling
        assert projection in ("none", "predictions", "shared"), projection
        width = encoder.norm.weight.numel()
        self.num_hierarchies, self.pooling, self.projection = num_hierarchies, pooling, projection
        self.normalize_targets = normalize_targets
        self.predictor = predictor
        self.monitor = monitor  # not used here: what it remembers belongs into the checkpoint
        levels = range(num_hierarchies if projection != "none" else 0)
        inner = width if fpn_feature_dim is None else fpn_feature_dim
        self.hierarchy_projections = nn.ModuleList(
            _normed(inner, width, projection_norm) for _ in levels
        )
        self.fusion = None if fpn_feature_dim is None else fpn_fusion_method
        laterals = levels if self.fusion else range(0)
        self.fpn_lateral_convs = nn.ModuleList(_normed(width, inner) for _ in laterals)
        self.fpn_top_down_convs = nn.ModuleList(_normed(inner, inner) for _ in laterals[:-1])
        self.fpn_fusion_convs = nn.ModuleList(
            nn.Sequential(*_normed(2 * inner, inner), nn.ReLU())
            for _ in (laterals[:-1] if self.fusion == "concat" else range(0))
        )
        for layers in (
            self.hierarchy_projections,
            self.fpn_lateral_convs,
            self.fpn_top_down_convs,
            self.fpn_fusion_convs,
        ):
            initialize(layers, fan_in)

    def forward(self, images: Tensor, layout: Layout, second: Tensor | None = None) -> Output:
        """Predict the hidden patches' features from the visible ones, on every level.

        `second` (B, C, H, W) is another view of each image, for a contrastive term.
        """
        images = self.pixels(images)
        context, summaries = self.see_pixels(images, layout, second)
        table = self.context_encoder.vit.pos_embed[0, self.context_encoder.vit.prefix :]
        patches, prediction = layout.visible.patches, layout.prediction
        predicted = self.predictor(context, patches, prediction, table)  # (T, D)
        target = self.encode_targets(images).index_select(0, prediction.targets)  # (T, D)
        levels = range(self.num_hierarchies)
        return Output(
            self.level_features(self._shaped(predicted, layout.pooling), layout.pooling),
            self.level_targets(self._shaped(target, layout.pooling), layout.pooling),
            [layout.pooling.valid(level) for level in levels],
            context,
            target,
            summaries,
            layout.filling,
        )

    def see(
        self, images: Tensor, layout: Layout, second: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Return features of the visible patches (K, D), and (B, D) of two views, if any."""
        return self.see_pixels(self.pixels(images), layout, second)

    def see_pixels(
        self, images: Tensor, layout: Layout, second: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Run `see` for normalized images; `second` are bytes."""
        context = self.encode_visible(images, layout)
        if second is None:
            return context, None
        # Both views are complete: what is compared does not depend on the masks.
        views = torch.cat([images, self.pixels(second)])
        first, other = self.summarize(self.context_encoder.vit(views)).chunk(2)
        return context, (first, other)

    def encode_visible(self, images: Tensor, layout: Layout) -> Tensor:
        """Return the context encoder's features of the visible patches, (K, D)."""
        vit = self.context_encoder.vit
        if layout.hidden is not None:
            tokens: Tensor = vit(images, hidden=layout.hidden)
            return tokens[:, vit.prefix :].flatten(0, 1)
        tokens = vit.forward_packed(images, layout.visible)
        chosen = layout.visible.tokens
        return tokens if chosen is None else tokens.index_select(0, chosen)

    def encode_targets(self, images: Tensor) -> Tensor:
        """Return the target encoder's features of all patches, (B N, D)."""
        if self.target_encoder is None:  # trained end to end: the gradient flows
            vit = self.context_encoder.vit
            return vit(images)[:, vit.prefix :].flatten(0, 1)  # type: ignore[no-any-return]
        vit = self.target_encoder.vit
        with torch.no_grad():
            return vit(images)[:, vit.prefix :].flatten(0, 1)  # type: ignore[no-any-return]

    def level_features(self, tokens: Tensor, pooling: Pooling) -> list[Tensor]:
        """Projected features of every level."""
        levels = range(self.num_hierarchies)
        if self.projection == "none":
            return [pooling.pool(tokens, level) for level in levels]
        if self.fusion is None:
            return [
                pooling.pool(project(tokens), level)
                for level, project in enumerate(self.hierarchy_projections)
            ]
        pyramid = [
            lateral(pooling.pool(tokens, level))
            for level, lateral in enumerate(self.fpn_lateral_convs)
        ]
        fused = [pyramid[-1]]
        for level in reversed(levels[:-1]):
            above = self.fpn_top_down_convs[level](pooling.expand(fused[0], level))
            if self.fusion == "add":
                fused.insert(0, pyramid[level] + above)
            else:
                both = torch.cat([pyramid[level], above], dim=-1)
                fused.insert(0, self.fpn_fusion_convs[level](both))
        return [
            project(tokens)
            for project, tokens in zip(self.hierarchy_projections, fused, strict=True)
        ]

    def level_targets(self, tokens: Tensor, pooling: Pooling) -> list[Tensor]:
        """Return the targets of each level; through the projections only if these are shared."""
        if self.normalize_targets:
            tokens = F.layer_norm(tokens, tokens.shape[-1:])
        if self.projection == "shared":
            return self.level_features(tokens, pooling)
        return [pooling.pool(tokens, level) for level in range(self.num_hierarchies)]

    def _shaped(self, tokens: Tensor, pooling: Pooling) -> Tensor:
        """Return packed tokens (T, D), or (B, M, D) if pooling runs along equal sequences."""
        if isinstance(pooling, SequencePooling):
            return tokens.view(*pooling.token_valid.shape, -1)
        return tokens

    def extract_features(
        self, images: Tensor, level: int = 0, use_target_encoder: bool = True
    ) -> Tensor:
        """Return features of whole images on a level, (B, N_l, D).

        They pass through the projections only if these are shared by predictions and targets.
        """
        vit = self.scored_encoder(use_target_encoder).vit
        tokens = super().extract_features(images, use_target_encoder=use_target_encoder)
        pooling: Pooling
        if self.pooling == "sequence":
            pooling = SequencePooling(torch.ones(tokens.shape[:2], dtype=torch.bool))
        else:
            cells = dense_cells(len(tokens), vit.grid_of(images), self.num_hierarchies)
            pooling = to_device(cells, tokens.device)
            tokens = tokens.flatten(0, 1)
        if self.projection == "shared":
            features = self.level_features(tokens, pooling)[level]
        else:
            features = pooling.pool(tokens, level)
        return (
            features if features.ndim == 3 else features.view(len(images), -1, features.shape[-1])
        )

    def adapt_tensors(
        self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any] | None = None
    ) -> dict[str, Tensor]:
        """Return a third-party state dict with this model's keys and sizes.

        A single encoder, from timm or I-JEPA, initializes both encoders; position table and patch
        weights are resized if necessary. `settings` is the configuration of the overt run that
        wrote the file, if any, which determines the grid of the table.
        """
        current = self.state_dict()
        # The monitor's state belongs to its own run, and fixed positions are computed.
        own_keys = [key for key in current if key.startswith("monitor.") or key == PREDICTOR_TABLE]
        adapted = dict(tensors) | {key: current[key] for key in own_keys if key in tensors}
        if any(key.startswith("predictor.") for key in tensors):
            self._refuse_other_predictor_heads(settings)
        vit = self.context_encoder.vit
        context, target = (keys_of_encoder(tensors, vit, prefix) for prefix in (CONTEXT, TARGET))
        if not context and not target:
            return adapted
        sources = {"context_encoder": context or target}
        if self.target_encoder is not None:
            sources["target_encoder"] = target or context
        source_keys = {key for keys in sources.values() for key in keys.values()}
        adapted = {key: value for key, value in adapted.items() if key not in source_keys}
        fitted: dict[str, dict[str, Tensor]] = {}  # by one of the keys: say once what was resized
        for encoder, keys in sources.items():
            first = next(iter(keys.values()))
            if first not in fitted:
                fitted[first] = fit_encoder(tensors, keys, vit, settings)
            adapted |= {f"{encoder}.vit.{name}": value for name, value in fitted[first].items()}
        if any(key.startswith(CONTEXT[0]) for key in tensors):
            return adapted  # a complete model of this kind: all of it has to fit
        return _without_other_predictor(adapted, current)

    def _refuse_other_predictor_heads(self, settings: Mapping[str, Any] | None) -> None:
        """Refuse a predictor of a run with another number of heads, which no shape shows."""
        model = (settings or {}).get("model")
        predictor = model.get("predictor") if isinstance(model, Mapping) else None
        heads = predictor.get("num_heads") if isinstance(predictor, Mapping) else None
        blocks: list[Any] = self.predictor.blocks_in_order
        own = blocks[0].attn.heads
        if isinstance(heads, int) and heads != own:
            raise CheckpointError(
                f"the predictor in the file was trained with {heads} attention heads, the model's "
                f"has {own}. Set model.predictor.num_heads={heads}."
            )


def _without_other_predictor(
    adapted: dict[str, Tensor], current: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Third-party encoders are useful without their predictor, which often has other sizes."""
    for key, value in adapted.items():
        if key.startswith("predictor.") and key in current and value.shape != current[key].shape:
            log.warning(
                "the predictor of the file is skipped, sizes differ: %s is %s there and %s here",
                key,
                tuple(value.shape),
                tuple(current[key].shape),
            )
            return {k: v for k, v in adapted.items() if not k.startswith("predictor.")}
    return adapted


def _normed(inputs: int, outputs: int, norm: str = "layernorm") -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(inputs, outputs)]
    if norm == "layernorm":
        layers.append(nn.LayerNorm(outputs))
    elif norm == "batchnorm":
        layers.append(TokenBatchNorm(outputs))
    return nn.Sequential(*layers)
