"""The built site in a real browser: every page, the search, the gallery's pictures, copied code, a phone's width."""

import os
import shutil
import threading
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
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}

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


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert CHROMIUM and DRIVER, "there is no chromium or no chromedriver"
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}", "--window-size=1400,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def console(browser):
    """What went wrong since it was asked last."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def test_every_page_loads_without_a_word_on_the_console_and_fits_a_phone(browser, address):
    faults = {}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        for page in PAGES:
            browser.get(f"{address}/{page}")
            said = console(browser)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            if wide > PHONE["width"]:
                said.append(f"is {wide} pixels wide")
            if not browser.find_elements(By.TAG_NAME, "h1") and not page.startswith(("genindex", "search", "py-mod")):
                said.append("has no heading")
            if said:
                faults[page] = said
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert not faults, "\n".join(f"{page}: {fault}" for page, said in faults.items() for fault in dict.fromkeys(said))


def test_the_search_finds_a_labeler(browser, address):
    browser.get(f"{address}/search.html?q=ClippedDistance")
    found = "#search-results a[href*='relgraph.ClippedDistance.html']"
    WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, found))
    assert not console(browser)


def test_the_search_field_of_a_page_leads_to_results(browser, address):
    browser.get(f"{address}/index.html")
    browser.execute_script("document.querySelector('.search-button-field, .search-button').click()")
    field = WebDriverWait(browser, 10).until(
        lambda b: next((f for f in b.find_elements(By.CSS_SELECTOR, "input[name=q]") if f.is_displayed()), None)
    )
    field.send_keys("ClippedDistance\n")
    WebDriverWait(browser, 20).until(lambda b: "search.html" in b.current_url)
    WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#search-results li"))


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
    pages = [page for page in PAGES if page not in GALLERY and "<img" in (SITE / page).read_text(encoding="utf-8")]
    blank = {}
    for page in pages:
        browser.get(f"{address}/{page}")
        missing = [name for name, width, _ in browser.execute_async_script(INK) if not width]
        if missing:
            blank[page] = missing
    assert not blank
    assert "index.html" in pages


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
