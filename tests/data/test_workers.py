"""Loader processes begin with what their training process has imported of overt."""

import subprocess
import sys

import pytest

# Only the main process imports the recipe: workers know the module from their server, or not.
PROGRAM = """
import sys
from torch.utils.data import DataLoader
from overt.data.workers import loader_context

class HasRecipe:
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return "overt.recipes.lbm.recipe" in sys.modules

if __name__ == "__main__":
    import overt.recipes.lbm.recipe
    context = CONTEXT
    loader = DataLoader(HasRecipe(), None, num_workers=2, multiprocessing_context=context)
    print(all(loader))
"""


@pytest.mark.parametrize(
    ("context", "known"), [("loader_context()", "True"), ("'forkserver'", "False")]
)
def test_workers_are_forked_with_the_modules_of_their_training_process(tmp_path, context, known):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("CONTEXT", context))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, known), done.stderr
