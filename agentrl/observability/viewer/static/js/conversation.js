// One conversation: what was said, what was sampled, what was rewarded, and how long it took.
import { get } from "./api.js";
import { chat } from "./chat.js";
import { button, el, fill } from "./dom.js";
import { count, number, signed, visible, whole } from "./format.js";
import { viewKeys } from "./keys.js";
import { exact, testCase } from "./texts.js";
import { go, href, note, parse } from "./route.js";
import { rewardParts } from "./reward.js";
import { TokenView } from "./tokens.js";
import { waterfall } from "./waterfall.js";

const TABS = [
  ["chat", "Chat"],
  ["tokens", "Tokens"],
  ["prompt", "As rendered"],
  ["test", "Test case"],
];

export async function showConversation(main, { run, query, path, signal }) {
  const id = path[0];
  const found = await get(["runs", run.id, "trajectories", id], {}, signal);
  const failed = found.row.failed;
  const panels = {
    chat: () => (failed ? failure(found) : chat(found.messages)),
    tokens: () => tokenPanel(run, found, query, signal),
    prompt: () => exact(found),
    test: () => testCase(found.test_case),
  };
  const shownTabs = failed ? TABS.slice(0, 1) : TABS; // of what failed nothing is known but what was said
  const body = el("div", { class: "tab-body", role: "tabpanel", id: "panel", tabindex: "-1" });
  let current = null;
  const tabs = shownTabs.map(([name, title]) =>
    el("button", { type: "button", role: "tab", "aria-controls": "panel", on: { click: () => show(name) } }, title),
  );
  const show = (name, noted = true) => {
    current?.leave?.();
    current = panels[name]();
    tabs.forEach((tab, i) => tab.setAttribute("aria-selected", String(shownTabs[i][0] === name)));
    fill(body, current.box ?? current);
    current.shown?.();
    if (noted) note({ tab: name === "chat" ? "" : name });
    keys(name);
  };
  const neighbours = el("span", { class: "neighbours" });
  const known = drawNeighbours(neighbours, run, found, query, signal).catch(() => {}); // the page is whole without them
  const turn = async (which) => {
    await known;
    neighbours.querySelector(which)?.click();
  };
  const keys = (name) =>
    viewKeys({
      j: ["next conversation of the list", () => turn(".after")],
      k: ["previous conversation", () => turn(".before")],
      ...(failed
        ? {}
        : {
            t: ["tokens or chat", () => show(name === "tokens" ? "chat" : "tokens")],
            p: ["the text as rendered", () => show("prompt")],
            x: ["the test case", () => show("test")],
          }),
      ...(name === "tokens" ? current.keys : {}),
    });
  const tokens = found.tokens;
  fill(
    main,
    head(run, found, neighbours),
    el(
      "div",
      { class: "sides" },
      el("div", { class: "left" }, el("div", { class: "tabs", role: "tablist" }, tabs), body),
      failed
        ? null
        : el(
            "aside",
            { "aria-label": "Reward and time" },
            rewardParts(found.reward, found.ground_truth),
            waterfall(found.timeline),
            amounts(tokens),
          ),
    ),
  );
  show(shownTabs.some(([name]) => name === query.tab) ? query.tab : "chat", false);
  signal.addEventListener("abort", () => current?.leave?.());
}

/** Why a trajectory failed, also at earlier tries, and what was said until then. */
function failure({ error, earlier_errors, messages }) {
  return el(
    "div",
    {},
    el(
      "div",
      { class: "message wrong failure", role: "note" },
      el("b", { class: "error-mark" }, "✖ failed, so left out of training"),
      el("div", { class: "text", dir: "auto" }, visible(error)),
      earlier_errors.length
        ? el(
            "details",
            {},
            el("summary", {}, count(earlier_errors.length, "earlier try", "earlier tries")),
            earlier_errors.map((one) => el("div", { class: "text", dir: "auto" }, visible(one))),
          )
        : null,
    ),
    messages.length ? chat(messages) : el("p", { class: "muted" }, "Nothing is known of what was said."),
  );
}

function head(run, { row, messages }, neighbours) {
  const question = messages.filter((message) => message.role === "user").at(0)?.content;
  const facts = [
    ["step", row.step],
    ["reward", number(row.reward)],
    ["advantage", signed(row.advantage)],
    ["ended by", visible(row.stop_reason) || "–"],
    ["turns", whole(row.turns)],
    ["calls", whole(row.tool_calls)],
    ["tokens", whole(row.tokens)],
    ["source", visible(row.data_source) || "–"],
  ];
  const { query } = parse();
  return el(
    "div",
    { class: "conversation-head" },
    el(
      "div",
      { class: "controls" },
      el(
        "a",
        {
          href: href(
            ["run", run.id, ...(query.list ?? "conversations").split("/")],
            Object.fromEntries(new URLSearchParams(query.from)),
          ),
        },
        "‹ list",
      ),
      neighbours,
      el("a", { href: href(["run", run.id, "groups"], { set: row.set, step: row.step, uid: row.uid }) }, "its group"),
      row.failed
        ? null
        : el(
            "a",
            { href: href(["run", run.id, "prompt", row.prompt_key], { set: row.set }) },
            "this prompt over the steps",
          ),
    ),
    el("h1", { dir: "auto" }, visible(typeof question === "string" ? question : row.question)),
    el(
      "div",
      { class: "facts" },
      facts.map(([name, value]) =>
        el("span", { class: "fact" }, el("span", { class: "muted" }, name), " ", el("b", {}, value)),
      ),
    ),
  );
}

/** The conversations before and after this one in the list that it was opened from. */
async function drawNeighbours(box, run, found, query, signal) {
  if (query.at === undefined || (query.list && query.list !== "conversations")) {
    const { previous, next } = found.neighbours;
    const to = (id) => go(["run", run.id, "conversation", id], kept());
    return fill(
      box,
      arrows(
        () => to(previous),
        previous === null,
        " in the dump ",
        () => to(next),
        next === null,
      ),
    );
  }
  const at = Number(query.at);
  const filters = Object.fromEntries(new URLSearchParams(query.from));
  delete filters.at;
  const offset = Math.max(0, at - 1);
  const { rows, total } = await get(["runs", run.id, "trajectories"], { ...filters, offset, limit: 3 }, signal);
  const to = (index) => {
    const row = rows[index - offset];
    if (row)
      go(["run", run.id, "conversation", row.id], {
        from: new URLSearchParams({ ...filters, at: index }).toString(),
        at: index,
        ...kept(),
      });
  };
  const place = ` ${at + 1} of ${total.toLocaleString("en")} `;
  fill(
    box,
    arrows(
      () => to(at - 1),
      at <= 0,
      place,
      () => to(at + 1),
      at >= total - 1,
    ),
  );
}

/** What the reader looks at stays the same in the next conversation. */
function kept() {
  const { tab, colour } = parse().query;
  return { tab, colour };
}

function arrows(before, first, place, after, last) {
  return [
    button("‹", before, { class: "before", disabled: first, "aria-label": "The conversation before" }),
    place,
    button("›", after, { class: "after", disabled: last, "aria-label": "The conversation after" }),
  ];
}

/** An answer to the same prompt from the last step before this one's: what has training changed? Null: none. */
async function earlier(run, row, signal) {
  const rows = await get(["runs", run.id, "prompts", row.prompt_key], { set: row.set }, signal);
  const before = rows.filter((one) => one.step < row.step).at(-1);
  return before ? get(["runs", run.id, "trajectories", before.id], {}, signal) : null;
}

function tokenPanel(run, { row, tokens }, query, signal) {
  if (tokens.id.length || tokens.text.length) return new TokenView(tokens, query, () => earlier(run, row, signal));
  return el("p", { class: "muted" }, visible(tokens.note ?? "The dump holds no tokens."));
}

function amounts(tokens) {
  const sampled = tokens.mask.filter(Boolean).length;
  const trained = tokens.loss_mask.filter(Boolean).length;
  const versions = [...new Set(tokens.weight_version.filter((version, i) => tokens.mask[i] && version !== null))];
  return el(
    "section",
    { class: "side" },
    el("h2", {}, "Tokens"),
    el(
      "p",
      {},
      `${count(tokens.id.length, "token")}: ${whole(sampled)} sampled, ${whole(trained)} trained on; `,
      `weights of version ${versions.join(", ") || "unknown"}.`,
    ),
  );
}
