"""overt/recipes/lbm: keys, shapes, and what the saving of work and memory must not change."""

import math

import pytest
import torch
from small_recipes import small_lbm
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from overt.recipes.lbm.loss import Prediction, true_cells
from overt.recipes.lbm.model import LBM


def clip(batch: int = 2, frames: int = 4, points: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """A video, queries in various frames, and true cells."""
    generator = torch.Generator().manual_seed(3)
    video = torch.randint(256, (batch, frames, 3, 32, 32), generator=generator).to(torch.uint8)
    queries = torch.rand(batch, points, 3, generator=generator) * 32
    queries[..., 0] = torch.randint(frames, (batch, points), generator=generator)
    cells = torch.randint(64, (batch, frames, points), generator=generator)
    return video, queries, cells


def total(prediction: Prediction) -> Tensor:
    parts = [prediction.points_xy, prediction.visibility, prediction.rho, prediction.entropy]
    return torch.stack([part.sum() for part in (*parts, *prediction.candidates_rho[:-1])]).sum()


def test_the_official_size_has_the_official_keys() -> None:
    with torch.device("meta"):
        model = LBM()
    state = model.state_dict()
    assert len(state) == 336
    assert sum(value.numel() for value in model.parameters()) == 17_822_022
    assert sum(value.numel() for value in model.backbone.parameters()) == 6_007_296
    assert state["transformer.layers.1.lattice_attention.sampling_offsets.weight"].shape == (
        288,
        256,
    )
    assert state["transformer.collision_mem_layer.attention_weights.bias"].shape == (64,)
    assert state["transformer.layers.2.collision_time_emb"].shape == (1, 13, 256)
    assert [layer.candidates for layer in model.transformer.layers] == [9, 4, 1]


def test_recomputing_changes_neither_gradients_nor_statistics() -> None:
    """Also with dropout and forgotten entries, which must fall on the same places again."""
    video, queries, cells = clip()
    results = []
    for recompute in ("none", "maps", "frames"):
        model = small_lbm(recompute=recompute, dropout=0.2, random_memory_mask_drop=0.3)
        torch.manual_seed(5)
        value = total(model(video, queries, cells))
        value.backward()
        results.append((value, dict(model.named_parameters()), dict(model.named_buffers())))
    (value, parameters, buffers), *others = results
    for again, parameters_again, buffers_again in others:
        torch.testing.assert_close(again, value)
        for name, parameter in parameters.items():
            torch.testing.assert_close(parameters_again[name].grad, parameter.grad, msg=name)
        for name, buffer in buffers.items():
            torch.testing.assert_close(buffers_again[name], buffer, msg=name)


def test_every_trained_parameter_gets_a_gradient() -> None:
    model = small_lbm(dropout=0.1)
    video, queries, cells = clip()
    total(model(video, queries, cells)).backward()
    idle = [name for name, value in model.named_parameters() if value.grad is None]
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad]
    assert (
        idle
        == frozen
        == [f"transformer.layers.2.reference_rho.{part}" for part in ("weight", "bias")]
    )


def test_points_do_not_know_of_each_other() -> None:
    model = small_lbm().eval()
    video, queries, _ = clip()
    with torch.no_grad():
        together = model(video, queries).points_xy
        alone = model(video, queries[:, 1:2]).points_xy
    torch.testing.assert_close(alone[:, :, 0], together[:, :, 1], atol=1e-4, rtol=1e-4)


def test_frames_before_a_query_do_not_matter_after_it() -> None:
    model = small_lbm(memory_size=4).eval()
    video, queries, _ = clip(batch=1)
    queries[..., 0] = 2
    other = video.clone()
    other[:, :2] = 255 - other[:, :2]
    with torch.no_grad():
        found, again = (model(one, queries).points_xy[:, 2:] for one in (video, other))
    torch.testing.assert_close(again, found)


def test_only_entries_of_seen_and_visible_frames_are_recalled() -> None:
    video, queries, _ = clip(batch=1)
    queries[..., 0] = 0
    never, always = (small_lbm(visible_threshold=value).eval() for value in (0.999999, 1e-6))
    with torch.no_grad():
        forgotten = never(video, queries).points_xy
        remembered = always(video, queries).points_xy
        first_only = never(video[:, 3:], queries).points_xy
    assert not torch.equal(forgotten[:, 3], remembered[:, 3])
    assert first_only.shape[1] == 1


class CountSyncs(TorchDispatchMode):
    """Counts the operations that make the host wait for a device, or shapes depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), named=None):  # type: ignore[no-untyped-def]
        name = str(function)
        if any(
            word in name for word in ("_local_scalar_dense", "nonzero", "masked_select", "unique")
        ):
            self.found.append(name)
        return function(*arguments, **(named or {}))


def test_nothing_in_the_step_waits_for_the_device() -> None:
    model = small_lbm(dropout=0.1, random_memory_mask_drop=0.1, recompute="frames")
    video, queries, cells = clip()
    with CountSyncs() as counter:
        total(model(video, queries, cells)).backward()
    assert counter.found == []


def test_the_cells_are_numbered_row_by_row_and_the_outside_is_zero() -> None:
    places = torch.tensor(
        [[0.0, 0.0], [31.9, 0.0], [32.0, 5.0], [5.0, 9.0], [-0.1, 3.0], [4.0, 63.9]]
    )
    assert true_cells(places, (64, 32)).tolist() == [0, 7, 0, 17, 0, 121]


def test_the_first_guess_is_a_uniform_one() -> None:
    """The entropy of the true cell among P cells begins near log P, at a high temperature."""
    model = small_lbm(temperature=1e3)
    video, queries, cells = clip()
    entropy = model(video, queries, cells).entropy
    assert entropy.shape == (3, 2, 4, 5)
    assert entropy.mean().item() == pytest.approx(math.log(64), rel=1e-3)


@pytest.mark.long
def test_all_frames_share_one_compiled_graph() -> None:
    """The first frame, whose memory is empty, must not look different to the compiler."""
    from torch._dynamo.testing import CompileCounter

    video, queries, cells = clip(batch=1, frames=2, points=3)
    counter = CompileCounter()
    results = []
    for backend in (None, counter):
        model = small_lbm(num_layers=2, num_levels=2, dropout=0.1, recompute="maps")
        if backend is not None:
            model.transformer.compile(backend=backend, fullgraph=True)
        torch.manual_seed(5)
        results.append(total(model(video, queries, cells)).item())
    assert results[1] == pytest.approx(results[0], rel=1e-5)
    assert counter.frame_count == 1
