"""The viewer's page in Chromium: from a curve to a token, filters, keys, hostile text, colours, a phone's width."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from made_up_run import HOSTILE, STEPS
from page_site import go, rows, watched_page
from playwright.sync_api import Browser, Page, expect

RUN = "#/run/with_tool"
VIEWS = {
    "runs": "#/runs",
    "run": f"{RUN}?with=no_tool&diff=no_tool",
    "conversations": f"{RUN}/conversations",
    "groups": f"{RUN}/groups?step=14",
    "prompt": f"{RUN}/prompt/KEY",
    "chat": f"{RUN}/conversation/ID",
    "tokens": f"{RUN}/conversation/ID?tab=tokens&colour=difference",
    "test": f"{RUN}/conversation/ID?tab=test",
}


def wrong_call(site: str) -> Any:
    """A conversation of step 15 whose call failed."""
    return rows(site, step=15, tool="calculator", reward_max=0.3, limit=1)["rows"][0]


def hash_of(page: Page) -> tuple[str, dict[str, str]]:
    """Path and query of the address after its #."""
    parts = urlsplit(urlsplit(page.url).fragment)
    return parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()}


def view(site: str, name: str) -> str:
    row = wrong_call(site)
    return site + VIEWS[name].replace("KEY", row["prompt_key"]).replace("ID", str(row["id"]))


def test_three_clicks_lead_from_the_curve_to_the_token_that_changed(page: Page, site: str) -> None:
    go(page, site + RUN)
    plot = page.locator('[data-metric="critic/score/mean"] .u-over')
    box = plot.bounding_box()
    assert box is not None
    plot.click(position={"x": box["width"] / 2, "y": box["height"] / 2})  # 1: a point
    page.locator(".space .row").first.wait_for()
    path, query = hash_of(page)
    assert path == "/run/with_tool/conversations"
    assert 15 <= int(query["step"]) <= 26
    page.locator(".space .row").nth(7).click()  # 2: a row
    page.get_by_role("tab", name="Tokens").click()  # 3: its tokens
    chosen = page.locator(".t.chosen.c-new")
    expect(chosen).to_have_count(1)
    assert chosen.evaluate("node => node === document.activeElement")
    page.go_back()
    expect(page.locator(".space .row.at")).to_have_count(1)
    page.go_back()
    expect(page.locator(".chart").first).to_be_visible()


def test_runs_lie_over_each_other_smoothed_and_on_a_log_scale_and_the_address_says_so(page: Page, site: str) -> None:
    go(page, site + RUN)
    chart = page.locator('[data-metric="critic/score/mean"]')
    page.get_by_label("Lay another run over this one").select_option("no_tool")
    expect(chart.locator(".readout")).to_contain_text(" · ")
    page.get_by_label("Smooth").fill("0.5")
    page.get_by_label("Log scale").check()
    page.locator("summary", has_text="Metrics").click()
    page.get_by_label("Find a metric").fill("pg_loss")
    page.get_by_label("pg_loss", exact=True).check()
    expect(page.locator('[data-metric="actor/pg_loss"]')).to_contain_text("have no place on a log scale")
    query = hash_of(page)[1]
    assert (query["with"], query["smooth"], query["log"]) == ("no_tool", "0.5", "1")
    assert query["metrics"].endswith(",actor/pg_loss")
    page.reload()
    expect(page.locator('[data-metric="actor/pg_loss"] canvas')).to_be_visible()
    assert page.get_by_label("Log scale").is_checked()
    expect(page.locator(".compared .chip")).to_have_count(2)
    page.locator(".chart").first.get_by_role("button", name="Remove").click()
    assert not hash_of(page)[1]["metrics"].startswith("critic/score/mean")


def test_a_chart_is_read_with_the_arrow_keys(page: Page, site: str) -> None:
    go(page, f"{site}{RUN}?metrics=critic/score/mean")
    page.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".readout")).to_contain_text("step 2: ")
    page.keyboard.press("Enter")
    expect(page.locator(".counted")).to_have_text("48 conversations")
    assert hash_of(page)[1]["step"] == "2"


def test_a_drag_zooms_and_a_click_only_goes_where_the_curve_has_a_point(page: Page, site: str) -> None:
    go(page, f"{site}{RUN}?metrics=val-core/arithmetic/reward/mean@1,critic/score/mean&with=no_tool")
    box = page.locator(".u-over").last.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 50, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + 60, steps=4)
    page.mouse.up()
    assert hash_of(page)[0] == "/run/with_tool"
    page.get_by_role("button", name="reset zoom").last.click()  # charts are zoomed together
    expect(page.get_by_role("button", name="reset zoom")).to_have_count(0)
    page.locator(".u-over").first.click(position={"x": box["width"] * 0.4, "y": 5})
    expect(page.locator(".counted")).to_have_text("6 conversations")
    assert hash_of(page)[1] == {"set": "validation", "step": "20"}


def test_alarms_and_failures_are_on_the_time_line_and_in_words(page: Page, site: str) -> None:
    go(page, site + RUN)
    happened = page.get_by_label("What happened")
    expect(happened.locator(".events").first).to_contain_text("▲ step 22 alarm repetition begins")
    expect(happened.locator(".events").first).to_contain_text("4.2% of the trajectories failed: 4.2% as env_error")
    expect(happened.locator(".mark.kind-failure")).to_have_attribute("aria-label", re.compile("failure at step 9"))
    happened.locator(".mark.kind-alarm").click()
    expect(page.locator(".counted")).to_have_text("48 conversations")
    assert hash_of(page)[1]["step"] == "22"


def test_the_bar_of_time_has_every_phase_with_its_share(page: Page, site: str) -> None:
    go(page, site + RUN)
    times = page.get_by_label("Time of a step")
    expect(times.locator(".bar .part")).to_have_count(8)  # 7 phases at step 40, and the rest
    widths = times.locator(".bar .part").evaluate_all("parts => parts.map(part => part.getBoundingClientRect().width)")
    assert widths[0] == pytest.approx(sum(widths) * 0.36, rel=0.1)
    page.get_by_label("Step", exact=True).fill("4")
    expect(times.locator("output")).to_have_text("step 5")
    expect(times.locator(".bar .part")).to_have_count(6)


def test_the_configuration_and_its_difference(page: Page, site: str) -> None:
    go(page, site + RUN)
    page.locator("summary", has_text="Configuration").click()
    page.get_by_label("Find a key or value").fill("optim.lr")
    expect(page.locator(".config tbody tr:visible")).to_have_text(["actor_rollout_ref.actor.optim.lr0.00001"])
    page.get_by_label("Difference to").select_option("no_tool")
    expect(page.locator(".config tbody tr:visible")).to_have_text(["actor_rollout_ref.actor.optim.lr0.000010.000003"])


def test_the_table_has_all_rows_but_draws_few_and_is_walked_with_keys(page: Page, site: str) -> None:
    go(page, f"{site}{RUN}/conversations")
    expect(page.locator(".counted")).to_have_text("1,920 conversations")
    expect(page.locator(".table")).to_have_attribute("aria-rowcount", "1921")
    assert page.locator(".space .row").count() < 60
    for _ in range(3):
        page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator('.row.at[data-index="1"]')).to_be_focused()
    page.locator(".scroller").evaluate("node => node.scrollTo(0, node.scrollHeight)")
    expect(page.locator('.row[data-index="1919"]')).to_be_visible()
    assert page.locator(".space .row").count() < 60
    page.keyboard.press("Enter")
    expect(page.locator(".message").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator(".neighbours")).to_contain_text("3 of 1,920")
    page.keyboard.press("Escape")
    expect(page.locator('.row.at[data-index="2"]')).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator(".chart").first).to_be_visible()


def test_filters_and_order_ask_the_server_and_stay_in_the_address(page: Page, site: str) -> None:
    go(page, f"{site}{RUN}/conversations?step=12")
    expect(page.locator(".counted")).to_have_text("48 conversations")
    page.locator(".after").click()
    expect(page.locator(".steps")).to_contain_text("step 13")
    page.get_by_role("button", name="Clear filters").click()
    page.keyboard.press("/")
    page.keyboard.type("never CLOSED")
    wanted = rows(site, text="never closed", limit=1)["total"]
    expect(page.locator(".counted")).to_have_text(f"{wanted} conversations")
    page.get_by_label("Reward from").fill("5")
    expect(page.locator(".nothing")).to_have_text("No conversation fits these filters.")
    page.get_by_label("Reward from").fill("")
    page.get_by_role("button", name="Tokens").click()
    page.get_by_role("button", name="Tokens").click()
    expect(page.locator(".space .tokens").first).to_have_text(
        str(rows(site, text="never closed", sort="tokens", order="asc", limit=1)["rows"][0]["tokens"])
    )
    query = hash_of(page)[1]
    assert (query["text"], query["sort"], query["order"]) == ("never CLOSED", "tokens", "asc")
    page.reload()
    expect(page.locator(".counted")).to_have_text(f"{wanted} conversations")
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("Set").select_option("validation")
    expect(page.locator(".counted")).to_have_text("24 conversations")


def test_groups_stand_side_by_side_with_their_advantages(page: Page, site: str) -> None:
    go(page, f"{site}{RUN}/groups?step=14")
    expect(page.locator(".group")).to_have_count(6)
    cards = page.locator(".group").first.locator(".card")
    expect(cards).to_have_count(8)
    row = httpx.get(f"{site}api/runs/with_tool/groups", params={"step": 14}).json()["groups"][0]["rows"][0]
    sign = "+" if row["advantage"] > 0 else "−"
    expect(cards.first).to_contain_text(f"adv. {sign}{abs(row['advantage']):.3g}")
    tops = cards.evaluate_all("cards => cards.map(card => card.getBoundingClientRect().top)")
    assert len(set(tops)) == 1
    page.get_by_label("order").focus()
    page.get_by_label("order").select_option("worst first")
    page.keyboard.press("Escape")  # leaves the field, not the view
    page.keyboard.press("]")
    expect(page.get_by_label("Step", exact=True)).to_have_value("15")
    page.get_by_role("link", name="this prompt over the steps").first.click()
    expect(page.locator(".group h2").first).to_have_text(re.compile(r"Step \d"))
    expect(page.locator(".plot canvas")).to_be_visible()
    assert page.locator(".group").count() == STEPS // 4


def test_a_chat_shows_calls_results_errors_rewards_and_times(page: Page, site: str) -> None:
    go(page, view(site, "chat"))
    expect(page.locator(".role-assistant .call")).to_contain_text("calls calculator")
    expect(page.locator(".role-tool.wrong")).to_contain_text("✖ error")
    expect(page.locator(".role-tool.wrong")).to_contain_text("was never closed")
    side = page.get_by_label("Reward and time")
    expect(side).to_contain_text("tool_use")
    expect(side.locator(".waterfall li")).to_have_count(7)  # three waits, two turns, a call, the score
    expect(side.locator(".sums")).to_contain_text("generate")
    page.get_by_role("tab", name="As rendered").click()
    expect(page.locator("pre.exact").first).to_contain_text("<|im_start|>system\nYou answer with a number.")
    page.get_by_role("link", name="its group").click()
    expect(page.locator(".group")).to_have_count(1)


def test_a_conversation_is_copied_as_a_test(page: Page, site: str) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    go(page, view(site, "test"))
    page.get_by_role("button", name="Copy as test case").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    compile(page.evaluate("navigator.clipboard.readText()"), "copied", "exec")


def test_each_token_has_its_number_under_the_pointer_and_the_focus(page: Page, site: str) -> None:
    found = httpx.get(f"{site}api/runs/with_tool/trajectories/{wrong_call(site)['id']}").json()["tokens"]
    go(page, f"{view(site, 'tokens').partition('?')[0]}?tab=tokens&colour=log_prob")
    spans = page.locator(".stream .t")
    assert spans.count() == len(found["id"])
    order = sorted((i for i, on in enumerate(found["mask"]) if on), key=lambda i: found["log_prob"][i])
    expect(spans.nth(order[0])).to_be_focused()  # the least likely one at once
    spans.nth(3).hover()
    shown = page.locator(".tip").inner_text()
    assert float(shown.rpartition(" ")[2]) == pytest.approx(found["log_prob"][3], rel=1e-3)
    page.keyboard.press("n")
    lowest = order[1]
    expect(spans.nth(lowest)).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(spans.nth(lowest + 1)).to_be_focused()
    expect(page.locator(".token-panel")).to_contain_text(f"{lowest + 2} of {len(found['id'])}")
    assert hash_of(page)[1]["token"] == str(lowest + 1)
    page.get_by_label("Colour by").select_option("difference")
    differences = [
        abs(train - rollout) for train, rollout in zip(found["train_log_prob"], found["log_prob"], strict=True)
    ]
    expect(spans.nth(differences.index(max(differences)))).to_have_class(re.compile("chosen"))


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_colour_of_a_token_can_be_read_and_has_a_mark_beside_it(page: Page, site: str, colours: Any) -> None:
    page.emulate_media(color_scheme=colours)
    go(page, view(site, "tokens"))
    page.get_by_label("Colour by").locator("option[value=change]").wait_for(state="attached")
    for way in ("mask", "log_prob", "version", "advantage", "difference", "change"):
        page.get_by_label("Colour by").select_option(way)
        looks = page.locator(".legend .t").evaluate_all(
            """nodes => nodes.map(node => {
                const style = getComputedStyle(node);
                const ground = style.backgroundColor === 'rgba(0, 0, 0, 0)'
                    ? getComputedStyle(document.documentElement).backgroundColor : style.backgroundColor;
                const mark = [style.textDecorationLine, style.textDecorationStyle, style.textDecorationThickness];
                return [style.color, ground, mark.join(' ')];
            })"""
        )
        assert looks
        assert len({mark for _, _, mark in looks}) == len(looks), f"{way}: told apart by colour alone"
        for text, ground, mark in looks:
            assert contrast(text, ground) >= 4.5, f"{way}, {mark}: {text} on {ground}"


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_texts_have_enough_contrast(page: Page, site: str, colours: Any) -> None:
    page.emulate_media(color_scheme=colours)
    seen = 0
    for name in ("run", "conversations", "chat"):
        go(page, view(site, name))
        pairs = page.evaluate(
            """() => [...document.querySelectorAll('body *')].filter(node => node.checkVisibility()
                && [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())).map(node => {
                let ground = 'rgba(0, 0, 0, 0)';
                for (let at = node; at && ground === 'rgba(0, 0, 0, 0)'; at = at.parentElement)
                    ground = getComputedStyle(at).backgroundColor;
                return [getComputedStyle(node).color, ground, node.outerHTML.slice(0, 120)];
            })"""
        )
        seen += len(pairs)
        assert [(text, on, node) for text, on, node in pairs if contrast(text, on) < 4.5] == []
    assert seen > 100


def contrast(text: str, ground: str) -> float:
    """WCAG's ratio of two colours as `rgb(1, 2, 3)`."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(text), light(ground)))
    return (high + 0.05) / (low + 0.05)


def test_what_a_model_writes_stays_text(page: Page, site: str) -> None:
    row = rows(site, text="window.hacked", limit=1)["rows"][0]
    go(page, f"{site}{RUN}/conversations?text=hacked")
    expect(page.locator(".space .start")).to_contain_text("<script>window.hacked = 1</script>")
    for tab in ("chat", "tokens", "prompt", "test"):
        go(page, f"{site}{RUN}/conversation/{row['id']}?tab={tab}")
        shown = page.locator("#panel").inner_text()
        assert "window.hacked = 1" in shown
        assert not re.search("[\u202a-\u202e\u0000\u0007]", shown)
        if tab != "test":
            assert "⟨U+202E⟩" in shown
            assert "⟨U+0000⟩" in shown
            assert "שלום" in shown
        assert page.locator("main script, main img").count() == 0
    assert page.evaluate("window.hacked") is None
    assert "script" in HOSTILE


def test_four_thousand_tokens_are_drawn_within_a_second(page: Page, site: str) -> None:
    row = rows(site, tokens_min=4000, limit=1)["rows"][0]
    go(page, f"{site}{RUN}/conversation/{row['id']}")
    chrome = page.context.new_cdp_session(page)
    chrome.send("Performance.enable", {"timeDomain": "threadTicks"})  # its own work, whatever else the machine does

    def worked() -> float:
        found = chrome.send("Performance.getMetrics")["metrics"]
        return next(float(metric["value"]) for metric in found if metric["name"] == "TaskDuration")

    before = worked()
    page.get_by_role("tab", name="Tokens").click()
    page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    took = worked() - before
    chrome.detach()
    assert page.locator(".stream .t").count() == row["tokens"] > 4000
    assert 0.001 < took < 1


def test_no_view_is_wider_than_a_phone(page: Page, site: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    for name in VIEWS:
        go(page, view(site, name))
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") == 360, name


def test_keys_are_explained(page: Page, site: str) -> None:
    go(page, f"{site}{RUN}/conversations")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next conversation")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("1")
    expect(page.locator(".chart").first).to_be_visible()


def test_dark_and_light_are_the_system_s_until_the_reader_chooses(browser: Browser, site: str) -> None:
    with watched_page(browser, site) as page:
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        go(page, site)
        light = page.evaluate(ground)
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(ground) != light
        page.locator("button.theme").click()  # from the system's to light
        assert page.evaluate(ground) == light
        page.reload()
        page.locator("button.theme").wait_for()
        assert page.evaluate(ground) == light


def test_a_run_without_dumps_says_which_key_writes_them(page: Page, site: str) -> None:
    go(page, f"{site}#/run/no_tool/conversations")
    expect(page.locator(".empty")).to_contain_text("trainer.rollout_data_dir")
    go(page, f"{site}#/run/none")
    expect(page.locator(".empty")).to_contain_text("No run is called none.")
