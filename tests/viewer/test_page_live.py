"""The viewer's page of a run that goes on, without its server, and what its modules compute."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from made_up_run import STEPS, add_step, write_runs
from needs import needs
from page_site import CHROMIUM, chromium, go, serve_runs, watched_page
from playwright.sync_api import Browser, Page, expect

from agentrl.observability.viewer.server import STATIC

RUN = "#/run/with_tool"
OWN = sorted((STATIC / "js").glob("*.js"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs(CHROMIUM)
    run = write_runs(tmp_path_factory.mktemp("runs"))
    add_step(run, STEPS + 1)
    return run


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    with serve_runs(folder.parent) as address:
        indexed(address, folder)
        yield address


@pytest.fixture(scope="module")
def browser(site: str) -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    with watched_page(browser, site) as found:
        yield found


def test_a_run_that_goes_on_is_followed_but_not_while_the_page_is_hidden(page: Page, site: str, folder: Path) -> None:
    page.clock.install()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    go(page, site + RUN)
    facts = page.get_by_label("State")
    expect(facts).to_contain_text("▶ running")
    expect(facts).to_contain_text(f"step {STEPS + 1} of {STEPS + 10}")
    hide(page, True)
    page.clock.run_for(60_000)
    before = len(asked)
    add_step(folder, STEPS + 2)
    page.clock.run_for(60_000)
    assert len(asked) == before
    hide(page, False)
    expect(facts).to_contain_text(f"step {STEPS + 2} of {STEPS + 10}")
    add_step(folder, STEPS + 3)
    page.clock.run_for(4_000)
    expect(facts).to_contain_text(f"step {STEPS + 3} of {STEPS + 10}")
    page.get_by_label("Time of a step").locator("output", has_text=f"step {STEPS + 3} (the last)").wait_for()
    holder = page.locator(".plot").first
    assert f"{STEPS + 3} points" in (holder.get_attribute("aria-label") or "")


def test_new_conversations_are_offered_and_do_not_move_what_is_read(page: Page, site: str, folder: Path) -> None:
    before = indexed(site, folder)
    page.clock.install()
    go(page, f"{site}{RUN}/conversations")
    expect(page.locator(".counted")).to_have_text(f"{before:,} conversations")
    first = page.locator('.row[data-index="0"]').inner_text()
    add_step(folder, STEPS + 4)
    total = indexed(site, folder)
    page.clock.run_for(5_000)
    offer = page.get_by_role("button", name=re.compile("more: show"))
    expect(offer).to_be_visible()
    expect(page.locator(".counted")).to_have_text(f"{before:,} conversations")
    assert page.locator('.row[data-index="0"]').inner_text() == first
    offer.click()
    expect(page.locator(".counted")).to_have_text(f"{total:,} conversations")
    expect(page.locator('.row[data-index="0"] .step')).to_have_text(str(STEPS + 4))
    go(page, f"{site}{RUN}/conversations?step={STEPS + 1}")
    page.locator(".after").click()  # the steps are those of now
    expect(page.locator(".steps")).to_contain_text(re.compile(rf"step {STEPS + 2}|step {STEPS + 4}"))


def indexed(site: str, folder: Path) -> int:
    """How many conversations there are, once the server has seen all dumps."""
    wanted = 48 * len(list((folder / "rollouts").glob("*.jsonl")))
    while httpx.get(f"{site}api/runs/with_tool/trajectories", params={"limit": 0}).json()["total"] != wanted:
        time.sleep(0.05)
    return wanted


def hide(page: Page, hidden: bool) -> None:
    """As if the reader went to another tab."""
    page.evaluate(
        """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        hidden,
    )


def test_a_server_that_is_gone_is_said_and_tried_again(browser: Browser, site: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    go(page, f"{site}{RUN}/conversations")
    page.route("**/api/**", lambda route: route.abort())
    page.get_by_role("link", name="Groups").click()
    expect(page.locator(".empty")).to_contain_text("agentrl view does not answer")
    page.unroute("**/api/**")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".group").first).to_be_visible()
    page.route("**/api/**", lambda route: route.fulfill(status=401, json={"error": "no token"}))
    page.get_by_role("link", name="Conversations").click()
    expect(page.locator(".empty")).to_contain_text("open the address that `agentrl view` printed")
    context.close()


def called(page: Page, module: str, call: str) -> Any:
    """What a function of a module returns."""
    return page.evaluate(f"import('/static/js/{module}.js').then(module => module.{call})")


def test_what_the_modules_compute(page: Page, site: str) -> None:
    go(page, site)
    assert called(page, "series", "smooth([1, null, 3], 0.5)") == [1, None, pytest.approx(7 / 3)]
    assert called(page, "series", "smooth([1, 5], 0)") == [1, 5]
    assert called(page, "series", "positive([2, 0, null, -1])") == {"kept": [2, None, None, None], "left_out": 2}
    old = "{steps: [1, 2], seconds: [1, 2], metrics: {a: [10, 20]}}"
    new = "{steps: [2, 3], seconds: [5, 6], metrics: {a: [21, 30], b: [7, 8]}}"  # a run that resumed after step 1
    joined = {"steps": [1, 2, 3], "seconds": [1, 5, 6], "metrics": {"a": [10, 21, 30], "b": [None, 7, 8]}}
    assert called(page, "series", f"appended({old}, {new})") == joined
    assert called(page, "format", "number(1234567)") == "1.23e6"
    assert called(page, "format", "number(-0.123456)") == "-0.1235"
    assert called(page, "format", "number(-3e-8)") == "-3e-8"
    assert called(page, "format", "number(null)") == "–"
    assert called(page, "format", "seconds(75)") == "1 min 15 s"
    assert called(page, "format", "tokenText('a\\tb\\n')") == "a→\tb↵\n"
    assert called(page, "route", "parse('#/run/a%2Fb/x?text=%26%3D')") == {
        "path": ["run", "a/b", "x"],
        "query": {"text": "&="},
    }
    assert called(page, "route", "href(['run', 'a/b'], {step: 3, text: ''})") == "#/run/a%2Fb?step=3"
    assert called(page, "config", "flat({a: {b: 1, c: []}, d: {}})") == [["a.b", 1], ["a.c", []], ["d", {}]]


def test_what_has_changed_in_an_answer(page: Page, site: str) -> None:
    go(page, site)

    def new(ids: str, others: str) -> Any:
        found = called(page, "changes", f"newTokens({ids}, {others})")
        return [place for place, is_new in enumerate(found["fresh"]) if is_new], found["gaveUp"]

    assert new("[1, 2, 9, 3]", "[1, 2, 3]") == ([2], None)
    assert new("[5, 1, 6, 2, 7]", "[1, 2]") == ([0, 2, 4], None)
    assert new("[1, 1]", "[1]") == ([1], None)
    assert new("[]", "[1]") == ([], None)
    assert new("[1, 2, 3]", "[]") == ([0, 1, 2], None)
    ids = "Array.from({length: 9600}, (_, i) => i * i % 97)"
    assert new(f"{ids}.with(50, 1000).with(9000, 3)", ids) == ([50, 9000], None)
    other = "Array.from({length: 9600}, (_, i) => 1000 + i)"
    assert new(other, ids)[1] is None, "no token in common"
    places, gave_up = new(f"[1, ...{ids}, 2]", "[1, ...Array.from({length: 9600}, (_, i) => i * 31 % 89), 2]")
    assert gave_up is not None
    assert gave_up[1] <= 9602
    assert set(range(*gave_up)) <= set(places)
    assert 0 not in places


def test_the_shortest_edit_is_found(page: Page, site: str) -> None:
    go(page, site)
    draw = random.Random(0)
    for _ in range(150):
        one, other = ([draw.randrange(4) for _ in range(draw.randrange(12))] for _ in range(2))
        fresh = called(page, "changes", f"newTokens({one}, {other})")["fresh"]
        kept = [token for token, is_new in zip(one, fresh, strict=True) if not is_new]
        rest = iter(other)
        assert all(token in rest for token in kept), (one, other, kept)
        assert len(kept) == common(tuple(one), tuple(other)), (one, other, kept)


@cache
def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The length of the longest common subsequence."""
    if not one or not other:
        return 0
    if one[0] == other[0]:
        return 1 + common(one[1:], other[1:])
    return max(common(one[1:], other), common(one, other[1:]))


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.stem)
def test_a_module_is_short_and_makes_text_of_text_only(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300
    assert text.startswith("// "), "the first line says what it does"
    found = re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc|https?:", text
    )
    assert found == []


def test_the_page_names_no_other_place() -> None:
    for file in [*STATIC.glob("*.html"), *STATIC.glob("css/*.css")]:
        assert re.findall(r"(?:https?:)?//[a-z]|url\(", file.read_text(encoding="utf-8")) == []
    assert "MIT License" in (STATIC / "uplot/LICENSE").read_text()
