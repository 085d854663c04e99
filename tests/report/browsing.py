"""A page in the system's own Chromium: opened, used, and closed with nothing gone wrong and nothing asked of a network."""

import shutil
from contextlib import contextmanager

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("there is no Chromium here", allow_module_level=True)

DESKTOP, PHONE = (1280, 900), (390, 844)
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desktop", "phone"])
def size(request):
    return request.param


@contextmanager
def opening(browser, size):
    """Gives a function that opens a file; at the end all that was opened must have gone well."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
    problems, requests, opened = [], [], []

    def open_file(path):
        tab = context.new_page()
        tab.set_default_timeout(10_000)
        tab.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        opened.append((tab, path.as_uri()))
        tab.goto(path.as_uri())
        return tab

    yield open_file
    fits = [tab.evaluate("document.scrollingElement.scrollWidth <= innerWidth") for tab, _ in opened]
    context.close()
    assert problems == []
    assert requests == [address for _, address in opened]
    assert all(fits), "the page must not scroll sideways"


def reached_by_tab(page, times, what):
    """What `what` says of the focused element, after each of so many presses; the first one skips to the main part."""
    page.locator("body").press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    found = set()
    for _ in range(times):
        page.keyboard.press("Tab")
        found.add(page.evaluate(f"document.activeElement.closest('section, header')?.{what}"))
    return found
