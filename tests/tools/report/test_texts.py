"""overt/tools/report/texts.py: texts are shown as they are, the newest first."""

from pathlib import Path

from sample_runs import EVIL, Reader

from overt.run.log import MetricsLogger
from overt.tools.report.page import build_page
from overt.tools.report.reading import open_run
from overt.tools.report.texts import LONGEST


def write(folder: Path, *texts: str) -> Path:
    logger = MetricsLogger("probe", folder, None, False, False)
    for step, text in enumerate(texts):
        logger.log_metrics({"loss": 1.0}, step, "train")
        logger.log_text("sample", text, step)
    logger.finish()
    return folder


def test_the_newest_text_comes_first_and_older_ones_fold(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "a", "first words", "second words", "third words"))
    assert [(sample.step, sample.text) for sample in run.texts][-1] == (2, "third words")
    page = build_page([run], most_pictures=2)
    assert page.index("third words") < page.index("1 earlier") < page.index("second words")
    assert "first words" not in page  # of many, the newest


def test_a_text_is_no_markup_and_not_endless(tmp_path: Path) -> None:
    page = build_page([open_run(write(tmp_path / "a", EVIL + "x" * LONGEST))])
    assert EVIL not in page
    assert f"{len(EVIL)} more characters" in Reader(page).words


def test_files_outside_of_the_run_are_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "inside")
    (tmp_path / "secret.txt").write_text("outside")
    events = folder / "events.jsonl"
    events.write_text(events.read_text().replace("pictures/sample_00000000", "../secret"))
    assert open_run(folder).texts == []
