"""Trajectories that failed, which are in no dump but in a file beside it: in the index, and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_dumps import failure, record, write_dump, write_run
from needs import needs
from page_site import CHROMIUM, chromium, go, serve_runs, watched_page
from playwright.sync_api import Page, expect

from agentrl.observability.run_folder import FAILED_SUFFIX, RunFolder
from agentrl.observability.viewer import search
from agentrl.observability.viewer.conversation import conversation_of
from agentrl.observability.viewer.index import FAILED, STEP_BITS, DumpIndex

HUNG, MARKUP = "ToolServiceError: no answer in 60 s", "RewardError: <b>\u202enone</b>"


@pytest.fixture
def index(tmp_path: Path) -> DumpIndex:
    """Of two steps, the second with two failures and a damaged line."""
    for step in (1, 2):
        write_dump(tmp_path, step, [record(number, step) for number in range(2)])
    write_dump(tmp_path, 2, [failure(1, 2), "{}", failure(2, 2, error=MARKUP, messages=None)], FAILED_SUFFIX)
    found = DumpIndex(tmp_path)
    found.refresh()
    return found


def rows(index: DumpIndex, **conditions: object) -> list[search.Row]:
    return search.page_of(index, search.Page(**conditions))[1]


def test_they_are_rows_with_a_flag_and_the_error(index: DumpIndex) -> None:
    first, second = rows(index, failed=True)
    assert (first["id"], second["id"]) == (2 << STEP_BITS | FAILED, 2 << STEP_BITS | FAILED | 2)
    assert first.pop("prompt_key")
    assert first == {
        "id": 2 << STEP_BITS | FAILED,
        "step": 2,
        "uid": "2-0",
        "data_source": "agentrl/arithmetic",
        "reward": None,
        "advantage": None,
        "stop_reason": "timeout",
        "turns": None,
        "tool_calls": None,
        "tokens": 3,
        "tools": [],
        "failed": True,
        "question": "What is 1 + 1?",
        "start": HUNG,
    }
    assert (second["question"], second["start"]) == ("", MARKUP)
    assert [index.read(row["id"]) for row in (first, second)] == [
        failure(1, 2),
        failure(2, 2, error=MARKUP, messages=None),
    ]
    assert index.damaged == 1


def test_filters_know_them(index: DumpIndex) -> None:
    assert len(rows(index)) == 6
    assert [row["failed"] for row in rows(index, failed=False)] == [False] * 4
    assert len(rows(index, failed=True, step=1)) == 0
    assert len(rows(index, stop_reason="timeout")) == 2
    assert [row["start"] for row in rows(index, text="no ANSWER in")] == [HUNG]
    assert len(rows(index, text="1+1", failed=True)) == 1, "what was said until then is found too"
    facets = search.facets_of(index)
    assert (facets["failed"], facets["stop_reasons"], facets["step_list"]) == (2, ["completed", "timeout"], [1, 2])


def test_a_group_shows_them_beside_its_answers(index: DumpIndex) -> None:
    total, (both, alone) = search.groups_of(index, search.Filter(step=2), 0, 10)
    assert (total, [row["failed"] for row in both["rows"]], both["mean"]) == (2, [False, False, True], 0.5)
    assert [row["failed"] for row in alone["rows"]] == [True]


def test_they_come_and_go_with_their_file(index: DumpIndex) -> None:
    write_dump(index.folder, 1, [failure(0, 1)], FAILED_SUFFIX)
    index.refresh()
    assert len(rows(index, failed=True)) == 3
    (index.folder / f"2{FAILED_SUFFIX}").unlink()  # the run resumed, and this time none failed
    index.refresh()
    assert [row["step"] for row in rows(index, failed=True)] == [1]
    assert len(rows(index, failed=False)) == 4
    (index.folder / "1.jsonl").unlink()
    index.refresh()
    assert [(row["step"], row["failed"]) for row in rows(index)] == [(1, True), (2, False), (2, False)]


def test_the_conversation_says_why(tmp_path: Path) -> None:
    shown = conversation_of(failure(1), RunFolder(tmp_path), "run")
    assert (shown["error"], shown["earlier_errors"]) == (HUNG, ["ToolServiceError: refused"])
    assert shown["messages"] == failure(1)["messages"]
    assert (shown["test_case"], shown["reward"], shown["tokens"]["id"]) == (None, {"score": None, "parts": {}}, [])
    assert conversation_of(record(1), RunFolder(tmp_path), "run")["error"] is None


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, str]]:
    needs(CHROMIUM)
    metrics = {"timing_s/step": 1.0, "critic/score/mean": 0.5}
    lost = {"rollout/env_error_rate": 0.5, "rollout/stop_reason/aborted": 0.5}
    run = write_run(tmp_path_factory.mktemp("runs") / "run", [{"step": 1, **metrics}, {"step": 2, **metrics, **lost}])
    for step in (1, 2):
        write_dump(run / "rollouts", step, [record(number, step) for number in range(2)])
    write_dump(run / "rollouts", 2, [failure(1, 2), failure(2, 2, error=MARKUP, messages=None)], FAILED_SUFFIX)
    with serve_runs(run) as site, chromium() as browser, watched_page(browser, site) as found:
        go(found, f"{site}#/run/{run.parent.name}-run")
        yield found, f"{site}#/run/{run.parent.name}-run"


def test_the_mark_on_the_time_line_leads_to_them(page: tuple[Page, str]) -> None:
    tab, run = page
    go(tab, run)
    tab.get_by_label("What happened").locator(".mark.kind-failure").click()
    expect(tab.locator(".counted")).to_have_text("2 conversations")
    expect(tab.get_by_label("Failed")).to_have_value("true")
    expect(tab.locator(".space .start").last).to_have_text(f"✖ {HUNG}")
    tab.locator(".space .row").last.click()
    expect(tab.locator(".failure")).to_contain_text(HUNG)
    tab.locator(".failure summary").click()
    expect(tab.locator(".failure")).to_contain_text("ToolServiceError: refused")
    expect(tab.locator(".role-assistant")).to_contain_text("<call>1+1</call>")
    expect(tab.get_by_role("tab")).to_have_text(["Chat"])
    tab.keyboard.press("k")
    expect(tab.locator(".failure")).to_contain_text("RewardError: <b>⟨U+202E⟩none</b>")
    expect(tab.locator("#panel")).to_contain_text("Nothing is known of what was said.")
    tab.get_by_role("link", name="its group").click()
    expect(tab.locator(".card.wrong")).to_contain_text("✖ failed")
    go(tab, f"{run}/groups?step=2")
    expect(tab.locator(".group").first).to_contain_text("2 answers, 1 failed, mean reward 0.5")


def test_a_step_shows_them_among_the_others(page: tuple[Page, str]) -> None:
    tab, run = page
    go(tab, f"{run}/conversations")
    expect(tab.locator(".counted")).to_have_text("6 conversations")
    tab.get_by_label("Failed").select_option("not failed")
    expect(tab.locator(".counted")).to_have_text("4 conversations")
    assert "failed=false" in tab.url
