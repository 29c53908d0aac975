"""The two networks of CoTracker3: a frame encoder and a transformer over track tokens.

Letters: B batch, T frames, N points, K virtual tracks, D width. Submodules have the names
(including a misspelling) and the parameter order of the released checkpoints.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from overt.geometry.sample import resize_bilinear
from overt.ops.attention.api import attend_within, attention
from overt.ops.convolve import convolve
from overt.ops.gelu import gelu
from overt.ops.linear_gelu.api import linear_gelu
from overt.ops.map_norm.api import normalize_maps


class FeatureNetwork(nn.Module):
    """Encode frames (M, 3, H, W) in 0..255 as maps (M, latent_dim, H / stride, W / stride).

    With `recompute_normed` a training step stores only the outputs of the convolutions and
    recomputes everything between them in the backward pass.
    """

    def __init__(
        self, latent_dim: int = 128, stride: int = 4, recompute_normed: bool = False
    ) -> None:
        super().__init__()
        self.stride = stride
        self.recompute_normed = recompute_normed
        widths = (latent_dim // 2, latent_dim // 4 * 3, latent_dim, latent_dim)
        self.conv1 = nn.Conv2d(3, widths[0], 7, stride=2, padding=3)
        self.layer1 = _residual_pair(widths[0], widths[0], stride=1)
        self.layer2 = _residual_pair(widths[0], widths[1], stride=2)
        self.layer3 = _residual_pair(widths[1], widths[2], stride=2)
        self.layer4 = _residual_pair(widths[2], widths[3], stride=2)
        self.conv2 = nn.Conv2d(sum(widths), 2 * latent_dim, 3, padding=1)
        self.conv3 = nn.Conv2d(2 * latent_dim, latent_dim, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, frames: Tensor) -> Tensor:
        if not (self.recompute_normed and torch.is_grad_enabled()):
            return self.run(frames)
        result: Tensor = checkpoint(
            self.run,
            frames,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=partial(create_selective_checkpoint_contexts, keep_convolved),
        )
        return result

    def run(self, frames: Tensor) -> Tensor:
        size = (frames.shape[-2] // self.stride, frames.shape[-1] // self.stride)
        if frames.is_cuda:  # the layout that tensor cores convolve in
            frames = frames.contiguous(memory_format=torch.channels_last)
        frames = 2 * (frames.float() / 255) - 1
        x = normalize_maps(convolve_unshifted(self.conv1, frames))
        scales = []
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
            scales.append(resize_bilinear(x, size))
        x = normalize_maps(convolve_unshifted(self.conv2, torch.cat(scales, dim=1)))
        return convolve(x, self.conv3.weight, (1, 1), (0, 0), self.conv3.bias)


def keep_convolved(_: Any, operation: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    """Save outputs of convolutions (expensive) and of their statistics (small)."""
    kept = operation.name() in ("aten::convolution", "overt::map_moments")
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def convolve_unshifted(convolution: nn.Conv2d, x: Tensor) -> Tensor:
    """Convolve without the bias: the following normalization removes a constant per map."""
    weight = _WithIdle.apply(convolution.weight, convolution.bias)  # type: ignore[no-untyped-call]
    padding = cast(tuple[int, int], convolution.padding)
    return convolve(x, weight, cast(tuple[int, int], convolution.stride), padding)


class _WithIdle(torch.autograd.Function):
    """Pass a parameter through, and attach one without effect whose gradient is zero.

    Zero instead of None: the optimizer and DDP expect a gradient for every parameter.
    """

    @staticmethod
    def forward(ctx: Any, used: Tensor, idle: Tensor) -> Tensor:
        ctx.save_for_backward(idle)
        return used.view_as(used)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (idle,) = ctx.saved_tensors
        return gradient, torch.zeros_like(idle)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with instance normalization and a residual connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride))

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        if self.downsample is not None:
            convolution = cast(nn.Conv2d, self.downsample[0])
            residual = normalize_maps(convolve_unshifted(convolution, x), relu=False)
        y = normalize_maps(convolve_unshifted(self.conv1, x))
        return normalize_maps(convolve_unshifted(self.conv2, y), residual=residual)


def _residual_pair(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(ResidualBlock(inputs, outputs, stride), ResidualBlock(outputs, outputs, 1))


class Perceptron(nn.Module):
    """Linear, GELU, linear. `approximate` is "tanh" in the transformer, "none" elsewhere.

    The inputs may be `groups` of equal size, each padded with zeros. With `recompute` the hidden
    activations are recomputed in the backward pass.
    """

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        approximate: str,
        groups: int = 1,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.approximate = approximate
        self.groups = groups
        self.recompute = recompute
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.recompute and torch.is_grad_enabled()):
            return self.run(x)
        result: Tensor = checkpoint(self.run, x, use_reentrant=False, preserve_rng_state=False)
        return result

    def run(self, x: Tensor) -> Tensor:
        weight, bias = self.first_weight(x.shape[-1]), self.fc1.bias
        if self.approximate == "tanh":
            output: Tensor = self.fc2(linear_gelu(x, weight, bias))
            return output
        return self.finish(F.linear(x, weight, bias))

    def first_weight(self, inputs: int) -> Tensor:
        """Return the first layer's weight for this many inputs, including padding."""
        weight = self.fc1.weight
        if inputs == self.fc1.in_features:
            return weight
        spare = (inputs - self.fc1.in_features) // self.groups  # padded inputs have zero weights
        return F.pad(torch.unflatten(weight, 1, (self.groups, -1)), (0, spare)).flatten(1)

    def finish(self, hidden: Tensor) -> Tensor:
        """All behind the first layer."""
        output: Tensor = self.fc2(gelu(hidden, self.approximate))
        return output


class Attention(nn.Module):
    """Attend from x (B, L, D) to a context (B, M, D); self-attention if the context is x."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width)
        self.to_kv = nn.Linear(width, 2 * width)
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        query = (
            self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        )  # (B, heads, L, D/heads)
        key_value = self.to_kv(context).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        key, value = key_value.unbind()  # each (B, heads, M, D / heads)
        y = attention(query, key, value)
        output: Tensor = self.to_out(y.transpose(1, 2).flatten(-2))
        return output

    def within(self, x: Tensor) -> Tensor:
        """Self-attention of x (B, L, D)."""
        if not x.is_cuda:
            return self(x, x)  # type: ignore[no-any-return]
        # One product for queries, keys and values, in the layout that the short-sequence kernels
        # read.
        weight = torch.cat([self.to_q.weight, self.to_kv.weight])
        bias = torch.cat([self.to_q.bias, self.to_kv.bias])
        qkv = torch.unflatten(F.linear(x, weight, bias), -1, (3, self.heads, -1))
        output: Tensor = self.to_out(attend_within(qkv).flatten(-2))
        return output


class SelfBlock(nn.Module):
    """Pre-norm transformer block, (B, L, D) to (B, L, D)."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, recompute: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.attn = Attention(width, heads)
        hidden = int(width * mlp_ratio)
        self.mlp = Perceptron(width, hidden, width, approximate="tanh", recompute=recompute)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn.within(self.norm(x))
        output: Tensor = x + self.mlp(self.norm(x))
        return output


class CrossBlock(nn.Module):
    """Pre-norm block with attention to a context, (B, L, D) to (B, L, D)."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, recompute: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm_context = nn.LayerNorm(width, eps=1e-5)
        self.cross_attn = Attention(width, heads)
        hidden = int(width * mlp_ratio)
        self.mlp = Perceptron(width, hidden, width, approximate="tanh", recompute=recompute)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.cross_attn(self.norm(x), self.norm_context(context))
        output: Tensor = x + self.mlp(self.norm(x))
        return output


# Parts of the transformer reuse its blocks, which are registered in its own state dict. Here they
# are kept in tuples so that they are not registered again.


class Entry(nn.Module):
    """Turn tokens (B, N, T, token_width) into (B * T, N + K, D), virtual tracks last."""

    def __init__(self, input_transform: nn.Linear) -> None:
        super().__init__()
        self.parts = (input_transform,)

    def forward(self, tokens: Tensor, virtual_tracks: Tensor) -> Tensor:
        batch, _, frames, _ = tokens.shape
        x = self.parts[0](tokens)
        virtual = virtual_tracks.to(x.dtype).expand(batch, -1, frames, -1)
        # Frame-major, as every layer leaves it, so that one compiled program serves all layers.
        return torch.cat([x.transpose(1, 2), virtual.transpose(1, 2)], dim=2).flatten(0, 1)


class Layer(nn.Module):
    """One block along time within each track, then, if any, blocks across tracks within each frame.

    (B * T, N + K, D) to the same shape. Points exchange information through the virtual tracks.
    """

    def __init__(self, along_time: nn.Module, across_tracks: tuple[nn.Module, ...]) -> None:
        super().__init__()
        self.parts = (along_time, *across_tracks)

    def forward(self, x: Tensor, batch: int, points: int) -> Tensor:
        along_time, *across_tracks = self.parts
        by_track = torch.unflatten(x, 0, (batch, -1)).transpose(1, 2)  # (B, N + K, T, D)
        by_track = torch.unflatten(along_time(by_track.flatten(0, 1)), 0, (batch, -1))
        x = by_track.transpose(1, 2).flatten(0, 1)  # (B * T, N + K, D)
        if not across_tracks:
            return x
        virtual_to_point, among_virtual, point_to_virtual = across_tracks
        real, virtual = x[:, :points], x[:, points:]
        virtual = among_virtual(virtual_to_point(virtual, context=real))
        return torch.cat([point_to_virtual(real, context=virtual), virtual], dim=1)


class Exit(nn.Module):
    """(B * T, N + K, D) to updates (B, N, T, 4)."""

    def __init__(self, *heads: nn.Module | None) -> None:
        super().__init__()
        self.parts = tuple(head for head in heads if head is not None)

    def forward(self, x: Tensor, batch: int, points: int) -> Tensor:
        real = torch.unflatten(x[:, :points], 0, (batch, -1)).transpose(1, 2)  # (B, N, T, D)
        return torch.cat([head(real) for head in self.parts], dim=-1)


class UpdateTransformer(nn.Module):
    """Turn tokens (B, N, T, token_width) into updates (B, N, T, 4): x, y, visibility, confidence.

    Attention runs along time within each track, and across tracks within each frame. There points
    exchange information through K learned virtual tracks, so the cost is linear in N.
    """

    def __init__(
        self,
        token_width: int,
        hidden_size: int = 384,
        num_heads: int = 8,
        time_depth: int = 3,
        space_depth: int = 3,
        mlp_ratio: float = 4.0,
        num_virtual_tracks: int = 64,
        linear_layer_for_vis_conf: bool = True,
        recompute_hidden: bool = False,
    ) -> None:
        super().__init__()
        self.space_every = time_depth // space_depth
        self.virual_tracks = nn.Parameter(torch.randn(1, num_virtual_tracks, 1, hidden_size))
        self.input_transform = nn.Linear(token_width, hidden_size)
        self.flow_head = nn.Linear(hidden_size, 2 if linear_layer_for_vis_conf else 4)
        self.vis_conf_head = nn.Linear(hidden_size, 2) if linear_layer_for_vis_conf else None
        sizes = (hidden_size, num_heads, mlp_ratio, recompute_hidden)
        self.time_blocks = nn.ModuleList(SelfBlock(*sizes) for _ in range(time_depth))
        self.space_virtual_blocks = nn.ModuleList(SelfBlock(*sizes) for _ in range(space_depth))
        self.space_point2virtual_blocks = nn.ModuleList(
            CrossBlock(*sizes) for _ in range(space_depth)
        )
        self.space_virtual2point_blocks = nn.ModuleList(
            CrossBlock(*sizes) for _ in range(space_depth)
        )
        self.entry = Entry(self.input_transform)
        self.layers = nn.ModuleList(
            Layer(time_block, self.space_blocks(depth))
            for depth, time_block in enumerate(self.time_blocks)
        )
        self.exit = Exit(self.flow_head, self.vis_conf_head)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for head in (self.flow_head, self.vis_conf_head):
            if head is not None:
                nn.init.trunc_normal_(head.weight, std=0.001)

    def space_blocks(self, depth: int) -> tuple[nn.Module, ...]:
        """Return the blocks across tracks that follow this block along time, if any."""
        number, remainder = divmod(depth, self.space_every)
        kinds = (
            self.space_virtual2point_blocks,
            self.space_virtual_blocks,
            self.space_point2virtual_blocks,
        )
        return () if remainder else tuple(blocks[number] for blocks in kinds)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, points = tokens.shape[:2]
        x = self.entry(tokens, self.virual_tracks)
        for layer in self.layers:
            x = layer(x, batch, points)
        update: Tensor = self.exit(x, batch, points)
        return update
