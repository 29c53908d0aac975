"""One version everywhere, and the files that a hosted project has are valid."""

import re
import tomllib

import pytest
import yaml
from toy_runs import HERE

import overt

ROOT = HERE.parent


def test_one_version_everywhere() -> None:
    version = overt.__version__
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == version
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == version
    changelog = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert versions[:2] == ["Unreleased", version]
    assert f"`v{version}`" in changelog


@pytest.mark.parametrize("file", sorted(ROOT.glob(".github/**/*.yml")), ids=lambda file: file.stem)
def test_templates_and_workflows_are_yaml(file) -> None:
    content = yaml.safe_load(file.read_text())
    if file.parent.name == "workflows":
        steps = [step for job in content["jobs"].values() for step in job["steps"]]
        commands = [step.get("run", "") for step in steps]
        makefile = (ROOT / "Makefile").read_text()
        for target in re.findall(r"make (\w+)", "\n".join(commands)):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    elif file.stem != "config":
        assert {"name", "description", "body"} <= content.keys()


def test_the_image_installs_what_the_package_allows() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = [line for line in project["dependencies"] if line.startswith("torch")]
    assert f'"{torch}"' in dockerfile
    extras = re.search(r"^ARG EXTRAS=(\w+)$", dockerfile, re.MULTILINE)
    assert extras
    assert extras[1] in project["optional-dependencies"]
