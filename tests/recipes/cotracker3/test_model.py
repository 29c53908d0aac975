"""The offline CoTracker3: official names and sizes, batches, time, precision, learning."""

import copy
from typing import Any

import pytest
import torch
from small_recipes import TRACKER_SIZES, tracker_inputs
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from overt.errors import DataError
from overt.nn.reuse import together
from overt.recipes.cotracker3.blocks import Attention
from overt.recipes.cotracker3.model import CoTracker3Offline, relative_motion
from overt.recipes.cotracker3.pyramid import in_halves

TINY = TRACKER_SIZES | {"model_resolution": (32, 40)}


def tiny(**changed: object) -> CoTracker3Offline:
    torch.manual_seed(0)
    model = CoTracker3Offline(**(TINY | changed))
    # The heads start almost at zero; larger, the iterations have something to disagree about.
    with torch.no_grad():
        model.updateformer.flow_head.weight.mul_(100)
    return model


# --- names, sizes and first weights --------------------------------------------------------------


def test_official_model_has_the_official_state() -> None:
    model = CoTracker3Offline(window_len=60)
    state = model.state_dict()
    assert len(state) == 188
    parameters = {name: p.numel() for name, p in model.named_parameters()}
    assert sum(parameters.values()) == 25_385_700
    sizes = {"fnet": 2_632_288, "corr_mlp": 1_020_928, "updateformer": 21_732_484}
    for part, size in sizes.items():
        assert sum(n for name, n in parameters.items() if name.split(".")[0] == part) == size
    assert list(state) == ["time_emb", *parameters]
    assert state["time_emb"].shape == (1, 60, 1110)
    assert state["updateformer.virual_tracks"].shape == (1, 64, 1, 384)
    assert state["corr_mlp.fc1.weight"].shape == (384, 2401)
    assert all(value.dtype == torch.float32 for value in state.values())


def test_parameters_stand_in_the_official_order() -> None:
    layers = {"attn": ["to_q", "to_kv", "to_out"], "mlp": ["fc1", "fc2"]}
    self_block = [f"{part}.{layer}" for part in ("attn", "mlp") for layer in layers[part]]
    cross_block = ["norm_context", *(name.replace("attn.", "cross_attn.") for name in self_block)]
    expected = ["fnet.conv1"]
    for layer in range(1, 5):
        expected += [f"fnet.layer{layer}.0.conv1", f"fnet.layer{layer}.0.conv2"]
        expected += [f"fnet.layer{layer}.0.downsample.0"] if layer > 1 else []
        expected += [f"fnet.layer{layer}.1.conv1", f"fnet.layer{layer}.1.conv2"]
    expected += ["fnet.conv2", "fnet.conv3"]
    heads = ["input_transform", "flow_head", "vis_conf_head"]
    expected += [f"updateformer.{name}" for name in heads]
    for group, block, depth in [
        ("time_blocks", self_block, TINY["time_depth"]),
        ("space_virtual_blocks", self_block, TINY["space_depth"]),
        ("space_point2virtual_blocks", cross_block, TINY["space_depth"]),
        ("space_virtual2point_blocks", cross_block, TINY["space_depth"]),
    ]:
        expected += [f"updateformer.{group}.{i}.{name}" for i in range(depth) for name in block]
    expected += ["corr_mlp.fc1", "corr_mlp.fc2"]
    names = [name for name, _ in tiny().named_parameters()]
    names.remove("updateformer.virual_tracks")
    assert names == [f"{name}.{kind}" for name in expected for kind in ("weight", "bias")]


def test_first_weights_follow_the_official_rule() -> None:
    torch.manual_seed(0)
    former = CoTracker3Offline().updateformer
    for name, parameter in former.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
    assert former.flow_head.weight.std().item() == pytest.approx(0.001, rel=0.1)
    assert former.vis_conf_head.weight.std().item() == pytest.approx(0.001, rel=0.1)
    assert former.virual_tracks.std().item() == pytest.approx(1, rel=0.05)
    bound = (6 / (384 + 768)) ** 0.5  # Xavier's
    assert former.time_blocks[0].attn.to_kv.weight.abs().max().item() == pytest.approx(
        bound, rel=1e-3
    )
    conv = CoTracker3Offline().fnet.layer1[0].conv1.weight
    assert conv.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)


def test_without_a_head_of_their_own_visibility_and_confidence_come_from_the_flow_head() -> None:
    model = tiny(linear_layer_for_vis_conf=False)
    assert model.updateformer.flow_head.weight.shape == (4, 32)
    assert not any("vis_conf_head" in name for name in model.state_dict())
    _, visibility, _, _ = model(*tracker_inputs(), iters=1)
    assert visibility.std() > 0


# --- forward -------------------------------------------------------------------------------------


def test_a_batch_of_two_is_two_single_videos() -> None:
    """To rounding, which differs with the batch size and is amplified by the iterations."""
    model, (video, queries) = tiny(), tracker_inputs()
    both = model(video, queries, iters=3)
    disturbed = copy.deepcopy(model)
    with torch.no_grad():
        for weight in disturbed.parameters():
            weight.mul_(1 + 1e-6 * torch.randn_like(weight))
    rounded = disturbed(video, queries, iters=3)
    for b in range(2):
        alone = model(video[b : b + 1], queries[b : b + 1], iters=3)
        for name in ("tracks_xy", "visibility", "confidence"):
            together = getattr(both, name)
            rounding = float((getattr(rounded, name) - together).abs().max())
            assert rounding < 0.05  # of what tells two videos apart
            difference = (together[b : b + 1] - getattr(alone, name)).abs().max()
            assert difference <= 1e-4 + 2 * rounding
    assert (both.tracks_xy[0] - both.tracks_xy[1]).abs().max() > 1


def test_shapes_and_train_data() -> None:
    model, (video, queries) = tiny(), tracker_inputs(points=7)
    tracks, visibility, confidence, nothing = model(video, queries, iters=3)
    assert nothing is None
    assert tracks.shape == (2, 6, 7, 2)
    assert visibility.shape == confidence.shape == (2, 6, 7)
    train_data = model(video, queries, iters=3, is_train=True).train_data
    assert [len(window) for window in train_data.windows] == [3]
    last = train_data.windows[0][-1]
    assert torch.equal(last.tracks_xy, tracks)
    assert torch.equal(last.visibility.sigmoid(), visibility)
    assert torch.equal(last.confidence.sigmoid(), confidence)
    assert torch.equal(train_data.valid_mask, torch.ones(2, 6, 7))


def test_the_order_of_the_points_does_not_matter() -> None:
    model, (video, queries) = tiny(), tracker_inputs()
    order = torch.tensor([3, 0, 4, 2, 1])
    tracks = model(video, queries, iters=2).tracks_xy
    permuted = model(video, queries[:, order], iters=2).tracks_xy
    torch.testing.assert_close(permuted, tracks[:, :, order], atol=1e-4, rtol=0)


def test_uint8_and_float_videos_are_the_same() -> None:
    model, (video, queries) = tiny(), tracker_inputs()
    assert torch.equal(model(video, queries)[0], model(video.float(), queries)[0])


@pytest.mark.parametrize(
    "recompute",
    ["normed", "features", "correlation", "hidden", "update", "together"],
)
def test_what_is_computed_again_changes_no_gradient(
    recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does adding up the gradients of all iterations together, as it is done on CUDA."""
    results = []
    for name in (None, recompute):
        model, (video, queries) = tiny(recompute=() if name is None else (name,)), tracker_inputs()
        if name == "together":
            monkeypatch.setattr("overt.recipes.cotracker3.model.reused", together)
        model(video, queries, iters=2).tracks_xy.square().mean().backward()
        results.append({name: one.grad for name, one in model.named_parameters()})
    plain, again = results
    for name, expected in plain.items():
        torch.testing.assert_close(again[name], expected, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("points", [4, 5])
def test_points_are_compared_in_halves_with_the_same_result(points: int) -> None:
    model, (video, queries) = tiny(), tracker_inputs()
    pyramid = model.encode(video)
    queries = torch.cat([queries, queries], dim=1)[:, :points]
    cells_xy = (queries[..., 1:] / model.stride).unsqueeze(2).expand(-1, -1, video.shape[1], -1)
    support = model.query_features(pyramid, queries[..., 0].long(), cells_xy[:, :, 0])
    compare, _ = model.repeated(pyramid)
    seen: list[int] = []

    def counted(*given: Any) -> Tensor:
        seen.append(given[1].shape[1])
        return compare(*given)

    found = in_halves(counted)(pyramid, support, cells_xy)
    torch.testing.assert_close(found, compare(pyramid, support, cells_xy))
    assert seen == ([2, 2] if points == 4 else [5])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("frames", [16, 48, 200])
def test_on_cuda_attention_within_is_attention_to_itself(frames: int) -> None:
    layer = Attention(96, heads=2).cuda()
    x = torch.randn(6, frames, 96, device="cuda", requires_grad=True)
    inputs = (x, *layer.parameters())
    expected = layer(x, x)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weights).sum(), inputs)
    with torch.autocast("cuda", torch.bfloat16):
        result = layer.within(x)
    found = torch.autograd.grad((result.float() * weights).sum(), inputs)
    for one, other in zip((result, *found), (expected, *wanted), strict=True):
        assert (one.float() - other).norm() < 2e-2 * other.norm()


def test_many_frames_are_encoded_in_chunks_with_the_same_result(monkeypatch) -> None:
    model, (video, queries) = tiny(), tracker_inputs()
    whole = model(video, queries).tracks_xy
    monkeypatch.setattr("overt.recipes.cotracker3.model.FRAMES_PER_CHUNK", 5)
    torch.testing.assert_close(model(video, queries).tracks_xy, whole, atol=1e-4, rtol=0)


def test_gradient_flows_between_iterations_through_logits_but_not_through_positions() -> None:
    model, (video, queries) = tiny(), tracker_inputs(batch=1)
    updates: list[Tensor] = []
    model.updateformer.register_forward_hook(lambda module, x, update: updates.append(update))
    _, second = model(video, queries, iters=2, is_train=True).train_data.windows[0]
    (gradient,) = torch.autograd.grad(second.visibility.sum(), [updates[0]])
    assert not gradient[..., :2].any()
    assert gradient[..., 3].any()  # the confidence reaches the visibility through the next tokens


def test_space_blocks_run_evenly_among_time_blocks() -> None:
    model = tiny(time_depth=4, space_depth=2)
    order: list[str] = []
    for name, module in model.updateformer.named_modules():
        if "_blocks." in name and name.count(".") == 1:
            module.register_forward_hook(lambda *_, name=name: order.append(name))
    model(*tracker_inputs(), iters=1)
    names = ["virtual2point", "virtual", "point2virtual"]
    space = [[f"space_{name}_blocks.{depth}" for name in names] for depth in range(2)]
    time = [f"time_blocks.{depth}" for depth in range(4)]
    assert order == [time[0], *space[0], time[1], time[2], *space[1], time[3]]


def test_every_parameter_gets_a_gradient() -> None:
    model = tiny()
    tracks, visibility, confidence, _ = model(*tracker_inputs(), iters=2)
    (tracks.mean() + visibility.mean() + confidence.mean()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("size", [(30, 40), (32, 38), (4, 40)])
def test_frames_of_an_unfit_size_are_refused(size: tuple[int, int]) -> None:
    _, queries = tracker_inputs()
    with pytest.raises(DataError, match=rf"{size[0]} x {size[1]} pixels.*model.stride=4"):
        tiny()(torch.zeros(2, 6, 3, *size), queries)


def test_relative_motion_is_zero_at_the_ends() -> None:
    positions = torch.tensor([[0.0, 0.0], [1.0, 3.0], [4.0, 2.0]])
    assert relative_motion(positions).tolist() == [
        [-1.0, -3.0, 0.0, 0.0],
        [-3.0, 1.0, 1.0, 3.0],
        [0.0, 0.0, 3.0, -1.0],
    ]


# --- time embedding ------------------------------------------------------------------------------


def test_a_checkpoint_of_another_window_length_loads() -> None:
    source, target = tiny(window_len=9), tiny(window_len=6)
    own = target.time_emb.clone()
    state = source.state_dict()
    with torch.no_grad():
        source.fnet.conv1.weight.mul_(2)
    target.load_state_dict(state, strict=True)
    assert torch.equal(target.time_emb, own)
    assert torch.equal(target.fnet.conv1.weight, source.fnet.conv1.weight)
    assert state["time_emb"].shape[1] == 9


def test_a_time_embedding_of_the_same_length_is_loaded_and_of_another_width_refused() -> None:
    model = tiny()
    state = model.state_dict() | {"time_emb": torch.full_like(model.time_emb, 0.5)}
    model.load_state_dict(state)
    assert (model.time_emb == 0.5).all()
    with pytest.raises(RuntimeError, match="time_emb"):
        model.load_state_dict(state | {"time_emb": torch.zeros(1, 9, 3)})


def test_time_embedding_is_stretched_to_the_video() -> None:
    model = tiny(window_len=4)
    assert torch.equal(model.time_embedding(4), model.time_emb)
    double = model.time_embedding(8)[0]
    torch.testing.assert_close(double[0], model.time_emb[0, 0])
    torch.testing.assert_close(double[3], 0.75 * model.time_emb[0, 1] + 0.25 * model.time_emb[0, 2])


# --- precision and learning ----------------------------------------------------------------------


def test_bf16_autocast_keeps_positions_and_logits_in_float32() -> None:
    model, (video, queries) = tiny(), tracker_inputs()
    exact = model(video, queries, iters=2)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(video, queries, iters=2, is_train=True)
    for estimate in rounded.train_data.windows[0]:
        assert {tensor.dtype for tensor in estimate} == {torch.float32}
    rounded.tracks_xy.sum().backward()
    assert model.fnet.conv1.weight.grad.isfinite().all()
    moved = (exact.tracks_xy - queries[:, None, :, 1:]).abs().mean()
    assert (rounded.tracks_xy - exact.tracks_xy).abs().mean() < 0.2 * moved


def test_one_compiled_program_serves_all_layers_and_iterations() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    model, (video, queries) = tiny(time_depth=3, space_depth=3), tracker_inputs()
    for unit in (*model.updateformer.layers, model.token_parts):
        unit.compile(backend=counter)
    model(video, queries, iters=3).tracks_xy.sum().backward()
    assert counter.frame_count == 2
