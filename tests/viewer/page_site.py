"""The page in a real browser: the viewer's server over a folder of runs, and Debian's Chromium."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

from agentrl.observability.viewer.guard import Access
from agentrl.observability.viewer.runs import RunSet
from agentrl.observability.viewer.server import create_app

CHROMIUM = "chromium"
PATIENCE_MS = 60_000
"""Other tests may keep the machine busy."""
expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def serve_runs(*folders: Path) -> Iterator[str]:
    """The address of the page of these runs."""
    app = create_app(RunSet(folders), Access("127.0.0.1"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", loop="asyncio"))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium without a window; containers, in which tests run as root, give it no sandbox of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(CHROMIUM), args=["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched_page(browser: Browser, site: str) -> Iterator[Page]:
    """A page. Whatever is done with it, it asks nobody but its server, and nothing fails in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(("about:", site)) else faults.append(request.url))
    yield page
    context.close()
    assert faults == []


def go(page: Page, address: str) -> None:
    """Open a view, and wait until it is drawn. From another view only the address after the # changes, as by a link."""
    place, _, fragment = address.partition("#")
    if page.url == address:
        page.reload()
    elif page.url.partition("#")[0] == place:
        page.evaluate(
            """hash => new Promise(done => {
                addEventListener('hashchange', () => setTimeout(done), {once: true});
                location.hash = hash;
            })""",
            fragment,
        )
    else:
        page.goto(address)
    page.wait_for_selector("main[aria-busy=false]")


def rows(site: str, **query: Any) -> Any:
    return httpx.get(f"{site}api/runs/with_tool/trajectories", params=query).json()
