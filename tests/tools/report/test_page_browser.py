"""The page in a real Chromium: it draws, answers the pointer and the keyboard, fetches nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page, chromium, find_chromium
from sample_runs import EVIL, write, write_evil_run, write_run

from overt.tools.report.page import build_page
from overt.tools.report.reading import open_run, open_runs

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium or Chrome on the PATH")

LOSS = "document.querySelector('#pinned .plot')"
TIP = f"{LOSS}.querySelector('.tip:not([hidden])').innerText"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        runs = [
            write_run(folder / name, patch, lr) for name, lr in (("one", "0.1"), ("two", "0.7"))
        ]
    path = folder / "report.html"
    path.write_text(build_page(open_runs(runs)))
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert PROGRAM is not None
    with chromium(PROGRAM, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page, report: Path) -> Iterator[Page]:
    """The page as it opens on a large light screen; afterwards nothing has gone wrong."""
    browser.look(1280, 800)
    browser.requests.clear()
    browser.open(report)
    browser.run("document.querySelector('#pinned').scrollIntoView({behavior: 'instant'})")
    browser.settle()
    yield browser
    assert browser.complaints == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}
    assert [url for url in browser.requests if url.startswith("file:")] == [report.as_uri()]


def box(page: Page, selector: str) -> tuple[float, float, float, float]:
    x, y, width, height = page.run(
        f"(() => {{ const r = document.querySelector({selector!r}).getBoundingClientRect();"
        "return [r.x, r.y, r.width, r.height]; })()"
    )
    return x, y, width, height


def click(page: Page, selector: str) -> None:
    page.run(f"document.querySelector({selector!r}).click()")
    page.settle()


def ink(page: Page) -> Any:
    """How many pixels of the loss are drawn in each run's color."""
    return page.run(
        f"""(() => {{
          const canvas = {LOSS}.querySelector("canvas");
          const style = getComputedStyle(document.documentElement);
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          return [0, 1].map((run) => {{
            const hex = style.getPropertyValue(`--run${{run}}`).trim();
            const rgb = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
            let count = 0;
            for (let at = 0; at < data.length; at += 4)
              if (rgb.every((value, part) => Math.abs(value - data[at + part]) < 6)
                  && data[at + 3] > 200) count += 1;
            return count;
          }});
        }})()"""
    )


DRAWN = """[...document.querySelectorAll("details[open] .plot")]
  .filter((plot) => !plot.closest("details:not([open])"))
  .map((plot) => {
    const canvas = plot.querySelector("canvas");
    if (!canvas) return 0;
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return data.filter((value, at) => at % 4 === 3 && value > 0).length;
  })"""


def test_every_curve_is_there_without_scrolling_and_in_a_print(page: Page, report: Path) -> None:
    page.look(1400, 300, dark=True)
    page.requests.clear()
    page.open(report)
    drawn = page.run(DRAWN)
    assert len(drawn) >= 8
    assert min(drawn) > 300
    assert len(drawn) < page.run("document.querySelectorAll('.plot').length")  # the rest is folded
    page.run(f"addEventListener('beforeprint', () => {{ window.inPrint = {DRAWN}; }})")
    assert len(page.call("Page.printToPDF")["data"]) > 50_000
    assert min(page.run("window.inPrint")) > 300
    assert page.run("document.documentElement.dataset.theme ?? 'none'") == "none"


def test_the_table_of_runs_sorts_by_any_column_with_the_keyboard_too(page: Page) -> None:
    names = "[...document.querySelectorAll('.sortable tbody th')].map(one => one.innerText.trim())"
    assert page.run(names) == ["one", "two"]
    button = "[...document.querySelectorAll('.sort')].find(one => one.innerText.includes('loss'))"
    page.run(f"{button}.focus()")
    for expected in (["one", "two"], ["two", "one"]):  # 0.15 and 0.75
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r")
        page.settle()
        assert page.run(names) == expected
    assert page.run(f"{button}.parentElement.ariaSort") == "descending"


def test_zeros_and_a_single_point_have_axes_that_say_so(page: Page, tmp_path: Path) -> None:
    rows = [{"step": 5, "time": 5.0, "train/loss": 0.5, "train/zero": 0.0}]
    rows += [{"step": step, "time": 1.0 * step, "train/zero": 0.0} for step in (6, 7)]
    path = tmp_path / "points.html"
    path.write_text(build_page([open_run(write(tmp_path / "run", [], rows))]))
    page.open(path)
    drawn = page.run(DRAWN)
    assert min(drawn) > 300
    x, y, width, height = box(page, "#pinned .u-over")
    page.point(x + width / 2, y + height / 2)  # the point is in the middle of both axes
    page.settle()
    assert page.run(TIP).startswith("step 5\n")
    page.point(2, 2)
    page.requests.remove(path.as_uri())


def test_curves_are_drawn_and_runs_can_be_hidden(page: Page) -> None:
    first, second = ink(page)
    assert min(first, second) > 50
    click(page, ".chip[data-run='1']")
    assert page.run("document.querySelector('.chip[data-run=\"1\"]').ariaPressed") == "false"
    alone, hidden = ink(page)
    assert alone > 50
    assert hidden == 0
    click(page, ".chip[data-run='1']")
    assert ink(page)[1] > 50


def test_hover_tells_the_values_of_all_runs_and_what_happened(page: Page) -> None:
    x, y, width, height = box(page, "#pinned .u-over")
    # The axis goes from step 2 to 40; step 14 was skipped.
    page.point(x + width * (14 - 2) / 38, y + height / 2)
    page.settle()
    tip = page.run(TIP)
    assert "step 14" in tip
    assert "one" in tip
    assert "two" in tip
    assert "skipped 14" in tip
    assert page.run("document.querySelectorAll('.tip:not([hidden])').length") == 1
    page.point(x + width - 1, y + height / 2)
    page.settle()
    tip = page.run(TIP)
    assert "step 40" in tip
    assert "0.15" in tip  # 2 / 40 + 0.1
    assert "0.75" in tip
    page.point(2, 2)


def test_a_drag_zooms_all_curves_and_back(page: Page) -> None:
    x, y, width, height = box(page, "#pinned .u-over")
    place = y + height / 2
    assert page.run("document.querySelector('#reset').hidden")
    page.point(x + width * 0.5, place)
    page.point(x + width * 0.5, place, "mousePressed", button="left", clickCount=1)
    page.point(x + width * 0.9, place, button="left")
    page.point(x + width * 0.9, place, "mouseReleased", button="left", clickCount=1)
    page.settle()
    assert not page.run("document.querySelector('#reset').hidden")
    page.point(x + 1, place)
    page.settle()
    assert "step 22" in page.run(TIP)
    click(page, "#reset")
    page.point(x, place)
    page.point(x + 1, place)
    page.settle()
    assert page.run(TIP).startswith("step 2\n")
    page.point(2, 2)


def test_the_keyboard_reads_a_curve(page: Page) -> None:
    page.run(f"{LOSS}.focus()")
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft"):
        page.press(key)
    page.settle()
    said = page.run("document.querySelector('#pinned .said').textContent")
    assert said.startswith("step 38: one 0.1526")
    label = page.run(f"{LOSS}.getAttribute('aria-label')")
    assert "train/loss. one: from 1.1 at step 2 to 0.15 at step 40" in label
    assert "1 not finite" in label


@pytest.mark.parametrize("action", ["[data-axis=hours]", "#logarithmic"])
def test_axes_can_be_changed(page: Page, action: str) -> None:
    before = page.run(f"{LOSS}.querySelector('canvas').toDataURL()")
    click(page, action)
    assert page.run(f"document.querySelector({action!r}).ariaPressed") == "true"
    assert page.run(f"{LOSS}.querySelector('canvas').toDataURL()") != before
    assert min(ink(page)) > 20


def test_smoothing_and_finding(page: Page) -> None:
    before = ink(page)
    page.run(
        "(() => { const s = document.querySelector('#smooth'); s.value = 0.9;"
        "s.dispatchEvent(new Event('input')); })()"
    )
    page.settle()
    assert ink(page) != before
    page.run(
        "(() => { const s = document.querySelector('#find'); s.value = 'LOSS';"
        "s.dispatchEvent(new Event('input')); })()"
    )
    shown = page.run(
        "[...document.querySelectorAll('.chart:not([hidden])')].map(one => one.dataset.name)"
    )
    assert shown == ["train/loss"]


def test_settings_show_differences_or_all(page: Page) -> None:
    rows = (
        "[...document.querySelectorAll('#settings-table tbody tr')]"
        ".filter(one => one.offsetHeight)"
        ".map(one => one.querySelector('th').textContent.replace(' differs', ''))"
    )
    assert page.run(rows) == ["exp_name", "optimizer.lr"]
    click(page, "#only-differences")
    assert len(page.run(rows)) > 5
    page.run(
        "(() => { const s = document.querySelector('#find-setting'); s.value = 'mode';"
        "s.dispatchEvent(new Event('input')); })()"
    )
    assert page.run(rows) == ["checkpoint.mode"]


def test_a_slider_goes_through_the_steps_of_a_picture(page: Page) -> None:
    gallery = (
        "[...document.querySelectorAll('.gallery')].find(one => one.innerText.includes('tracks'))"
    )
    source = f"{gallery}.querySelector('img').src"
    last = page.run(source)
    page.run(
        f"(() => {{ const s = {gallery}.querySelector('input'); s.value = 0;"
        "s.dispatchEvent(new Event('input')); })()"
    )
    assert page.run(f"{gallery}.querySelector('.at').textContent") == "step 10"
    assert page.run(source) != last


def test_who_wants_no_motion_gets_stills(page: Page, report: Path) -> None:
    film = "[...document.querySelectorAll('.gallery')].find(one => one.innerText.includes('film'))"
    assert page.run(f"{film}.querySelector('img').src").startswith("data:image/gif")
    page.look(1280, 800, calm=True)
    page.requests.clear()
    page.open(report)
    assert page.run(f"{film}.querySelector('img').src").startswith("data:image/jpeg")
    page.run(f"{film}.querySelector('.motion').click()")
    assert page.run(f"{film}.querySelector('img').src").startswith("data:image/gif")


def test_dark_by_preference_and_by_choice(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.run(background)
    click(page, "#theme")
    dark = page.run(background)
    assert dark != light
    assert min(ink(page)) > 50  # drawn anew in the colors of the dark theme
    click(page, "#theme")
    assert page.run(background) == light
    page.run("delete document.documentElement.dataset.theme")
    page.look(1280, 800, dark=True)
    page.settle()
    assert page.run(background) == dark


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_large_and_small_screens(
    page: Page, report: Path, width: int, dark: bool
) -> None:
    page.look(width, 844, dark=dark)
    page.requests.clear()
    page.open(report)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.documentElement.scrollHeight") < 10_000
    assert min(page.run(DRAWN)) > 300


def test_a_phone_needs_no_sideways_scrolling(page: Page, report: Path) -> None:
    page.look(360, 740)
    page.requests.clear()
    page.open(report)
    assert page.run("document.documentElement.scrollWidth") <= 360
    page.run("document.querySelector('#pinned').scrollIntoView({behavior: 'instant'})")
    page.settle()
    assert box(page, "#pinned canvas")[2] > 250
    assert page.run("document.documentElement.scrollHeight") < 4000
    nav = "document.querySelector('nav')"
    assert page.run(f"{nav}.scrollWidth > {nav}.clientWidth")  # one line, which scrolls
    assert page.run(f"getComputedStyle({nav}).backgroundImage").count("gradient") == 4
    page.run("document.querySelector('nav a[href=\"#settings\"]').click()")
    page.settle()
    assert page.run("document.querySelector('#settings details').open")


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(page: Page, dark: bool) -> None:
    """Contrast of at least 4.5 to 1 for every text of the page, as WCAG asks."""
    page.look(1280, 800, dark=dark)
    page.settle()
    poor = page.run(
        """(() => {
          const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
          const light = (rgb) => {
            const [r, g, b] = rgb.map((v) => v / 255)
              .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const behind = (node) => {
            for (let one = node; one; one = one.parentElement) {
              const color = parse(getComputedStyle(one).backgroundColor);
              if (color.length === 3 || color[3] > 0.9) return color.slice(0, 3);
            }
            return [255, 255, 255];
          };
          const poor = [];
          for (const node of document.querySelectorAll("body *")) {
            const own = [...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
            if (!own || !node.offsetHeight || node.closest(".visually-hidden, script")) continue;
            const ink = light(parse(getComputedStyle(node).color).slice(0, 3));
            const paper = light(behind(node));
            const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
            if (contrast < 4.5) poor.push([node.className, node.textContent, contrast]);
          }
          return poor;
        })()"""
    )
    assert poor == []


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    nameless = page.run(
        """[...document.querySelectorAll("button, input, a, [role], img, svg, video")]
          .filter((one) => !(one.getAttribute("aria-label") || one.textContent?.trim() || one.alt
            || one.closest("label")?.innerText.trim() || one.getAttribute("role") === "status"
            || one.hidden))
          .map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert nameless == []


def test_text_that_tries_to_be_a_script_stays_text(
    page: Page, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_evil_run(tmp_path / "evil", monkeypatch)
    path = tmp_path / "evil.html"
    path.write_text(build_page([open_run(folder, EVIL)]))
    page.open(path)
    page.run("document.querySelector('#pinned').scrollIntoView({behavior: 'instant'})")
    page.settle()
    x, y, width, height = box(page, "#pinned .u-over")
    page.point(x + width / 2, y + height / 2)
    page.settle()
    assert EVIL in page.run(TIP)
    assert page.run("document.querySelectorAll('script').length") == 3
    assert page.run("document.querySelectorAll('[onerror]').length") == 0
    page.point(2, 2)
    page.requests.remove(path.as_uri())


@pytest.mark.skipif("OVERT_AXE" not in os.environ, reason="OVERT_AXE names no axe.min.js")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [(1400, 900), (390, 844)])
def test_axe_finds_no_violation(page: Page, size: tuple[int, int], dark: bool) -> None:
    page.look(*size, dark=dark)
    page.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    page.settle()
    page.run(Path(os.environ["OVERT_AXE"]).read_text() + ";0")
    violations = page.run(
        "axe.run().then((found) => found.violations.map((rule) =>"
        " [rule.id, rule.nodes.map((node) => node.html.slice(0, 160))]))"
    )
    assert violations == []
