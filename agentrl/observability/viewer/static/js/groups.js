// The groups of one step: answers to the same prompt side by side, with their advantages.
import { get } from "./api.js";
import { cards } from "./cards.js";
import { button, el, empty, fill } from "./dom.js";
import { count, number, visible } from "./format.js";
import { noDumps } from "./conversations.js";
import { viewKeys } from "./keys.js";
import { go, href, note, queryText } from "./route.js";
import { stepButtons } from "./step_buttons.js";
import { walk } from "./walk.js";

const AT_ONCE = 30;
const MOST = 1000;

export async function showGroups(main, { run, query, signal }) {
  if (!run.has_rollouts && !run.has_validation) return fill(main, await noDumps(run, signal));
  const set = query.set ?? (run.has_rollouts ? "train" : "validation");
  const facets = await get(["runs", run.id, "facets"], { set }, signal);
  if (!facets.steps) return fill(main, empty("No conversations yet."));
  const [first, last] = facets.steps;
  const step = query.step ? Number(query.step) : last;
  const order = query.order ?? "as sampled";
  const { groups, total } = await get(["runs", run.id, "groups"], { set, step, uid: query.uid, limit: MOST }, signal);
  const to = (next) => go(["run", run.id, "groups"], { ...query, set, step: next });
  const number_ = el("input", {
    type: "number",
    min: first,
    max: last,
    value: step,
    "aria-label": "Step",
    "data-search": true,
    on: { change: () => to(number_.value) },
  });
  const sort = el("select", { on: { change: () => (note({ order: sort.value }), draw(sort.value)) } });
  sort.append(...Object.keys(ORDERS).map((name) => el("option", { selected: name === order }, name)));
  const [before, after] = stepButtons(facets, step, to);
  const list = el("div", { class: "groups" });
  const draw = (name, limit = AT_ONCE) => {
    const sorted = [...groups].sort(ORDERS[name] ?? (() => 0));
    fill(
      list,
      sorted
        .slice(0, limit)
        .map((group) => section(run, group, { list: "groups", from: queryText({ ...query, set, step }) })),
    );
    if (sorted.length > limit)
      list.append(
        button(
          `Show ${Math.min(AT_ONCE, sorted.length - limit)} more of ${sorted.length}`,
          () => draw(name, limit + AT_ONCE),
          { class: "primary" },
        ),
      );
    if (!sorted.length) list.append(empty(`Step ${step} has no conversations.`));
  };
  const only = query.uid
    ? el(
        "span",
        { class: "chip" },
        "one group ",
        el("a", { href: href(["run", run.id, "groups"], { ...query, uid: "" }) }, "show all"),
      )
    : null;
  fill(
    main,
    el(
      "div",
      { class: "controls" },
      el("h1", {}, "Groups"),
      before,
      el("label", {}, "step ", number_),
      after,
      el("label", {}, "order ", sort),
      only,
      el("span", { class: "muted" }, count(total, "group")),
    ),
    list,
  );
  draw(order);
  viewKeys({
    ...walk(list, "a.card"),
    "[": ["the step before", () => before.click()],
    "]": ["the step after", () => after.click()],
  });
}

const rewardsOf = (group) => group.rows.map((row) => row.reward).filter((reward) => reward !== null);
const spread = (group) => (rewardsOf(group).length ? Math.max(...rewardsOf(group)) - Math.min(...rewardsOf(group)) : 0);
const ORDERS = {
  "as sampled": () => 0,
  "best first": (a, b) => b.mean - a.mean,
  "worst first": (a, b) => a.mean - b.mean,
  "widest spread first": (a, b) => spread(b) - spread(a),
};

function section(run, group, from) {
  const rewards = rewardsOf(group);
  const failed = group.rows.filter((row) => row.failed).length;
  const same = rewards.length > 1 && new Set(rewards).size === 1 ? " · all the same: nothing to learn" : "";
  return el(
    "section",
    { class: "group", "aria-label": visible(group.question) },
    el("h2", { dir: "auto" }, visible(group.question)),
    el(
      "p",
      { class: "muted small" },
      `${count(group.rows.length - failed, "answer")}, ${failed ? `${failed} failed, ` : ""}`,
      `mean reward ${number(group.mean)}${same}`,
      group.rows[0]?.failed
        ? null
        : [
            " · ",
            el(
              "a",
              { href: href(["run", run.id, "prompt", group.prompt_key], { set: group.rows[0]?.set }) },
              "this prompt over the steps",
            ),
          ],
    ),
    cards(run, group.rows, from),
  );
}
