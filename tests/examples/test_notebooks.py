"""The notebooks run from the first code cell to the last; their outputs are stripped."""

import json
from pathlib import Path

import pytest
from toy_runs import HERE

FOLDER = HERE.parent / "examples" / "notebooks"
# Text of a cell, and what stands for it here so that all three take seconds.
SMALLER = {
    "STEPS = 1200": "STEPS = 1",
    '"hjepa_digits",': '"hjepa_digits", checkpoint={"background": False},',
    'settings={"data"': 'settings={"model": {"depth": 1}, "evaluation": {"max_samples": 60, '
    '"num_workers": 0}, "data"',
    "(bank_images, test_images)": "(bank_images[:60], test_images[:60])",
    'archive["labels"]': 'archive["labels"][:60]',
    '"num_steps": 100': '"num_steps": 60',
    "grid=6": "grid=2",
    '"--frames", "16", "--size", "96", "144"': '"--frames", "4", "--size", "48", "64"',
    "[:32]": "[:4]",
}


def code_cells(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


NOTEBOOKS = {
    "track_a_video": "tracks.gif",
    "probe_an_encoder": "runs/probed/checkpoints/latest",
    "own_recipe": "guesses.png",
}


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.usefixtures("tiny_tracker")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, code in enumerate(code_cells(FOLDER / f"{name}.ipynb")):
        for there, here in SMALLER.items():
            code = code.replace(there, here)
        exec(compile(code, f"{name}.ipynb, code cell {number}", "exec"), names)
    assert (tmp_path / NOTEBOOKS[name]).exists()
    if name == "track_a_video":
        assert names["tracker"].name == "cotracker3_tiny"  # type: ignore[attr-defined]
    if name == "own_recipe":
        assert names["result"].scores["accuracy"] > 0.8  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_stripped(name: str) -> None:
    for cell in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
