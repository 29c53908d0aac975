"""The contract of a recipe as a kit: `check_recipe` tries what the engine relies on.

from overt.testing import check_recipe

def test_my_recipe() -> None:
    check_recipe("my_recipe_tiny", packages=["my_recipe"])
"""

from overt.testing.checks import CHECKS, check_recipe
from overt.testing.subject import Skipped, Subject

__all__ = ["CHECKS", "Skipped", "Subject", "check_recipe"]
