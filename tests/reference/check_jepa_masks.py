"""One check for the recorded statistics of the published mask samplers."""

import dataclasses
import math

import numpy as np
import pytest
from jepa_cases import Case, Tensors

from overt.recipes.hjepa import masks

EXACT = 1e-12
GROUPS, RUNS_PER_GROUP = 3, 8
RUNS = GROUPS * RUNS_PER_GROUP
ROUNDING = 1e-6  # frequencies are recorded in float32


class Tally:
    """Counts over many draws: union of the targets, context, and where both lie."""

    def __init__(self, rule: masks.MaskRule, samples: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.samples = samples
        self.unions, self.contexts = np.zeros((2, samples, rule.grid[0] * rule.grid[1]), bool)
        self.block_patches = np.zeros(samples)
        self.overlap = np.zeros(samples)
        for number in range(samples):
            (context,), blocks = rule.draw(rng)
            targets = [masks.patches_of([block], rule.grid) for block in blocks]
            self.unions[number, np.concatenate(targets)] = True
            self.contexts[number, context] = True
            sizes = sum(map(len, targets))
            self.block_patches[number] = sizes / len(targets)
            self.overlap[number] = self.unions[number].sum() < sizes

    def check(self, stats: dict[str, float], tensors: Tensors, name: str, recorded: int) -> None:
        union, context = self.unions.sum(1), self.contexts.sum(1)
        # Both sides are sampled: the error of a difference.
        root = math.sqrt(1 / self.samples + 1 / recorded)
        spread = union.std(ddof=1)
        assert union.mean() == pytest.approx(stats["union_patches_mean"], abs=4 * spread * root)
        # The deviation of a deviation: more where a few unions are far from the others, as on a
        # small grid, than for a distribution near normal.
        tails = math.sqrt(max(kurtosis(union) - 1, 0)) / 2
        error = 4 * spread * max(tails, 1.0) * root
        assert spread == pytest.approx(stats["union_patches_std"], abs=error)
        error = 4 * context.std(ddof=1) * root
        assert context.mean() == pytest.approx(stats["context_patches_mean"], abs=error)
        share = stats["targets_overlap_fraction"]
        error = 4 * math.sqrt(max(share * (1 - share), 1 / recorded)) * root
        assert self.overlap.mean() == pytest.approx(share, abs=error)
        if "block_patches_mean" in stats:
            error = 4 * self.block_patches.std(ddof=1) * root
            assert self.block_patches.mean() == pytest.approx(
                stats["block_patches_mean"], abs=error
            )
        if "context_empty_fraction" in stats:
            share = stats["context_empty_fraction"]
            error = 4 * math.sqrt(max(share, 1 / recorded)) * root
            assert (context == 0).mean() == pytest.approx(share, abs=error)
        for kind, drawn in (("target_union", self.unions), ("context", self.contexts)):
            expected = tensors[f"{name}.{kind}_frequency"].numpy()
            check_frequencies(drawn.mean(0), expected, root)


def kurtosis(values: np.ndarray) -> float:
    """3 for a normal distribution."""
    squares = (values - values.mean()) ** 2
    return float(np.mean(squares**2) / max(np.mean(squares) ** 2, 1e-12))


def check_frequencies(found: np.ndarray, expected: np.ndarray, root: float) -> None:
    """Every patch within 5 standard errors (there are 196 of them), all together within noise."""
    error = np.sqrt(np.maximum(expected * (1 - expected), 1e-3)) * root
    score = (found - expected) / error
    assert np.abs(score).max() < 5
    assert np.sqrt(np.mean(score**2)) < 1.6


def check_masks(case: Case, tensors: Tensors) -> None:
    samples, stats = 2000, case["stats"]
    for number, kind in enumerate(("hierarchical", "multiblock")):
        options = case[f"{kind}_kwargs"]
        side = options["input_size"] // options["patch_size"]
        if kind == "multiblock":
            own = {
                "target_scale": options.get("target_scale", (0.15, 0.2)),
                "aspect": options.get("aspect_ratio_range", (0.75, 1.5)),
                "context_scale": options.get("context_scale", (0.85, 1.0)),
            }
            rule = masks.multiblock_rule(
                (side, side),
                **{key: tuple(pair) for key, pair in own.items()},
                num_targets=options.get("num_target_masks", 4),
            )
            rules = {"multiblock": rule}
        else:
            rules = {
                f"hierarchical.level_{level}": masks.hierarchical_rule(
                    (side, side),
                    level,
                    options["num_hierarchies"],
                    tuple(options.get("base_scale", (0.05, 0.15))),
                    tuple(options.get("aspect_ratio_range", (0.75, 1.5))),
                    options.get("num_target_masks", 4),
                    options.get("scale_progression", "geometric"),
                )
                for level in range(options["num_hierarchies"])
            }
            for rule, recorded in zip(rules.values(), case["level_configs"], strict=True):
                assert rule.target_scale == pytest.approx(recorded["target_scale"])
                assert rule.context_scale == pytest.approx(recorded["context_scale"])
        for name, rule in rules.items():
            # The reference lets a context be empty.
            tally = Tally(dataclasses.replace(rule, min_keep=0), samples, seed=number)
            tally.check(stats[name], tensors, name, case["samples"])
    check_official_masks(case, tensors)


def check_official_masks(case: Case, tensors: Tensors) -> None:
    options, stats = case["ijepa_kwargs"], case["stats"]["ijepa"]
    grid = tuple(side // options["patch_size"] for side in options["input_size"])
    rule = masks.OfficialRule(
        grid,
        tuple(options["pred_mask_scale"]),
        tuple(options["aspect_ratio"]),
        tuple(options["enc_mask_scale"]),
        options["npred"],
        options["nenc"],
        options["min_keep"],
        options["allow_overlap"],
    )
    sizes = [rule.sizes(seed) for seed in range(len(tensors["ijepa.block_sizes_by_seed"]))]
    assert [[*target, *context] for target, context in sizes] == (
        tensors["ijepa.block_sizes_by_seed"].tolist()
    )
    runs = [OfficialRun(rule, sizes[: stats["batches"]], stats["batch"], n) for n in range(RUNS)]
    for run in runs:
        assert run.targets == pytest.approx(stats["pred_kept_mean"], rel=EXACT)
    assert_typical([np.array([run.kept]) for run in runs], np.array([stats["context_kept_mean"]]))
    frequency = tensors["ijepa.context_frequency"].numpy()
    assert_typical([run.frequency for run in runs], frequency)
    # What makes this sampler one to be compared with only: the last rows are hardly ever seen.
    rows = [run.frequency.reshape(grid).mean(1) for run in runs]
    assert_typical(rows, frequency.reshape(grid).mean(1))


class OfficialRun:
    """As many batches as were recorded, each context cut to the shortest of its batch."""

    def __init__(
        self,
        rule: masks.OfficialRule,
        sizes: list[tuple[masks.Grid, masks.Grid]],
        batch: int,
        seed: int,
    ) -> None:
        rng = np.random.default_rng(seed)
        kept, targets = [], []
        seen = np.zeros(rule.grid[0] * rule.grid[1])
        for target, context in sizes:
            drawn = [rule.draw_blocks(target, context, rng) for _ in range(batch)]
            shortest = min(len(patches) for contexts, _ in drawn for patches in contexts)
            kept.append(shortest)
            targets.append(min(block[2] * block[3] for _, blocks in drawn for block in blocks))
            for contexts, _ in drawn:
                seen[contexts[0][:shortest]] += 1
        self.kept, self.targets = np.mean(kept), np.mean(targets)
        self.frequency = seen / (len(sizes) * batch)


def assert_typical(runs: list[np.ndarray], recorded: np.ndarray) -> None:
    """The recording is one run more: hardly farther from the others than the farthest of ours.

    That is the farthest of eight, as the mean over groups: of one group it varies so much that one
    recording in twenty would fail by chance.
    How far depends on grid and batch: at 14 x 14 and 11 batches of 64, up to 0.1 in a frequency.
    """
    total = np.sum(runs, axis=0)
    others = [(total - run) / (len(runs) - 1) for run in runs]
    off = np.array([np.abs(run - mean).max() for run, mean in zip(runs, others, strict=True)])
    farthest = off.reshape(GROUPS, RUNS_PER_GROUP).max(1).mean()
    assert np.abs(recorded - total / len(runs)).max() <= 1.4 * farthest + ROUNDING
