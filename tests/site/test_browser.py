"""The built site in a real browser: every page, the search, the gallery's pictures, copied code, a phone's width."""

import os
import re
import shutil
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

NEEDED = bool(os.environ.get("RELGRAPH_NEED_BROWSER"))  # then what would be a skip is a failure
if not NEEDED:
    pytest.importorskip("selenium", reason="the browser test drives Chromium by selenium")

from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

SITE = Path(os.environ.get("RELGRAPH_SITE", Path(__file__).resolve().parents[2] / "docs" / "_build" / "html"))
BUILT = (SITE / "index.html").is_file()
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PAGES = sorted(
    name for path in SITE.rglob("*.html") if not (name := path.relative_to(SITE).as_posix()).startswith("_static")
)
GALLERY = [page for page in PAGES if page.startswith("gallery/")]
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
PHONE = 390  # CSS pixels

pytestmark = [
    pytest.mark.skipif(not (NEEDED or BUILT), reason="no built site: python -m docs.site builds it"),
    pytest.mark.skipif(
        not (NEEDED or (CHROMIUM and DRIVER)), reason="the browser test needs chromium and chromedriver"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of sockets that selenium leaves to the collector
]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and keeps no log."""

    def log_message(self, *_):
        """Nothing."""


@pytest.fixture(scope="module")
def address():
    assert BUILT, f"there is no built site in {SITE}"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class Patient(webdriver.Chrome):
    """A browser whose ``get`` ends when the page is there: at times it came back while the page was read."""

    def get(self, url):
        super().get(url)
        there = "return location.href.split('#')[0] === arguments[0] && document.readyState === 'complete'"
        WebDriverWait(self, 30).until(lambda driver: driver.execute_script(there, url.split("#")[0]))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert CHROMIUM and DRIVER, "there is no chromium or no chromedriver"
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}", "--window-size=1400,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Patient(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def console(browser):
    """What went wrong since it was asked last."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@contextmanager
def as_wide_as(browser, width):
    """A view of that many CSS pixels: a phone's below 600, else that of a window."""
    view = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", view)
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


LAYOUT = Path(__file__).with_name("layout.js").read_text(encoding="utf-8")


def test_every_page_loads_without_a_word_on_the_console_and_fits_a_phone(browser, address):
    faults = {}
    with as_wide_as(browser, PHONE):
        for page in (page for page in PAGES if not page.startswith("_modules/")):  # all alike: KINDS has one
            browser.get(f"{address}/{page}")
            said = console(browser)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            if wide > PHONE:
                said.append(f"is {wide} pixels wide")
            if not browser.find_elements(By.TAG_NAME, "h1") and not page.startswith(("genindex", "search", "py-mod")):
                said.append("has no heading")
            said += browser.execute_script(LAYOUT)
            if said:
                faults[page] = said
    assert not faults, "\n".join(f"{page}: {fault}" for page, said in faults.items() for fault in dict.fromkeys(said))


KINDS = (
    *("index", "install", "tutorial", "learn/index", "learn/labelers", "howto/index", "howto/graphs"),
    *("coming-from/index", "coming-from/old-shaw", "coming-from/vision", "results", "benchmarks", "paper"),
    *("project", "changelog", "contributing", "genindex"),
    *("api/index", "api/labelers", "api/generated/relgraph.RelationTransformer", "api/generated/relgraph.Graph"),
    *("api/generated/relgraph.relation_attention_with_aux", "api/generated/relgraph.labelers.UD_RELATIONS"),
    *(
        "api/generated/relgraph.interop.transformers.add_relations",
        "api/generated/relgraph.labelers.shortest_path_lengths",
    ),
    "_modules/relgraph/nn/attention",
    *("gallery/index", "gallery/quickstart", "gallery/patched_tables"),
)
"""Pages of every kind; of the API, those with the longest names and signatures."""


@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.parametrize("page", [*KINDS, "search"])
def test_nothing_is_cut_and_no_text_overlaps(browser, address, page, width):
    with as_wide_as(browser, width):
        browser.get(f"{address}/{page}.html" + ("?q=ClippedDistance" if page == "search" else ""))
        if page == "search":
            WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results li"))
        assert browser.execute_script(LAYOUT) == []


def test_the_check_of_the_layout_finds_faults(browser, address):
    spoil = """
    const article = document.querySelector('article');
    article.insertAdjacentHTML('beforeend', arguments[0]);
    """
    wide = "<p style='width: 2000px'>a</p>"
    hidden = "<div style='overflow: hidden; width: 99px'><p style='width: 200px'>a</p></div>"
    scrolls = "<div style='overflow: auto; width: 99px'><p style='width: 2000px'>a</p></div>"
    on_another = "<p>below</p><p style='margin-top: -3rem'>above</p>"
    with as_wide_as(browser, 400):
        for html, fault in (("", ""), (scrolls, ""), (wide, "sticks"), (hidden, "hides"), (on_another, "overlaps")):
            browser.get(f"{address}/learn/labels.html")
            browser.execute_script(spoil, html)
            found = browser.execute_script(LAYOUT)
            assert (not found) if not fault else any(fault in said for said in found)
        browser.execute_script("document.querySelector('h1').style.marginTop = '-5rem'")
        assert any("a part of its title" in said for said in browser.execute_script(LAYOUT))


@pytest.mark.parametrize("width", [1300, 1000])
def test_the_top_bar_shows_every_section_in_one_line(browser, address, width):
    with as_wide_as(browser, width):
        browser.get(f"{address}/index.html")
        links = browser.find_elements(By.CSS_SELECTOR, ".bd-header .bd-navbar-elements .nav-link")
        assert all(link.is_displayed() for link in links)
        assert not browser.find_elements(By.CSS_SELECTOR, ".bd-header .bd-navbar-elements .dropdown")
        assert [link.text for link in links][-2:] == ["Results", "Project"]
        assert {"Install", "Tutorial", "How-to", "API", "Coming from"} <= {link.text for link in links}
        lines = [(link.rect["y"], link.rect["height"]) for link in links]
        assert len(set(lines)) == 1
        assert lines[0][1] < 50
        assert links[-1].rect["x"] + links[-1].rect["width"] < width - 50


@pytest.mark.parametrize(
    ("page", "topic", "heading"),
    [
        ("relgraph.TreeRelation", "Labelers and graphs", "Trees"),
        ("relgraph.pyg.RelationConv", "PyTorch Geometric", "Layers"),
        ("relgraph.interop.conllu.read", "Graphs and models from elsewhere", "CoNLL-U"),
    ],
)
def test_the_sidebar_of_the_api_groups_names_under_headings(browser, address, page, topic, heading):
    with as_wide_as(browser, 1300):
        browser.get(f"{address}/api/generated/{page}.html")
        sidebar = browser.find_element(By.CSS_SELECTOR, "#pst-primary-sidebar nav.bd-links")
        topics = sidebar.find_elements(By.CSS_SELECTOR, "li.toctree-l1")
        assert len(topics) == 8
        shown = [name for name in sidebar.find_elements(By.CSS_SELECTOR, "li.toctree-l2 a") if name.is_displayed()]
        assert 0 < len(shown) < 60
        (current,) = [name for name in shown if name.get_dom_attribute("aria-current") == "page"]
        assert current.text == page.rpartition(".")[2]
        above = browser.execute_script(
            "const list = arguments[0].closest('ul');"
            "return [list.previousElementSibling.innerText, list.closest('li').querySelector('a').innerText,"
            " Math.max(...[...arguments[1].querySelectorAll('details ul')].map((u) => u.childElementCount))]",
            *(current, sidebar),
        )
        assert above[:2] == [heading, topic]
        assert above[2] < 20


@pytest.mark.parametrize("name", ["RelationEncoderLayer", "RelationDecoderLayer", "RelationTransformer"])
def test_a_signature_has_one_argument_a_line(browser, address, name):
    browser.get(f"{address}/api/generated/relgraph.{name}.html")
    signature = browser.find_element(By.CSS_SELECTOR, "dt.sig")
    tops = [argument.rect["y"] for argument in signature.find_elements(By.CSS_SELECTOR, ".sig-param")]
    assert len(tops) > 10
    assert tops == sorted(set(tops))
    assert "~" not in signature.text
    assert "<function" not in signature.text


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("coming-from/")])
def test_code_of_the_coming_from_pages_is_read_without_scrolling(browser, address, page):
    with as_wide_as(browser, 1300):
        browser.get(f"{address}/{page}")
        blocks = browser.execute_script(
            "return [...document.querySelectorAll('article pre')].map("
            "(pre) => [pre.scrollWidth - pre.clientWidth, parseFloat(getComputedStyle(pre).fontSize), pre.innerText])"
        )
        assert [code for over, size, code in blocks if over > 0 or size < 13] == []
        assert blocks or page.endswith("index.html")


def test_benchmarks_begin_with_results_and_leave_no_cell_empty(browser, address):
    browser.get(f"{address}/benchmarks.html")
    headings = [heading.text.rstrip("#") for heading in browser.find_elements(By.CSS_SELECTOR, "article h2")]
    results = ["In short", "Small calls", "Compiled kernels on a CPU", "Graphs by listed edges"]
    method = ["What is compared", "How it is measured", "Commands"]
    assert headings[: len(results)] == results
    assert headings[-len(method) :] == method
    cells = browser.execute_script(
        "return [...document.querySelectorAll('article :is(td, th)')].map((cell) => cell.innerText.trim())"
    )
    assert len(cells) > 500
    assert [cell for cell in cells if not re.search(r"\w", cell) and cell != "×"] == []


def test_results_and_home_begin_with_figures(browser, address):
    browser.get(f"{address}/results.html")
    cells = [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "article td")]
    assert sum("%" in cell for cell in cells) > 10
    with as_wide_as(browser, 1300):
        browser.get(f"{address}/index.html")
        first = browser.find_element(By.CSS_SELECTOR, "article p")
        assert first.rect["y"] + first.rect["height"] < 500
        assert re.search(r"0\.\d+ .*times as long", first.text)


def test_the_search_field_of_a_page_leads_to_results(browser, address):
    browser.get(f"{address}/index.html")
    browser.execute_script("document.querySelector('.search-button-field, .search-button').click()")
    field = WebDriverWait(browser, 10).until(
        lambda b: next((f for f in b.find_elements(By.CSS_SELECTOR, "input[name=q]") if f.is_displayed()), None)
    )
    field.send_keys("ClippedDistance\n")
    WebDriverWait(browser, 20).until(lambda b: "search.html" in b.current_url)
    found = WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results li"))
    assert "ClippedDistance" in found[0].text
    assert not console(browser)


INK = """
const done = arguments[arguments.length - 1];
Promise.all([...document.querySelectorAll('article img')].map(async (img) => {
  img.loading = 'eager';
  await img.decode().catch(() => null);
  if (!img.naturalWidth) return [img.src, 0, 0];
  const canvas = document.createElement('canvas');
  canvas.width = 200;
  canvas.height = 200;
  const ink = canvas.getContext('2d');
  ink.drawImage(img, 0, 0, 200, 200);
  const data = ink.getImageData(0, 0, 200, 200).data;
  const shades = new Set();
  for (let at = 0; at < data.length; at += 4) shades.add(data[at] + ',' + data[at + 1] + ',' + data[at + 2]);
  return [img.src, img.naturalWidth, shades.size];
})).then(done);
"""


@pytest.mark.parametrize("page", GALLERY)
def test_the_pictures_of_the_gallery_load_and_are_not_blank(browser, address, page):
    browser.get(f"{address}/{page}")
    pictures = browser.execute_async_script(INK)
    blank = [name for name, width, shades in pictures if width < 50 or shades < 20]
    assert not blank
    assert pictures or page.startswith("gallery/with_")  # scripts for several processes are shown and not run


def test_all_other_pictures_load(browser, address):
    # every page has the logo; pictures of its own are in _images
    own = [page for page in PAGES if page not in GALLERY and "_images/" in (SITE / page).read_text(encoding="utf-8")]
    pages = ["index.html", *(page for page in own if page != "index.html")]
    blank = {}
    for page in pages:
        browser.get(f"{address}/{page}")
        missing = [name for name, width, _ in browser.execute_async_script(INK) if not width]
        if missing:
            blank[page] = missing
    assert not blank
    assert len(own) > 8


def test_code_is_copied_without_prompts(browser, address):
    browser.get(f"{address}/learn/labelers.html")
    block = browser.find_element(By.CSS_SELECTOR, "div.highlight")
    shown = block.find_element(By.TAG_NAME, "pre").text
    button = block.find_element(By.CSS_SELECTOR, "button.copybtn")
    ActionChains(browser).move_to_element(block).pause(0.5).click(button).perform()
    WebDriverWait(browser, 10).until(lambda _: block.find_elements(By.CSS_SELECTOR, "button.copybtn.success"))
    browser.execute_script("document.querySelector('article').append(document.createElement('textarea'))")
    field = browser.find_element(By.CSS_SELECTOR, "article textarea")
    field.click()
    field.send_keys(Keys.CONTROL, "v")
    copied = field.get_property("value")
    assert shown.startswith(">>> import torch")
    assert copied.startswith("import torch\nimport relgraph as rg\n")
    assert ">>>" not in copied
