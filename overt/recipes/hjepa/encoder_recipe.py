"""What all recipes of this folder share: images, an encoder, and how its features are scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from overt.data.images.folder import ReadableImages
from overt.data.images.segmented import open_segmented
from overt.data.images.transforms import EvaluationTransform, Normalize
from overt.data.images.views import make_views
from overt.distributed import World
from overt.errors import ConfigError
from overt.nn.vit import VisionTransformer
from overt.recipe import Recipe
from overt.recipes.hjepa import evaluation
from overt.recipes.hjepa.config import Settings
from overt.recipes.hjepa.data import (
    HeldOutImages,
    make_missing_data,
    open_sets,
    patch_grid,
    training_transform,
)
from overt.recipes.hjepa.export import make_step
from overt.recipes.hjepa.further_sets import dense_scores, open_labeled, transfer_scores

if TYPE_CHECKING:
    from overt.recipe import Evaluation
    from overt.tasks import ExportedStep


class EncoderRecipe(Recipe):
    """A method that trains an encoder of images."""

    runs_on_mps = True
    learns_labels = False  # whether data.label_fraction has an effect

    def __init__(self, settings: Settings) -> None:
        fraction = settings.data.label_fraction
        if fraction != 1 and not self.learns_labels:
            raise ConfigError(
                f"data.label_fraction={fraction} has no effect in a recipe that does not learn "
                "labels; remove it, or use recipe=finetune, finetune_cifar or supervised_cifar"
            )
        self.settings = settings
        self.grid = patch_grid(settings)
        self.transform = training_transform(settings.data)

    def build_encoder(self) -> VisionTransformer:
        """Return the encoder with fresh weights."""
        model, data = self.settings.model, self.settings.data
        sizes = model.sizes()
        height, width = data.image_size
        encoder = VisionTransformer(
            (height, width),
            model.patch(),
            sizes.width,
            sizes.depth,
            sizes.heads,
            mlp_ratio=sizes.mlp_ratio,
            class_token=model.class_token,
            positions=model.positions,
            rope_theta=model.rope.theta if model.rope.use_rope else None,
            layer_scale=model.layerscale.init_value if model.layerscale.use_layerscale else None,
            drop_path_rate=model.drop_path_rate,
        )
        encoder.initialize(model.initialization == "fan_in")
        return encoder

    def build_pixels(self) -> Normalize:
        """Return the layer that makes numbers of bytes."""
        return Normalize(self.settings.data.mean, self.settings.data.std)

    @cached_property
    def sets(self) -> tuple[ReadableImages, ReadableImages]:
        """The images to train on and to evaluate on; opened once, as listing them takes long.

        They also remember which of them this process could not read.
        """
        return open_sets(self.settings.data)

    def scored_sets(self) -> tuple[HeldOutImages, HeldOutImages]:
        """Return the training and the held-out images as an evaluation reads them."""
        make_missing_data(self.settings.data)
        training, held_out = (HeldOutImages(images, self.settings) for images in self.sets)
        return training, held_out

    def make_views(self, images: Tensor, rows: Tensor) -> list[Tensor]:
        """Return the views (B, 3, H, W) that rows (B, V, 15) describe, on the images' device."""
        return [make_views(images, view, self.transform) for view in rows.unbind(1)]

    def prepare_image(self, pixels: Tensor) -> Tensor:
        """Return the middle of an image (3, H, W) uint8, resized."""
        height, width = self.settings.data.image_size
        return EvaluationTransform((height, width), self.settings.data.margin)(pixels)

    def encode_images(self, model: Any, images: Tensor) -> Tensor:
        """Return features (B, D) of images (B, 3, H, W) uint8, those that are scored."""
        return evaluation.scored_features(model, self.settings.evaluation, images)

    def export_step(self, model: Any) -> ExportedStep:
        """Return the encoder alone, for ONNX and TorchScript."""
        height, width = self.settings.data.image_size
        return make_step(model, (height, width))

    def evaluate(self, model: Any, world: World) -> dict[str, float]:
        """k-NN (and probes) on frozen features, and their spread."""
        training, held_out = self.scored_sets()
        if len(held_out) == 0:
            return {}
        scores = evaluation.spread_of_features(
            model, held_out, self.settings.evaluation, world.device
        )
        return scores | evaluation.score_features(model, training, held_out, self.settings, world)

    def check_evaluation_data(self) -> None:
        make_missing_data(self.settings.data)
        assert self.sets  # opens both
        for name in self.settings.evaluation.transfer:
            open_labeled(name, self.settings)
        for root in self.settings.evaluation.dense.values():
            open_segmented(root)

    def evaluation_sets(self) -> dict[str, Evaluation]:
        """Return the sets of `evaluation.transfer` and `evaluation.dense` by name."""
        own = self.settings.evaluation
        sets: dict[str, Evaluation] = {}
        for name in own.transfer:
            sets[name] = partial(transfer_scores, name, self.settings)
        for name in own.dense:
            sets[name] = partial(dense_scores, name, self.settings)
        return sets

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return parameter_groups(model, self.settings.model.no_decay)


def parameter_groups(model: nn.Module, no_decay: Sequence[str]) -> list[dict[str, Any]]:
    """Groups by level, with and without weight decay.

    Level 0 is everything but the layers of the levels above. Biases, norms and other vectors do
    not decay, nor do parameters whose last name is listed.
    """
    groups: dict[tuple[int, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            first, *rest = name.split(".")
            level = int(rest[0]) if first == "hierarchy_projections" or "fpn_" in first else 0
            decays = parameter.ndim >= 2 and name.rpartition(".")[2] not in no_decay
            groups.setdefault((level, decays), []).append((name, parameter))
    return [
        {"params": pairs, "level": level} | ({} if decays else {"weight_decay": 0.0})
        for (level, decays), pairs in sorted(groups.items(), key=lambda item: item[0])
    ]
