"""The page of runs in Chromium, one browser and one server for a module."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from made_up_run import write_runs
from needs import needs
from page_site import CHROMIUM, chromium, go, rows, serve_runs, watched_page
from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run of 1,920 conversations and one without any."""
    needs(CHROMIUM)
    folder = tmp_path_factory.mktemp("runs")
    write_runs(folder)
    with serve_runs(folder) as address:
        for kind in ("train", "validation"):
            while not rows(address, set=kind, limit=1)["complete"]:
                time.sleep(0.05)
        yield address


@pytest.fixture(scope="module")
def browser(site: str) -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def used_page(browser: Browser, site: str) -> Iterator[Page]:
    with watched_page(browser, site) as found:
        yield found


@pytest.fixture
def page(used_page: Page, site: str) -> Page:
    """The same page for all tests, as a reader has it, but with nothing remembered and in its usual size."""
    used_page.set_viewport_size({"width": 1280, "height": 860})
    used_page.emulate_media(color_scheme="light")
    go(used_page, f"{site}#/runs")
    used_page.evaluate("localStorage.clear()")
    return used_page
