"""PoseNet: pose and shape of a person from a picture and the depth predicted by DepthNet.

A base estimator, and a copy that gets the depth through zero-initialized layers, so that training
starts at the base. Section 3.3 of arXiv:2412.08640, with a smaller estimator. Letters: B pictures,
N positions of all levels, D features, 21 queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from overt.data.images.transforms import Normalize
from overt.errors import CheckpointError
from overt.geometry.body import BODY_JOINTS, SHAPE_NUMBERS
from overt.geometry.rotation import six_to_matrix
from overt.ops.attention.api import attention
from overt.ops.convolve import Conv2d
from overt.recipes.blade.depthnet import DepthNet
from overt.recipes.blade.resnet import ResNet, make_norm
from overt.recipes.blade.silhouette import SilhouetteHead

QUERIES = 21  # the body, 17 keypoints, 3 parts
LIMBS = 12
TEMPERATURE = 20.0


class PoseOutput(NamedTuple):
    """Output of PoseNet for each picture."""

    rotations: Tensor  # (B, 22, 3, 3): root in the camera frame, joints relative to their parents
    shape: Tensor  # (B, 10)
    depth: Tensor | None  # (B,) meters; None where no DepthNet is asked
    keypoints: Tensor | None  # (B, 12, 2) limb joints, 0 to 1 across the picture
    visible: Tensor | None = None  # (B, 12) logits of whether they are in the picture
    silhouette: Tensor | None = None  # (B, M, M) logits of the body in the picture


class DecoderLayer(nn.Module):
    """Pre-norm decoder layer: queries attend to each other and to the picture."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.self_qkv = nn.Linear(width, 3 * width)
        self.self_out = nn.Linear(width, width)
        self.cross_query = nn.Linear(width, width)
        self.cross_key = nn.Linear(width, width)
        self.cross_value = nn.Linear(width, width)
        self.cross_out = nn.Linear(width, width)
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor, memory: Tensor, positions: Tensor) -> Tensor:
        query, key, value = self.self_qkv(self.norm1(tokens)).chunk(3, dim=-1)
        tokens = tokens + self.self_out(self.attend(query, key, value))
        query = self.cross_query(self.norm2(tokens))
        key, value = self.cross_key(memory + positions), self.cross_value(memory)
        tokens = tokens + self.cross_out(self.attend(query, key, value))
        return tokens + self.linear2(F.relu(self.linear1(self.norm3(tokens))))  # type: ignore[no-any-return]

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (
            torch.unflatten(part, -1, (self.heads, -1)).transpose(1, 2)
            for part in (query, key, value)
        )
        return attention(query, key, value).transpose(1, 2).flatten(2)


class TzMaps(nn.Module):
    """Adds linear functions of the depth to features and positions; zero-initialized."""

    def __init__(self, channels: list[int], width: int) -> None:
        super().__init__()
        self.features = nn.ModuleList(nn.Linear(1, count) for count in channels)
        self.positions = nn.ModuleList(nn.Linear(1, width) for _ in channels)
        for layer in (*self.features, *self.positions):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)


class PoseBranch(nn.Module):
    """Encode pictures, and optionally depths, as 21 tokens."""

    def __init__(
        self, backbone: ResNet, width: int, heads: int, layers: int, silhouette: bool = False
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.projections = nn.ModuleList(
            nn.Sequential(Conv2d(count, width, 1), make_norm("group", width))
            for count in backbone.channels
        )
        self.levels = nn.Parameter(0.02 * torch.randn(len(backbone.channels), width))
        self.queries = nn.Parameter(torch.randn(1, QUERIES, width))
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.silhouette = SilhouetteHead(width) if silhouette else None
        self.tz: TzMaps | None = None
        self.width = width

    def condition(self) -> PoseBranch:
        """Add the depth conditioning to this branch."""
        self.tz = TzMaps(self.backbone.channels, self.width)
        return self

    def forward(self, images: Tensor, depth: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return tokens (B, 21, D), and the logits (B, M, M) of a silhouette."""
        levels, positions = [], []
        for index, (maps, project) in enumerate(
            zip(self.backbone(images), self.projections, strict=True)
        ):
            position = sine_positions(maps.shape[2:], self.width, maps.device) + self.levels[index]
            if self.tz is not None:
                assert depth is not None
                depth_input = depth[:, None].to(maps.dtype)
                maps = maps + self.tz.features[index](depth_input)[..., None, None]
                position = position + self.tz.positions[index](depth_input)[:, None]
            levels.append(project(maps))
            positions.append(position.expand(len(images), -1, -1))
        tokens = self.queries.expand(len(images), -1, -1)
        memory = [level.flatten(2).transpose(1, 2) for level in levels]
        features, all_positions = torch.cat(memory, dim=1), torch.cat(positions, dim=1)
        for layer in self.layers:
            tokens = layer(tokens, features, all_positions)
        silhouette = None if self.silhouette is None else self.silhouette(levels)
        return self.norm(tokens), silhouette


def sine_positions(size: tuple[int, int], width: int, device: torch.device) -> Tensor:
    """Return sinusoids along rows and columns of a map, (H W, D)."""
    quarter = width // 4
    scale = TEMPERATURE ** (torch.arange(quarter, device=device) / quarter)
    parts = []
    for axis, count in enumerate(size):
        angle = 2 * math.pi * (torch.arange(count, device=device) + 0.5) / count
        angles = angle[:, None] / scale  # (count, quarter)
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1)
        shape = (size[0], size[1], 2 * quarter)
        parts.append((waves[:, None] if axis == 0 else waves[None]).expand(shape))
    return torch.cat(parts, dim=-1).flatten(0, 1)


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
        nn.Linear(hidden, outputs),
    )  # fmt: skip


class PoseHeads(nn.Module):
    """Decode tokens to rotations and shape; initially the mean person."""

    def __init__(self, width: int, keypoints: bool, visibility: bool = False) -> None:
        super().__init__()
        self.pose6d = perceptron(QUERIES * width, width, BODY_JOINTS * 6)
        self.betas = perceptron(QUERIES * width, width, SHAPE_NUMBERS)
        self.keypoints = nn.Linear(width, 2) if keypoints else None
        self.visibility = nn.Linear(width, 1) if visibility else None
        for head in (self.pose6d, self.betas):
            last = head[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        # The identity rotation in six numbers; the root rotates from y up to the camera's y down.
        start = torch.tensor([1.0, 0, 0, 1, 0, 0]).repeat(BODY_JOINTS, 1)
        start[0] = torch.tensor([1.0, 0, 0, -1, 0, 0])
        last = self.pose6d[-1]
        assert isinstance(last, nn.Linear)
        last.bias.data.copy_(start.flatten())

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        together = tokens.flatten(1)
        six = torch.unflatten(self.pose6d(together).float(), 1, (BODY_JOINTS, 6))
        return six_to_matrix(six), self.betas(together).float()

    def limb_positions(self, tokens: Tensor) -> Tensor | None:
        if self.keypoints is None:
            return None
        return torch.sigmoid(self.keypoints(tokens[:, 1 : 1 + LIMBS]).float())

    def limb_visibility(self, tokens: Tensor) -> Tensor | None:
        if self.visibility is None:
            return None
        return self.visibility(tokens[:, 1 : 1 + LIMBS]).float().squeeze(-1)  # type: ignore[no-any-return]


class PoseNet(nn.Module):
    """Predict the pose from both crops; DepthNet, and the base if there is one, stay frozen."""

    def __init__(
        self,
        branch: PoseBranch,
        heads: PoseHeads,
        *,
        depthnet: DepthNet | None = None,
        with_base: bool = False,
        control_output: str = "zero",
        save_frozen: bool = False,
    ) -> None:
        super().__init__()
        self.pixels = Normalize()
        self.depthnet = None if depthnet is None else depthnet.requires_grad_(False).eval()
        self.has_depthnet = depthnet is None
        self.has_base = not with_base
        self.base: PoseBranch | None = None
        self.control_output: nn.Module | None = None
        self.frozen = ["depthnet."] if depthnet is not None else []
        if with_base:
            self.base = branch.requires_grad_(False).eval()
            heads.requires_grad_(False).eval()
            branch = deepcopy(branch).requires_grad_(True)
            self.frozen += ["base.", "heads."]
            if control_output == "zero":
                layer = nn.Linear(branch.width, branch.width)
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)
                self.control_output = layer
            else:
                self.control_output = nn.Identity()
        self.branch = branch if depthnet is None else branch.condition()
        self.heads = heads
        if not save_frozen:
            self.register_state_dict_post_hook(_drop_frozen)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_note_frozen)  # type: ignore[no-untyped-call]

    def train(self, mode: bool = True) -> PoseNet:
        """Set the mode, but keep frozen parts in evaluation mode."""
        super().train(mode)
        for part in (self.depthnet, self.base, self.heads if self.base is not None else None):
            if part is not None:
                part.eval()
        return self

    def forward(self, depth_images: Tensor, pose_images: Tensor) -> PoseOutput:
        depth = None
        if self.depthnet is not None:
            with torch.no_grad():
                depth = self.depthnet(depth_images)[:, 0]  # (B,)
        return self.from_depth(depth, pose_images)

    def from_depth(self, depth: Tensor | None, pose_images: Tensor) -> PoseOutput:
        """Predict the pose from uint8 pictures and known depths (B,)."""
        pixels = self.pixels(pose_images)
        tokens, silhouette = self.branch(pixels, depth)
        keypoint_tokens = tokens
        if self.base is not None:
            assert self.control_output is not None
            with torch.no_grad():
                keypoint_tokens, _ = self.base(pixels, None)
            tokens = keypoint_tokens + self.control_output(tokens)
        rotations, shape = self.heads(tokens)
        keypoints = self.heads.limb_positions(keypoint_tokens)
        visible = self.heads.limb_visibility(keypoint_tokens)
        return PoseOutput(rotations, shape, depth, keypoints, visible, silhouette)

    def load_base(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Load a run with tz_conditioning=false: base, copy and heads start from it."""
        assert self.base is not None
        for name, module, strict in (
            ("branch.", self.base, True),
            ("branch.", self.branch, False),  # its layers for the depth are new
            ("heads.", self.heads, True),
        ):
            part = {
                key.removeprefix(name): value
                for key, value in tensors.items()
                if key.startswith(name)
            }
            try:
                module.load_state_dict(part, strict=strict)
            except RuntimeError as error:
                raise CheckpointError(
                    f"model.base_checkpoint={source} does not fit: "
                    f"{str(error).splitlines()[1].strip()} It must come from a run with "
                    "model.tz_conditioning=false and the same model.branch."
                ) from None
        self.has_base = True

    def require_weights(self) -> None:
        """Reject predictions with frozen parts whose weights were never loaded."""
        for is_there, network, key in (
            (self.has_depthnet, "DepthNet", "model.depthnet_checkpoint"),
            (self.has_base, "the base estimator", "model.base_checkpoint"),
        ):
            if not is_there:
                raise CheckpointError(
                    f"{network} has no weights: the checkpoint was saved without frozen parts. Set "
                    f"{key} to the checkpoint that training was given."
                )
        if self.depthnet is not None:
            self.depthnet.require_weights("Set model.depth.backbone_checkpoint.")


def _drop_frozen(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    assert isinstance(module, PoseNet)
    names = tuple(prefix + name for name in module.frozen)
    for name in [name for name in state if names and name.startswith(names)]:
        del state[name]


def _note_frozen(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    assert isinstance(module, PoseNet)
    module.has_depthnet |= any(name.startswith(f"{prefix}depthnet.depth_head.") for name in state)
    module.has_base |= any(name.startswith(f"{prefix}base.") for name in state)
