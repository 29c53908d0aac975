"""The model card, README.md of a Hub folder: filled from the run, nothing invented."""

from __future__ import annotations

import shlex

from overt.tools.hub.facts import Facts

# The command that uses a trained model, by the recipe's name up to its first underscore.
USES = {
    "cotracker3": "overt track VIDEO --checkpoint {folder}",
    "lbm": "overt track VIDEO --checkpoint {folder} --online",
    "hjepa": "overt features IMAGES --checkpoint {folder} --output features.safetensors",
    "ijepa": "overt features IMAGES --checkpoint {folder} --output features.safetensors",
    "pcdiff": "overt complete SCAN --checkpoint {folder}",
    "blade": "overt estimate IMAGE --checkpoint {folder}",
}


def model_card(facts: Facts, name: str, license_name: str, part: str) -> str:
    """Return the card: front matter for the Hub, then what a reader needs to judge the model."""
    return "\n".join(
        [
            *_front_matter(facts, license_name),
            f"# {name}",
            "",
            f"Recipe `{facts.recipe}` of overt{f': {facts.summary}' if facts.summary else ''}.",
            f"Weights: {'average (EMA)' if part == 'ema' else 'model'} after step {facts.step:,}.",
            *[f"Needs the frozen weights of `{base}`, not included." for base in facts.bases],
            "",
            *_use(facts, name),
            *_data(facts),
            *_scores(facts),
            *_training(facts),
            "## License",
            "",
            license_name
            if license_name != "unknown"
            else "Not stated by the author of this model.",
            "",
        ]
    )


def _front_matter(facts: Facts, license_name: str) -> list[str]:
    tags = ["overt", "pytorch", "computer-vision", facts.recipe]
    lines = ["---", f"license: {license_name}", "library_name: overt", "tags:"]
    return [*lines, *(f"- {tag}" for tag in tags), "---", ""]


def _use(facts: Facts, name: str) -> list[str]:
    use = USES.get(facts.recipe.partition("_")[0])
    quoted = shlex.quote(name)
    commands = [use.format(folder=quoted)] if use else []
    commands += [f"overt evaluate checkpoint={quoted} data.root=DATA"]
    commands += [f"overt train recipe={facts.recipe} checkpoint.init_from={quoted} data.root=DATA"]
    python = ["import overt", "", f'tracker = overt.load_tracker("{name}")']
    blocks = ["```bash", "pip install overt", *commands, "```", ""]
    if use and "overt track" in use:
        blocks += ["```python", *python, "```", ""]
    return ["## Use", "", *blocks]


def _data(facts: Facts) -> list[str]:
    data = facts.settings.get("data") or {}
    rows = [
        (key, value)
        for key in ("root", "val_root", "sources", "textures", "synthetic", "held_out")
        if (value := data.get(key)) is not None
    ]
    if not rows:
        return []
    lines = [f"| `data.{key}` | {_cell(value)} |" for key, value in rows]
    return ["## Training data", "", "| setting | value |", "|---|---|", *lines, ""]


def _cell(value: object) -> str:
    text = str(value)
    return f"`{text if len(text) < 200 else text[:197] + '...'}`".replace("|", "\\|")


def _scores(facts: Facts) -> list[str]:
    if not facts.scores:
        return ["## Scores", "", "None were recorded; run `overt evaluate` and export again.", ""]
    names = sorted({name for score in facts.scores for name in facts.baselines(score)})
    before = ["before training"] if facts.initial_scores else []
    head = ["score", "this model", *before, *names]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for score, value in facts.own_scores().items():
        baselines = facts.baselines(score)
        cells = [f"`{score}`", _number(value)]
        cells += [_number(facts.initial_scores.get(score))] if before else []
        cells += [_number(baselines.get(name)) for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    note = (
        [] if names or before else ["", "No baseline was recorded: interpret the scores with care."]
    )
    return ["## Scores", "", f"From {facts.scored_on}.", "", *lines, *note, ""]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _training(facts: Facts) -> list[str]:
    command = ["```bash", facts.command, "```", ""] if facts.command else []
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    return [
        "## Training",
        "",
        *command,
        "`config.yaml` has every setting; of absolute paths only the last component is kept.",
        "",
        f"Versions: {versions}.",
        "",
    ]
