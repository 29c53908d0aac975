"""The vision transformer: dropped tokens, packed tokens, other grids, foreign checkpoints."""

import logging

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

from overt.errors import CheckpointError
from overt.nn.vit import (
    PatchEmbed,
    VisionTransformer,
    pack_patches,
    resize_positions,
    rope_table,
    sincos_table,
)

KEPT = [np.array([0, 3, 7]), np.array([1, 2, 3, 4, 10]), np.array([11])]


def small(**changed: object) -> VisionTransformer:
    torch.manual_seed(0)
    options = {"class_token": True, "positions": "learned"} | changed
    vit = VisionTransformer((12, 16), 4, 16, 2, 2, **options).eval()  # 3 x 4 patches
    vit.initialize(fan_in=True)
    return vit


@pytest.mark.parametrize("side", [4, 7, 14])
def test_tokens_of_patches_are_those_of_a_convolution(side: int) -> None:
    embed = PatchEmbed(side, 3, 10)
    images = torch.randn(2, 3, 2 * side, 3 * side)
    expected = embed.proj(images).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embed(images), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("rope_theta", [None, 10.0])
@pytest.mark.parametrize("positions", ["learned", "sincos"])
def test_packed_is_a_loop_over_the_images(
    class_token: bool, rope_theta: float | None, positions: str
) -> None:
    vit = small(class_token=class_token, rope_theta=rope_theta, positions=positions)
    images = torch.randn(3, 3, 12, 16)
    visible = pack_patches(KEPT, [0, 1, 2], 3, 12, class_token)
    packed = vit.forward_packed(images, visible)
    alone = [
        vit(image[None], keep=torch.from_numpy(kept)[None])[0]
        for image, kept in zip(images, KEPT, strict=True)
    ]
    torch.testing.assert_close(packed, torch.cat(alone))
    patches = packed if visible.tokens is None else packed[visible.tokens]
    assert len(patches) == len(visible.patches) == sum(map(len, KEPT))


def test_dropped_patches_cannot_be_seen_and_zeroed_ones_can() -> None:
    vit, keep = small(), torch.tensor([[0, 1, 2]])
    images = torch.randn(1, 3, 12, 16)
    other = images.clone()
    other[:, :, 4:] = torch.randn(1, 3, 8, 16)  # below the first row of patches
    assert torch.equal(vit(images, keep=keep), vit(other, keep=keep))
    hidden = torch.ones(1, 12, dtype=torch.bool)
    hidden[:, :4] = False
    zeroed = vit(images, hidden=hidden)
    assert torch.equal(zeroed, vit(other, hidden=hidden))
    # Yet a zeroed token is a key for the others: not what dropping gives.
    dropped = vit(images, keep=torch.arange(4)[None])
    assert not torch.allclose(zeroed[:, :5], dropped, atol=1e-3)


def test_keys_are_those_of_timm() -> None:
    keys = set(small(layer_scale=1e-5).state_dict())
    block = {
        f"blocks.0.{name}.{kind}"
        for name in ("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    }
    top = {"cls_token", "pos_embed", "patch_embed.proj.weight", "norm.weight", "norm.bias"}
    assert block | top | {"blocks.0.ls1.gamma", "blocks.1.ls2.gamma"} <= keys


def test_an_image_of_another_size_gets_interpolated_positions() -> None:
    vit = small()
    assert vit.positions((3, 4)) is vit.pos_embed
    assert vit.positions((6, 4)).shape == (1, 25, 16)
    assert torch.equal(vit.positions((6, 4))[:, 0], vit.pos_embed[:, 0])
    assert vit(torch.randn(2, 3, 24, 16)).shape == (2, 25, 16)


def test_a_constant_table_stays_constant_when_resized() -> None:
    table = torch.full((1, 13, 4), 0.3)
    resized = resize_positions(table, (3, 4), (5, 2), prefix=1)
    torch.testing.assert_close(resized, torch.full((1, 11, 4), 0.3))


def test_a_checkpoint_of_another_patch_and_image_size_is_fitted_and_said_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    square = VisionTransformer((8, 8), 2, 16, 2, 2)  # 4 x 4 patches of 2 pixels
    square.initialize(fan_in=True)
    vit = small()
    with caplog.at_level(logging.WARNING):
        fitted = vit.fit(square.state_dict())
    assert "position table resized from (4, 4) to (3, 4)" in caplog.text
    assert "patch weights resized" in caplog.text
    vit.load_state_dict(fitted)
    # A patch says the same at either resolution.
    patch = torch.randn(1, 3, 2, 2)
    larger = F.interpolate(patch, (4, 4), mode="bicubic", antialias=True)
    torch.testing.assert_close(vit.patch_embed(larger), square.patch_embed(patch))
    caplog.clear()
    vit.fit(vit.state_dict(), (3, 4))
    assert not caplog.text


@pytest.mark.parametrize("theirs", [True, False])
@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("size", [16, 24])  # 4 x 4 patches as here, and 6 x 6
def test_a_checkpoint_with_or_without_a_class_token_fits_either(
    theirs: bool, ours: bool, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    other = VisionTransformer((size, size), 4, 16, 2, 2, class_token=theirs)
    vit = VisionTransformer((16, 16), 4, 16, 2, 2, class_token=ours)
    tensors = {key: other.state_dict()[key] for key in vit.state_dict() if key != "cls_token"}
    table = vit.fit(tensors)["pos_embed"]
    assert table.shape == vit.pos_embed.shape
    first, patches = other.pos_embed[:, : other.prefix], other.pos_embed[:, other.prefix :]
    if size == 24:
        patches = resize_positions(patches, (6, 6), (4, 4), prefix=0)
    assert torch.equal(table[:, vit.prefix :], patches)
    if ours:
        assert torch.equal(table[:, :1], first if theirs else vit.pos_embed[:, :1])
    assert ("class token" in caplog.text) == (theirs != ours)


def test_a_checkpoint_of_another_width_is_refused_with_both_widths() -> None:
    other = VisionTransformer((16, 16), 4, 32, 2, 2)
    with pytest.raises(CheckpointError, match=r"32 features wide \(pos_embed\), the model's is 16"):
        small().fit(other.state_dict())


def test_the_grid_of_the_checkpoint_counts_not_the_number_of_its_patches(
    caplog: pytest.LogCaptureFixture,
) -> None:
    flat = VisionTransformer((8, 32), 4, 16, 2, 2)  # 2 x 8 patches
    square = VisionTransformer((16, 16), 4, 16, 2, 2)  # 4 x 4 patches, as many
    fitted = square.fit(flat.state_dict(), (2, 8))["pos_embed"]
    expected = resize_positions(flat.pos_embed, (2, 8), (4, 4), prefix=1)
    assert torch.equal(fitted, expected)
    assert "position table resized from (2, 8) to (4, 4) patches" in caplog.text
    # A grid that cannot be that of the table is not believed.
    assert torch.equal(square.fit(square.state_dict(), (3, 9))["pos_embed"], square.pos_embed)


def test_a_table_of_an_unknown_grid_is_a_square_or_taken_as_it_is_or_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vit = small()  # 3 x 4 patches
    fitted = vit.fit({"pos_embed": vit.pos_embed.detach() + 1})["pos_embed"]
    assert torch.equal(fitted, vit.pos_embed + 1)
    assert "used without resizing, for (3, 4) patches" in caplog.text
    with pytest.raises(CheckpointError, match=r"has 21 rows: not a square.*config\.yaml"):
        vit.fit({"pos_embed": torch.zeros(1, 21, 16)})
    with pytest.raises(CheckpointError, match="has 0 rows"):
        vit.fit({"pos_embed": torch.zeros(1, 0, 16)})


def test_fixed_positions_are_computed_and_never_read(caplog: pytest.LogCaptureFixture) -> None:
    vit = small(positions="sincos")
    half = {"pos_embed": vit.pos_embed.detach().half()}
    assert torch.equal(vit.fit(half)["pos_embed"], vit.pos_embed)
    assert not caplog.text
    for rows in (13, 17, 21):  # a learned table, another grid, and one that nobody knows
        caplog.clear()
        fitted = vit.fit({"pos_embed": torch.randn(1, rows, 16)})
        assert torch.equal(fitted["pos_embed"], vit.pos_embed)
        assert "not taken from the file: this model computes its own" in caplog.text


def test_positions_tell_every_patch_from_every_other() -> None:
    for table in (sincos_table((3, 5), 16), rope_table((3, 5), 16, 100.0).flatten(1)):
        distances = torch.cdist(table, table) + torch.eye(15)
        assert distances.min() > 1e-3


def test_sincos_is_fixed_and_codes_the_column_first() -> None:
    vit = small(positions="sincos", class_token=False)
    assert not vit.pos_embed.requires_grad
    table = vit.pos_embed[0].view(3, 4, 16)
    assert torch.equal(table[0, :, :8], table[2, :, :8])  # the same column
    assert torch.equal(table[:, 0, 8:], table[:, 3, 8:])  # the same row


def test_drop_path_rises_over_the_depth() -> None:
    vit = small(drop_path_rate=0.4)
    assert [block.drop_path.probability for block in vit.blocks] == pytest.approx([0.0, 0.4])


def test_chains_of_blocks_are_one_compiled_program_and_own_no_weights() -> None:
    torch.manual_seed(0)
    vit = VisionTransformer((16, 16), 4, width=16, depth=8, heads=2)
    assert not any("chains" in name for name in vit.state_dict())
    images = torch.rand(2, 3, 16, 16)
    expected = vit(images)
    by_block = vit.last_tokens(images, 8)[-1]
    counter = CompileCounterWithBackend("aot_eager")
    for chain in vit.chains:
        chain.compile(backend=counter)
    assert torch.equal(vit(images), expected)
    assert torch.equal(by_block, expected)
    assert counter.frame_count == 1
