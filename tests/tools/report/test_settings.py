"""overt/tools/report/settings.py: a stored configuration, flat, whatever its file holds."""

from pathlib import Path

import pytest

from overt.tools.report.settings import read_config, read_some

KEYS = frozenset(("training.num_steps", "checkpoint.metric_name"))


def test_values_have_the_types_that_overt_gives_them(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a: {b: 1e-4, c: [1, x], d: null}\ne: '1e-4'\nf: .5\n")
    assert read_config(path) == {
        "a.b": 1e-4, "a.c": [1, "x"], "a.d": None, "e": "1e-4", "f": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["training:\n  num_steps: 40\n  x:\n    num_steps: 3\n", "training: {num_steps: 40}\n"]
)
def test_some_keys_are_the_same_by_either_way(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text + "num_steps: 5\n")
    assert read_some(path, KEYS)["training.num_steps"] == 40
    assert read_config(path)["training.num_steps"] == 40


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[" * 5000, b"a: &a [*a]", b"a: [", b"- 1", b"", b"? [a]\n: 1", b"a: !!x 1",
     b"a: &a [1,1]\nb: &b [*a,*a]\n" + b"".join(
         b"%c: &%c [*%c,*%c,*%c]\n" % (n + 1, n + 1, n, n, n) for n in range(98, 120))],
)  # fmt: skip
def test_what_cannot_be_read_is_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    assert read_config(path) == {}
    read_some(path, KEYS)


@pytest.mark.parametrize(
    "text",
    [
        "exp_name: run_1\ntraining:\n  a: 1\n  b: {c: 1e-4}\nlist:\n- 1\n- 2\nlast: x\n",
        "exp_name: yes_\na:\n  b: 1\n# a remark\n  c: 2\n",
        "a: &shared {b: 1}\nc: *shared\n",
        'a: "two\n  lines"\nb: |\n  text\n\n  more\nc: 1\n',
        "a: 1\nb: 2\na: 3\n",
        "exp_name: true\n",
        "---\na: 1\n",
    ],
)
def test_sections_read_one_by_one_make_up_the_whole(tmp_path: Path, text: str) -> None:
    """Sections are read apart, since runs share most of them; that must not show."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    indented = "".join(f"  {line}\n" for line in text.removeprefix("---\n").splitlines())
    inside = tmp_path / "inside.yaml"
    inside.write_text(f"whole:\n{indented}")
    whole = {key.removeprefix("whole."): value for key, value in read_config(inside).items()}
    assert read_config(path) == whole != {}


def test_a_section_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from overt.tools.report import settings

    texts = [f"exp_name: run_{index}\nshared:\n  once: {__name__}\n" for index in range(3)]
    (tmp_path / "a.yaml").write_text(texts[0])
    first = read_config(tmp_path / "a.yaml")
    monkeypatch.setattr(settings, "_Loader", pytest.fail)
    for index, text in enumerate(texts):
        (tmp_path / "b.yaml").write_text(text)
        assert read_config(tmp_path / "b.yaml") == first | {"exp_name": f"run_{index}"}
