// The table of conversations: filters, order, and what arrives while a run goes on.
import { get } from "./api.js";
import { button, el, empty, fill } from "./dom.js";
import { filterForm, fromQuery } from "./filters.js";
import { count, number, signed, visible, whole } from "./format.js";
import { viewKeys } from "./keys.js";
import { every } from "./live.js";
import { href, note, queryText } from "./route.js";
import { virtualTable } from "./virtual_table.js";

const COLUMNS = [
  { name: "step", title: "Step", sort: "step" },
  { name: "text", title: "Question and answer" },
  { name: "reward", title: "Reward", sort: "reward" },
  { name: "advantage", title: "Adv." },
  { name: "stop", title: "Ended by" },
  { name: "turns", title: "Turns", sort: "turns" },
  { name: "used", title: "Tools" },
  { name: "tokens", title: "Tokens", sort: "tokens" },
];

export async function showConversations(main, { run, query, signal }) {
  if (!run.has_rollouts && !run.has_validation) return fill(main, await noDumps(run, signal));
  const state = fromQuery(query);
  if (!query.set && !run.has_rollouts) state.set = "validation";
  const order = { sort: query.sort ?? "step", order: query.order ?? "desc" };
  const facets = await get(["runs", run.id, "facets"], { set: state.set }, signal);
  const asked = () => ({ ...state, ...order });
  const counted = el("span", { class: "counted" });
  const nothing = el("p", { class: "nothing" });
  const fresh = button("", () => list.reset(), { class: "fresh", hidden: true });
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
  const remember = () => {
    note({
      step: "",
      at: "",
      ...Object.fromEntries(
        [
          "step_min",
          "step_max",
          "data_source",
          "stop_reason",
          "tool",
          "reward_min",
          "reward_max",
          "turns_min",
          "turns_max",
          "tokens_min",
          "tokens_max",
          "text",
          "uid",
        ].map((name) => [name, state[name] ?? ""]),
      ),
      set: state.set,
      ...order,
    });
  };
  const changed = () => {
    remember();
    steps.replaceChildren(...stepButtons(state, facets, goStep));
    list.reset().catch(quiet);
  };
  const steps = el("span", { class: "steps" });
  const goStep = (step) => {
    Object.assign(state, { step_min: String(step), step_max: String(step) });
    form.replaceWith((form = filterForm(state, facets, run, changed)));
    changed();
  };
  let form = filterForm(state, facets, run, changed);
  steps.append(...stepButtons(state, facets, goStep));
  fill(main, form, el("div", { class: "controls above" }, counted, fresh, steps), list.table, nothing);
  viewKeys({
    j: ["next conversation", () => list.walk(1)],
    k: ["previous conversation", () => list.walk(-1)],
    J: ["ten further", () => list.walk(10)],
    K: ["ten back", () => list.walk(-10)],
    Enter: ["open it", () => list.open()],
    "[": ["the step before", () => steps.querySelector(".before")?.click()],
    "]": ["the step after", () => steps.querySelector(".after")?.click()],
  });
  await list.reset(query.at ? Number(query.at) : -1);
  every(
    4,
    async () => {
      const answer = await get(["runs", run.id, "trajectories"], { ...asked(), offset: 0, limit: 1 }, signal);
      if (!answer.complete || (shown === 0 && answer.total)) return list.reset();
      const more = answer.total - shown;
      fresh.textContent = `${count(Math.max(0, more), "more", "more")}: show`;
      fresh.hidden = more <= 0;
    },
    signal,
  );
}

/** Where the table shows one step: the one before and the one after it. */
function stepButtons(state, facets, goStep) {
  if (!state.step_min || state.step_min !== state.step_max || !facets.steps) return [];
  const [first, last] = facets.steps;
  const step = Number(state.step_min);
  return [
    button("‹", () => goStep(step - 1), { class: "before", disabled: step <= first, "aria-label": "The step before" }),
    el("b", {}, `step ${step}`),
    button("›", () => goStep(step + 1), { class: "after", disabled: step >= last, "aria-label": "The step after" }),
  ];
}

function cells(row) {
  const words = row.tools.join(", ");
  return [
    String(row.step),
    [el("span", { class: "question" }, visible(row.question)), el("span", { class: "start" }, visible(row.start))],
    el("b", {}, number(row.reward)),
    signed(row.advantage),
    row.stop_reason || "–",
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

function quiet(error) {
  if (error.name !== "AbortError") throw error;
}
