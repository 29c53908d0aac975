"""The chains of examples/pcdiff are what the documentation says."""

import pytest
from toy_runs import HERE

from overt.config import load
from overt.tools.launch.stages import plan, read_stages

EXAMPLE = HERE.parent / "examples" / "pcdiff"


@pytest.mark.parametrize("name", ["tiny", "medium"])
def test_both_stages_see_the_same_skulls(name: str) -> None:
    points, volumes = plan(read_stages(EXAMPLE / f"stages_{name}.yaml"))
    first, second = (load(stage.words).settings.data for stage in (points, volumes))
    assert first.root == second.root
    assert first.synthetic == second.synthetic
    assert first.num_points == second.num_points
