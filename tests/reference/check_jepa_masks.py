"""One check for the recorded statistics of the published mask samplers."""

import dataclasses
import math

import numpy as np
import pytest
from jepa_cases import Case, Tensors

from overt.recipes.hjepa import masks

EXACT = 1e-12


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
        # The deviation of a deviation, for a distribution that is not far from normal.
        assert spread == pytest.approx(stats["union_patches_std"], abs=4 * spread * root)
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
                    tuple(options["base_scale"]),
                    tuple(options["aspect_ratio_range"]),
                    options["num_target_masks"],
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
    rng = np.random.default_rng(0)
    kept, targets = [], []
    seen = np.zeros(grid[0] * grid[1])
    for target, context in sizes[: stats["batches"]]:
        drawn = [rule.draw_blocks(target, context, rng) for _ in range(stats["batch"])]
        shortest = min(len(contexts[0]) for contexts, _ in drawn)
        kept.append(shortest)
        targets.append(min(block[2] * block[3] for _, blocks in drawn for block in blocks))
        for contexts, _ in drawn:
            seen[contexts[0][:shortest]] += 1
    assert np.mean(targets) == pytest.approx(stats["pred_kept_mean"], rel=EXACT)
    # The mean of 11 batches scatters by some 3 %, and so does everything that follows from it.
    assert np.mean(kept) == pytest.approx(stats["context_kept_mean"], rel=0.12)
    frequency = seen / (stats["batches"] * stats["batch"])
    assert np.abs(frequency - tensors["ijepa.context_frequency"].numpy()).max() < 0.12
    # What makes this sampler one to be compared with only: the last rows are hardly ever seen.
    rows = frequency.reshape(grid).mean(1)
    assert rows[-1] < 0.1 * rows[:4].mean()
