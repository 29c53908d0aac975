"""The chains of examples/blade are what the documentation says."""

import re

import pytest
from toy_runs import HERE

from overt.config import load
from overt.tools.launch.stages import StageCommand, plan, read_stages

EXAMPLE = HERE.parent / "examples" / "blade"


def test_the_tiny_chain_hands_depthnet_to_posenet() -> None:
    depth, pose = plan(read_stages(EXAMPLE / "stages_tiny.yaml"))
    assert (depth.name, depth.after, depth.gpus) == ("depth", [], None)
    assert pose.after == ["depth"]
    assert "model.depthnet_checkpoint=runs/blade_tiny/depth/checkpoints/best" in pose.words
    for one in (depth, pose):
        assert load(one.words).settings.data.synthetic is not None


def test_the_full_chain_has_the_published_sizes() -> None:
    depth, pose = plan(read_stages(EXAMPLE / "stages.yaml"))
    assert [(one.nodes, one.gpus) for one in (depth, pose)] == [(8, 8), (6, 8)]
    batches = [load(one.words).training.batch_size for one in (depth, pose)]
    assert batches == [2, 7]
    assert load(pose.words).settings.model.depthnet_checkpoint.endswith("depth/checkpoints/best")


@pytest.mark.parametrize("page", ["overt/recipes/blade/README.md", "docs/coming_from_blade.md"])
def test_documented_commands_of_stage_two_name_the_backbone_of_stage_one(page: str) -> None:
    """A full-size checkpoint of stage 1 does not hold it (model.depth.save_frozen=false)."""
    commands = r"overt (?:train|doctor) recipe=(blade_\w+net) ([^`\n]*)"
    found = re.findall(commands, (HERE.parent / page).read_text())
    backbones = {
        (stage, load([f"recipe={stage}", *words.split()]).settings.model.depth.backbone_checkpoint)
        for stage, words in found
    }
    assert {stage for stage, _ in backbones} == {"blade_depthnet", "blade_posenet"}
    files = {file for _, file in backbones}
    assert len(files) == 1
    assert None not in files


def test_the_chain_on_dressed_people_trains_and_is_scored_on_one_body() -> None:
    depth, pose = plan(read_stages(EXAMPLE / "stages_people.yaml"))
    for stage in (depth, pose):
        settings = load(stage.words).settings
        assert settings.data.synthetic.body == settings.model.body.model == "anny"
        assert settings.data.depth_size == settings.data.synthetic.size
        assert settings.data.is_live
    batches = [load(stage.words).training.batch_size for stage in (depth, pose)]
    assert batches == [128, 256]


def test_the_chain_for_photographs_differs_in_what_people_look_like() -> None:
    stages = plan(read_stages(EXAMPLE / "stages_photographs.yaml"))
    others = plan(read_stages(EXAMPLE / "stages_people.yaml"))
    for stage, other in zip(stages, others, strict=True):
        settings = load(stage.words).settings
        assert settings.data.is_photographic
        assert settings.data.synthetic.live_backgrounds == "backgrounds"
        assert set(own_words(other)) <= set(own_words(stage))
    assert load(stages[1].words).settings.model.keypoint_visibility


def own_words(stage: StageCommand) -> list[str]:
    """Return the settings of a stage, but for its length and the folders of its run."""
    return [word for word in stage.words if "num_steps" not in word and "runs/" not in word]
