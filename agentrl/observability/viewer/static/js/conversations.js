// The table of conversations: filters, order, and what arrives while a run goes on.
import { get } from "./api.js";
import { button, el, empty, fill } from "./dom.js";
import { FILTERS, filterForm, fromQuery, isFiltered } from "./filters.js";
import { count, number, signed, visible, whole } from "./format.js";
import { viewKeys } from "./keys.js";
import { every } from "./live.js";
import { href, note, queryText } from "./route.js";
import { stepButtons } from "./step_buttons.js";
import { virtualTable } from "./virtual_table.js";

const COLUMNS = [
  { name: "step", title: "Step", sort: "step" },
  { name: "text", title: "Question and answer" },
  { name: "reward", title: "Reward", sort: "reward" },
  { name: "advantage", title: "Adv.", sort: "advantage" },
  { name: "stop", title: "Ended by" },
  { name: "turns", title: "Turns", sort: "turns" },
  { name: "used", title: "Tools", sort: "tool_calls" },
  { name: "tokens", title: "Tokens", sort: "tokens" },
];

export async function showConversations(main, { run, query, signal }) {
  if (!run.has_rollouts && !run.has_validation) return fill(main, await noDumps(run, signal));
  const state = fromQuery(query);
  if (!query.set && !run.has_rollouts) state.set = "validation";
  const order = { sort: query.sort ?? "step", order: query.order ?? "desc" };
  let facets = await facetsOf(run, state.set, signal);
  const asked = () => ({ ...state, ...order });
  const counted = el("span", { class: "counted" });
  const nothing = el("p", { class: "nothing" });
  const fresh = button("", () => refresh(), { class: "fresh", hidden: true });
  let shown = 0;
  const list = virtualTable({
    columns: COLUMNS,
    load: (offset, limit) => get(["runs", run.id, "trajectories"], { ...asked(), offset, limit }, signal),
    cells,
    link: (row, index) =>
      href(["run", run.id, "conversation", row.id], { from: queryText({ ...asked(), at: index }), at: index }),
    moved: (index) => note({ at: index }),
    answered: (answer) => {
      shown = answer.total;
      fresh.hidden = true;
      counted.textContent =
        count(answer.total, "conversation") +
        (answer.complete ? "" : `, ${answer.indexed.toLocaleString("en")} indexed so far …`);
      if (answer.damaged) counted.textContent += `, ${count(answer.damaged, "damaged line")} left out`;
      nothing.textContent = visible(
        answer.problem ?? (answer.complete ? "No conversation fits these filters." : "Nothing yet …"),
      );
      list.table.classList.toggle("none", !answer.total);
    },
    sorted: {
      now: () => order,
      change: (name) => {
        const same = order.sort === name;
        Object.assign(order, { sort: name, order: same && order.order === "desc" ? "asc" : "desc" });
        remember();
      },
    },
  });
  const remember = () =>
    note({ step: "", at: "", ...Object.fromEntries(FILTERS.map((name) => [name, state[name] ?? ""])), ...order });
  const changed = () => {
    remember();
    return refresh(state.set !== facets.set);
  };
  const refresh = async (otherFacets = true) => {
    try {
      if (otherFacets) facets = await facetsOf(run, state.set, signal);
      drawForm();
      await list.reset();
    } catch (error) {
      failed(error);
    }
  };
  const failed = (error) => {
    if (error.name === "AbortError") return;
    nothing.textContent = visible(error.message);
    list.table.classList.add("none");
  };
  const form = el("div");
  const steps = el("span", { class: "steps" });
  const clear = button("Clear filters", () => {
    for (const name of Object.keys(state)) if (name !== "set") delete state[name];
    form.replaceChildren();
    changed();
  });
  /** The form is made anew where it would show something else: other facets, or values that were not typed into it. */
  const drawForm = () => {
    clear.hidden = !isFiltered(state);
    const one = state.step_min && state.step_min === state.step_max;
    const buttons = one ? stepButtons(facets, Number(state.step_min), goStep) : [];
    fill(steps, one ? [buttons[0], el("b", {}, `step ${state.step_min}`), buttons[1]] : null);
    if (form.firstChild && form.dataset.set === facets.set) return;
    form.dataset.set = facets.set;
    fill(form, filterForm(state, facets, run, changed));
  };
  const goStep = (step) => {
    Object.assign(state, { step_min: String(step), step_max: String(step) });
    form.replaceChildren();
    changed();
  };
  drawForm();
  fill(main, form, el("div", { class: "controls above" }, counted, clear, fresh, steps), list.table, nothing);
  viewKeys({
    j: ["next conversation", () => list.walk(1)],
    k: ["previous conversation", () => list.walk(-1)],
    J: ["ten further", () => list.walk(10)],
    K: ["ten back", () => list.walk(-10)],
    Enter: ["open it", () => list.open()],
    "[": ["the step before", () => steps.querySelector(".before")?.click()],
    "]": ["the step after", () => steps.querySelector(".after")?.click()],
  });
  await list.reset(query.at ? Number(query.at) : -1).catch(failed);
  every(
    4,
    async () => {
      const answer = await get(["runs", run.id, "trajectories"], { ...asked(), offset: 0, limit: 1 }, signal);
      if (shown === 0 && answer.total) return refresh();
      const more = answer.total - shown;
      fresh.textContent = `${count(Math.max(0, more), "more", "more")}: show`;
      fresh.hidden = more <= 0;
    },
    signal,
  );
}

async function facetsOf(run, set, signal) {
  return { set, ...(await get(["runs", run.id, "facets"], { set }, signal)) };
}

function cells(row) {
  const words = visible(row.tools.join(", "));
  return [
    String(row.step),
    [
      el("span", { class: "question" }, visible(row.question)),
      el("span", { class: row.failed ? "start error-mark" : "start" }, `${row.failed ? "✖ " : ""}${visible(row.start)}`),
    ],
    el("b", {}, number(row.reward)),
    signed(row.advantage),
    visible(row.stop_reason) || "–",
    whole(row.turns),
    row.tool_calls ? `${row.tool_calls}× ${words}` : "–",
    whole(row.tokens),
  ];
}

/** For a run without dumps: the server says which key writes them. */
export async function noDumps(run, signal) {
  const { problem } = await get(["runs", run.id, "facets"], { set: "train" }, signal);
  return empty("This run has no conversations.", visible(problem ?? ""));
}
