"""The report as a reader has it: opened from the disk in a real browser, everything in it clicked."""

import pytest

from normfed import report

from browser import Browser, find
from report_folder import a_run

METHODS = {"fedavg": 0.5, "fedbn": 0.8, "fedwon": 0.7}
PROGRAM = find()

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here: the report is not looked at in a browser")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    for method, level in METHODS.items():
        a_run(folder / method, method, level, pictures=method != "fedwon", noise=0.001)
    return report.write(folder)


@pytest.fixture(scope="module")
def started():
    with Browser(PROGRAM) as browser:
        yield browser


@pytest.fixture
def browser(started, page):
    """The page freshly opened, at a desk, in the light; afterwards: no error, no request but the page's own."""
    started.console.clear()
    started.requests.clear()
    started.scheme("light")
    started.size(1200, 900)
    started.open(page)
    yield started
    assert started.console == []
    assert [url for url in started.requests if not url.startswith("data:")] == [page.resolve().as_uri()]


def centre(browser, selector, number=0):
    """Where an element is, after it was scrolled into sight."""
    box = browser.run(
        f"""(async () => {{ const e = document.querySelectorAll({selector!r})[{number}];
        e.scrollIntoView({{block: 'center', behavior: 'instant'}});
        await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));  // scrolling is told late
        const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2, r.width, r.height]; }})()"""
    )
    assert box[2] > 0 and box[3] > 0, f"{selector} {number} has no size"
    return box[0], box[1]


def click(browser, selector, number=0):
    browser.mouse(*centre(browser, selector, number), click=True)


def count(browser, selector):
    return browser.run(f"document.querySelectorAll({selector!r}).length")


def shown(browser, selector):
    """How many of these elements can be seen."""
    return browser.run(
        f"[...document.querySelectorAll({selector!r})].filter(e => e.getClientRects().length > 0).length"
    )


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_are_there_and_nothing_sticks_out(browser, width, scheme):
    browser.scheme(scheme)
    browser.size(width, 900)
    assert browser.run("document.documentElement.scrollWidth") <= width
    sizes = browser.run(
        """[...document.querySelectorAll('.panel:not([hidden]) svg.plot, figure:not(.heat) svg.plot')]
        .map(e => e.getBoundingClientRect()).map(r => [r.width, r.height])"""
    )
    assert len(sizes) >= 10 and all(w > 200 and h > 40 for w, h in sizes)
    letters = browser.run(
        "Math.min(...[...document.querySelectorAll('figure.wide svg text')].map(e => e.getBoundingClientRect().height))"
    )
    assert letters >= 8, "letters too small to read"
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}[scheme]
    stroke = browser.run("getComputedStyle(document.querySelector('svg .m0:not(.band) path')).stroke")
    assert stroke == {"light": "rgb(27, 108, 163)", "dark": "rgb(89, 177, 214)"}[scheme]


def test_the_theme_can_be_chosen(browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(paper)
    assert browser.run("document.getElementById('theme').textContent") == "Dark theme"
    click(browser, "#theme")
    assert browser.run(paper) != light and browser.run("document.getElementById('theme').textContent") == "Light theme"
    click(browser, "#theme")
    assert browser.run(paper) == light


def test_a_method_can_be_hidden_and_shown_again(browser):
    rows, plots = shown(browser, "tr.m1"), shown(browser, "svg .m1")
    assert rows >= 3 and plots > 5 and shown(browser, ".all") == 0
    click(browser, ".chip[data-method=m1]")
    assert shown(browser, "tr.m1") == shown(browser, "svg .m1") == 0
    assert (
        shown(browser, "tr.m0") == rows and browser.run("document.querySelectorAll('.chip')[1].ariaPressed") == "false"
    )
    click(browser, ".all")
    assert shown(browser, "tr.m1") == rows and shown(browser, "svg .m1") == plots


def test_bands_can_be_hidden(browser):
    assert shown(browser, "svg .band") > 0
    click(browser, ".bands")
    assert shown(browser, "svg .band") == 0 and shown(browser, "svg .m0") > 0


def test_the_table_sorts(browser):
    def methods():
        return browser.run(
            "[...document.querySelector('table').tBodies[0].rows].map(r => r.cells[0].textContent.trim())"
        )

    def sort():
        return browser.run(f"document.querySelectorAll('table')[0].tHead.rows[0].cells[{column}].ariaSort")

    column = browser.run(
        "[...document.querySelector('table').tHead.rows[0].cells].findIndex(c => c.textContent === 'average')"
    )
    head = f"table:first-of-type th:nth-child({column + 1}) button"
    assert methods() == list(METHODS)
    click(browser, head)
    assert methods() == ["fedbn", "fedwon", "fedavg"] and sort() == "descending"
    click(browser, head)
    assert methods() == ["fedavg", "fedwon", "fedbn"] and sort() == "ascending"
    column = 0
    click(browser, "table:first-of-type th:nth-child(1) button")
    assert methods() == sorted(METHODS)


def test_the_best_is_marked(browser):
    assert browser.run("[...document.querySelectorAll('td.best')].every(e => e.closest('tr').classList.contains('m1'))")
    assert count(browser, "td.best") == 3  # two clients and the average


def test_one_heat_map_at_a_time(browser):
    assert count(browser, ".tab") == shown(browser, ".tab") == 2 and shown(browser, ".panel") == 1
    click(browser, ".tab", 1)
    assert shown(browser, ".panel") == 1
    assert browser.run("document.querySelectorAll('.tab')[1].ariaSelected") == "true"


def tip(browser):
    return browser.run("(t => t.hidden ? null : t.innerText)(document.getElementById('tip'))")


def test_values_under_the_pointer(browser):
    browser.mouse(*centre(browser, "figure.wide .plotbox"))
    said = tip(browser)
    assert said.startswith("round ") and all(method in said for method in METHODS) and "±" in said
    assert shown(browser, ".rule") == 1
    click(browser, ".chip[data-method=m0]")
    browser.mouse(*centre(browser, "figure.wide .plotbox"))
    assert "fedavg" not in tip(browser)
    browser.mouse(*centre(browser, ".heat .plotbox", 1))
    assert tip(browser).startswith("layer ") and shown(browser, ".cell") == 1
    browser.mouse(2, 2)
    assert tip(browser) is None


def test_values_under_the_arrow_keys(browser):
    centre(browser, "figure.wide .plotbox")
    browser.run("document.querySelector('figure.wide .plotbox').focus()")
    for _ in range(2):
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    assert tip(browser).startswith("round 2")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Escape", code="Escape")
    assert tip(browser) is None


def test_everything_that_can_be_clicked_is_clicked(browser):
    for selector in ("summary", "button"):
        for number in range(count(browser, selector)):
            if browser.run(f"document.querySelectorAll({selector!r})[{number}].getClientRects().length") > 0:
                click(browser, selector, number)
    assert browser.run("[...document.querySelectorAll('details')].every(d => d.open)")
    assert browser.run("document.querySelector('.chip').ariaPressed") == "true", "the last of them shows all again"


def test_on_paper(browser, tmp_path):
    browser.scheme("dark")
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert shown(browser, "#theme") == shown(browser, ".tab") == 0 and shown(browser, ".panel") == 2
        browser.print(tmp_path / "report.pdf")
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
