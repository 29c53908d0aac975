"""overt/ops/coverage/plain.py: distances from triangles, and what they leave uncovered."""

import torch

from overt.ops.coverage.plain import log_uncovered_plain, signed_distance


def test_signed_distance() -> None:
    triangle = torch.tensor([[[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]]]).expand(4, 3, 2)
    places = torch.tensor([[2.0, 1.0], [-3.0, 4.0], [-3.0, -4.0], [8.0, 8.0]])
    expected = torch.tensor([-1.0, 3.0, 5.0, 8.0 * 0.5**0.5])
    found = signed_distance(*triangle.permute(2, 1, 0), places)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_what_faces_leave_uncovered_multiplies() -> None:
    triangle = torch.tensor([[1.0, 1.0], [9.0, 1.0], [1.0, 9.0]])
    corners = torch.stack([triangle, triangle, triangle + 100])[None]  # the last is outside
    drawn = torch.ones(1, 3, dtype=torch.bool)
    total, needed = log_uncovered_plain(corners, drawn, (12, 12), 0.25, 1.0, None)
    single, _ = log_uncovered_plain(corners[:, :1], drawn[:, :1], (12, 12), 0.25, 1.0, None)
    torch.testing.assert_close(total, 2 * single)
    assert int(needed) == 2 * 11 * 11  # pixels 0 to 10 of both boxes
    assert float(single[0, 3, 3].exp()) < 0.01
    assert float(single[0, 11, 11]) == 0.0
    nothing, _ = log_uncovered_plain(corners, ~drawn, (12, 12), 0.25, 1.0, None)
    assert float(nothing.abs().max()) == 0.0
