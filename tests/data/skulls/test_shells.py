"""overt/data/skulls/shells.py: shells with defects where their names say."""

import numpy as np

from overt.data.skulls import shells
from overt.data.skulls.lists import DEFECTS


def test_defects_are_where_their_names_say() -> None:
    complete = shells.make_shell(np.random.default_rng(0), 32)
    rng = np.random.default_rng(1)
    middle = {
        defect: np.argwhere(shells.take_ball(complete, defect, rng)).mean(axis=0) / 32 - 0.5
        for defect in DEFECTS["skullbreak"]
    }
    assert middle["bilateral"][2] > 0.15  # above
    assert middle["frontoorbital"][1] < -0.15  # in front
    assert middle["parietotemporal"][0] > 0.1  # at the side
