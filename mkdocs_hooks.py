"""Pages of the site that are not in docs/: recipes, examples, the project's files, the API.

Links that lead out of docs/ get a page here: a README its own, a source file a listing. So every
link of a page works in the site, in the repository and in `overt docs`.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
CODE = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
PROJECT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PROJECT |= {"SECURITY.md": "security.md", "CODE_OF_CONDUCT.md": "code_of_conduct.md"}
PROJECT |= {"README.md": "index.md"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".cff": "yaml"}
TRAINING = ("configure", "train", "evaluate", "Result", "load_tracker", "load_checkpoint")


def api_pages() -> dict[str, str]:
    """Return the reference of the public names, for mkdocstrings to fill."""
    import overt

    homes = {"train": "overt.api.train", "load_checkpoint": "overt.checkpoint.weights.load_weights"}
    first = [*TRAINING, *(name for name in overt.__all__ if name not in TRAINING)]
    names = [name for name in first if name != "testing"]  # it has a page
    parts = "\n\n".join(
        f"::: {homes.get(name, 'overt.' + name)}"
        + (f'\n    options:\n      heading: "{name}"\n' if name in homes else "")
        for name in names
    )
    modules = {
        name: f"# overt.{name}\n\n::: overt.{name}\n    options:\n      show_root_heading: false\n"
        "      show_root_toc_entry: false\n"
        for name in ("recipe", "tasks", "testing")
    }
    return {
        "api/index.md": f"# overt\n\nPublic names of `import overt`.\n\n{parts}\n",
        **{f"api/{name}.md": text for name, text in modules.items()},
    }


def readme_pages() -> dict[str, Path]:
    """Return the files outside docs/ that have a page, by the page's path in the site."""
    recipes = {f"recipes/{file.parent.name}.md": file for file in ROOT.glob("overt/recipes/*/*.md")}
    examples = {f"examples/{file.parent.name}.md": file for file in ROOT.glob("examples/*/*.md")}
    project = {page: ROOT / name for name, page in PROJECT.items() if name != "README.md"}
    return recipes | examples | {page: file for page, file in project.items() if file.is_file()}


def linked_sources(texts: dict[Path, str]) -> dict[str, Path]:
    """Return the source files and folders that pages link to, by their page in the site."""
    sources = {}
    for origin, text in texts.items():
        for _, target, _ in LINK.findall(CODE.sub("", text)):
            path = target.partition("#")[0]
            if not path or re.match(r"\w+:", path):
                continue
            file = Path(os.path.normpath(origin.parent / path))
            inside = file.is_relative_to(ROOT) and not file.is_relative_to(ROOT / "docs")
            if inside and file.exists() and file.suffix != ".md":
                sources[source_page(file)] = file
    return sources


def source_page(file: Path) -> str:
    return f"source/{file.relative_to(ROOT).as_posix()}.md"


def listing(file: Path) -> str:
    """Return a page that shows a file, or the names of a folder's files."""
    name = file.relative_to(ROOT).as_posix()
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n"
    if file.is_dir():
        return head + "\n".join(f"- `{path.name}`" for path in sorted(file.glob("[!_]*"))) + "\n"
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        return f"---\nsearch:\n  exclude: true\n---\n\n{cells(text)}"
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{head}{fence}{LANGUAGES.get(file.suffix, 'text')}\n{text}\n{fence}\n"


def cells(notebook: str) -> str:
    """Return a notebook as a page."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
    return "\n\n".join(parts) + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    readmes = readme_pages()
    texts = {file: file.read_text(encoding="utf-8") for file in readmes.values()}
    for file in sorted((ROOT / "docs").rglob("*.md")):
        texts[file] = file.read_text(encoding="utf-8")
    sources = linked_sources(texts)
    pages = {page: texts[file] for page, file in readmes.items()}
    pages |= {page: listing(file) for page, file in sources.items()}
    pages |= api_pages()
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    config.extra["page_of"] = {file: page for page, file in (readmes | sources).items()}
    config.extra["origin_of"] = readmes
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to the pages of the site."""
    here = page.file.src_uri
    if here.startswith(("source/", "api/")):
        return markdown
    origin = config.extra["origin_of"].get(here, ROOT / "docs" / here)
    page_of = config.extra["page_of"]

    def lead(match: re.Match[str]) -> str:
        target = match[2]
        path, mark, fragment = target.partition("#")
        if not path or re.match(r"\w+:", path):
            return match[0]
        file = Path(os.path.normpath(origin.parent / path))
        if file in page_of:
            goal = page_of[file]
        elif file.is_relative_to(ROOT / "docs"):
            goal = file.relative_to(ROOT / "docs").as_posix()
        elif file == ROOT / "README.md":
            goal = "index.md"
        else:
            return match[0]  # the strict build reports it
        relative = posixpath.relpath(goal, posixpath.dirname(here))
        return f"{match[1]}{relative}{mark}{fragment}{match[3]}"

    parts = CODE.split(markdown)  # links between, code at the odd positions
    return "".join(part if index % 2 else LINK.sub(lead, part) for index, part in enumerate(parts))
