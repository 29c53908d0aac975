"""Put documentation and examples into the wheel, where `overt docs` and `overt examples` look.

The README in the package's metadata is read without the repository: its links become commands.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)\s#]+)(?:#[^)\s]*)?\)")
# Commands that need a checkout, and what stands for them in an installed package.
COMMANDS = {"pip install -e .    ": "pip install overt   ", "`make demo`": "`overt demo`"}


def readable_alone(text: str) -> str:
    """Return a README whose relative links became `overt docs PAGE`, or text."""

    def replace(link: re.Match[str]) -> str:
        is_picture, words, target = link[1], link[2], Path(link[3])
        if is_picture:
            return ""  # it is not in the metadata
        if target.parts[0] == "examples":
            return f"{words} (`overt examples {target.parts[1]}`)"
        page = target.parent.name if target.name == "README.md" else target.stem
        if target.suffix != ".md" or len(target.parts) == 1:
            return words  # a file of the repository
        return f"`overt docs {page}`" if words == link[3] else f"{words} (`overt docs {page}`)"

    for checkout, package in COMMANDS.items():
        text = text.replace(checkout, package)
    return LINK.sub(replace, re.sub(r"<!--.*?-->\n?", "", text))


class BuildWithPages(build_py):
    """Copy docs/ and examples/ beside the modules; an editable install reads them in place."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in ("docs", "examples"):
            target = Path(self.build_lib, "overt", "shipped", name)
            ignored = shutil.ignore_patterns("__pycache__", "runs", "*.egg-info", "site.css")
            shutil.copytree(ROOT / name, target, ignore=ignored, dirs_exist_ok=True)


setup(
    cmdclass={"build_py": BuildWithPages},
    long_description=readable_alone((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
