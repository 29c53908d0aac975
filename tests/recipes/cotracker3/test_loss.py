"""CoTracker3's losses: shares of a batch add up exactly, masks and edges do what they say."""

from typing import Any

import pytest
import torch
from torch import Tensor

from overt.recipes.cotracker3.config import LossSettings
from overt.recipes.cotracker3.loss import Targets, counts, losses
from overt.recipes.cotracker3.model import Estimate

FRAMES = (6, 6, 4)  # of the windows: the last is shorter
ITERATIONS = 3
POINTS = 5


def settings(**changed: Any) -> LossSettings:
    values = {
        "visible_weight": 0.05,
        "invisible_weight": 0.01,
        "visibility_weight": 1.0,
        "confidence_weight": 1.0,
        "gamma": 0.8,
        "huber_delta": 6.0,
        "huber_visible": True,
        "huber_invisible": False,
        "confidence_radius": 12.0,
    }
    return LossSettings(**(values | changed))


def batch(size: int) -> tuple[list[list[Estimate]], list[Targets]]:
    """Predictions that require a gradient, and truth whose masks differ between samples."""
    torch.manual_seed(0)
    share = torch.linspace(0.1, 0.9, size)[:, None, None]
    windows, targets = [], []
    for frames in FRAMES:
        shape = (size, frames, POINTS)
        targets.append(
            Targets(
                torch.rand(*shape, 2) * 50,
                (torch.rand(shape) < share).float(),
                (torch.rand(shape) < share.flip(0)).float(),
            )
        )
        windows.append(
            [
                Estimate(
                    (torch.rand(*shape, 2) * 50).requires_grad_(),
                    (torch.randn(shape) * 3).requires_grad_(),
                    (torch.randn(shape) * 3).requires_grad_(),
                )
                for _ in range(ITERATIONS)
            ]
        )
    return windows, targets


def leaves(windows: list[list[Estimate]]) -> list[Tensor]:
    return [tensor for window in windows for estimate in window for tensor in estimate]


def test_shares_of_a_batch_add_up_to_the_batch() -> None:
    windows, targets = batch(4)
    whole = losses(windows, targets, counts(targets), settings())
    gradients = torch.autograd.grad(sum(whole.values()), leaves(windows))

    parts = [[Targets(*(x[b : b + 1] for x in target)) for target in targets] for b in range(4)]
    per_part = [counts(part) for part in parts]
    assert len({tuple(count["visible"].tolist()) for count in per_part}) == 4
    totals = {name: sum(count[name] for count in per_part) for name in per_part[0]}
    for name, total in counts(targets).items():
        assert torch.equal(totals[name], total)

    shares = []
    for b, part in enumerate(parts):
        own = [[Estimate(*(x[b : b + 1] for x in e)) for e in window] for window in windows]
        shares.append(losses(own, part, totals, settings()))
    for name, term in whole.items():
        torch.testing.assert_close(sum(share[name] for share in shares), term)
    summed = torch.autograd.grad(
        sum(term for share in shares for term in share.values()), leaves(windows)
    )
    for actual, expected in zip(summed, gradients, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-5)


def test_nothing_valid_gives_zero_position_losses_and_no_gradient() -> None:
    windows, targets = batch(2)
    targets = [target._replace(valid=torch.zeros_like(target.valid)) for target in targets]
    terms = losses(windows, targets, counts(targets), settings())
    assert terms["flow"].item() == terms["flow_invisible"].item() == 0
    gradients = torch.autograd.grad(
        terms["flow"] + terms["flow_invisible"], [e.tracks_xy for w in windows for e in w]
    )
    assert all(not gradient.any() for gradient in gradients)
    assert terms["visibility"] > 0
    assert terms["confidence"] > 0


def test_a_saturated_and_wrong_logit_still_has_a_gradient() -> None:
    windows, targets = batch(1)
    saturated = torch.full_like(windows[0][0].visibility, 200.0).requires_grad_()
    windows[0][0] = windows[0][0]._replace(visibility=saturated)
    targets = [target._replace(visible=torch.zeros_like(target.visible)) for target in targets]
    term = losses(windows, targets, counts(targets), settings())["visibility"]
    (gradient,) = torch.autograd.grad(term, [saturated])
    assert (gradient > 0).all()


def test_confidence_is_asked_within_the_radius_and_does_not_move_the_tracks() -> None:
    shape = (1, 1, 2)
    truth = Targets(torch.zeros(*shape, 2), torch.ones(shape), torch.ones(shape))
    tracks = torch.tensor([[[[12.0, 0.0], [12.0, 0.1]]]], requires_grad=True)
    logits = torch.zeros(shape, requires_grad=True)
    window = [Estimate(tracks, torch.zeros(shape), logits)]
    term = losses([window], [truth], counts([truth]), settings())["confidence"]
    gradient, moved = torch.autograd.grad(term, [logits, tracks], allow_unused=True)
    assert gradient.tolist() == [[[-0.25, 0.25]]]
    assert moved is None


@pytest.mark.parametrize(
    ("changed", "term"),
    [
        ({"visible_weight": 0.1}, "flow"),
        ({"huber_visible": False}, "flow"),
        ({"invisible_weight": 0.02}, "flow_invisible"),
        ({"huber_invisible": True}, "flow_invisible"),
        ({"visibility_weight": 2.0}, "visibility"),
        ({"confidence_weight": 2.0}, "confidence"),
        ({"confidence_radius": 3.0}, "confidence"),
    ],
)
def test_each_setting_changes_its_own_term_alone(changed: dict[str, Any], term: str) -> None:
    windows, targets = batch(2)
    before = losses(windows, targets, counts(targets), settings())
    after = losses(windows, targets, counts(targets), settings(**changed))
    assert [name for name in before if before[name].item() != after[name].item()] == [term]


def test_per_clip_is_the_mean_of_the_clips_own_losses():
    """A clip with few visible points weighs as much as any other, however a batch is split."""
    windows, targets = batch(3)
    clips = {"clips": torch.tensor(3.0)}
    together = losses(windows, targets, clips, settings(per_clip=True))
    alone = []
    for index in range(3):
        part = slice(index, index + 1)
        own = [Targets(*(value[part] for value in target)) for target in targets]
        guesses = [[Estimate(*(x[part] for x in step)) for step in window] for window in windows]
        alone.append(losses(guesses, own, counts(own), settings()))
    for name, value in together.items():
        mean = torch.stack([terms[name] for terms in alone]).mean()
        assert torch.isclose(value, mean, rtol=1e-5), name
    weighted = losses(windows, targets, counts(targets), settings())
    assert not torch.isclose(together["flow"], weighted["flow"], rtol=1e-3)
