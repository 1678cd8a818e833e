// The filters of the conversations' table; what is set is what the address and the server get.
import { el, fill } from "./dom.js";
import { visible } from "./format.js";

export const FILTERS = [
  "set",
  "step_min",
  "step_max",
  "data_source",
  "stop_reason",
  "failed",
  "tool",
  "reward_min",
  "reward_max",
  "turns_min",
  "turns_max",
  "tokens_min",
  "tokens_max",
  "text",
  "uid",
];
const WIDE = "(min-width: 760px)";

/** The filters in an address: `step=3` means from 3 to 3. */
export function fromQuery(query) {
  const found = Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));
  if (query.step) Object.assign(found, { step_min: query.step, step_max: query.step });
  return { set: "train", ...found };
}

/** How many filters are set; the set of conversations is none. */
export function isFiltered(state) {
  return Object.keys(state).filter((name) => name !== "set").length;
}

/**
 * @param state the filters, changed in place
 * @param facets what the server knows of: {steps, data_sources, stop_reasons, tools, failed}
 * @param run tells which sets there are
 * @param changed called after each change
 */
export function filterForm(state, facets, run, changed) {
  const form = el("form", {
    class: "filters",
    "aria-label": "Filters",
    on: { submit: (event) => event.preventDefault() },
  });
  const details = el("details", { class: "filter-box", open: matchMedia(WIDE).matches }, el("summary", {}), form);
  let timer = 0;
  const set = (name, value, wait = 0) => {
    if (value === "") delete state[name];
    else state[name] = value;
    clearTimeout(timer);
    timer = setTimeout(() => (summary(), changed()), wait);
  };
  const summary = () => {
    const used = isFiltered(state);
    fill(details.firstChild, used ? `Filters (${used})` : "Filters");
  };
  const field = (label, ...inputs) => el("label", {}, el("span", {}, label), el("span", { class: "inputs" }, inputs));
  const numeric = (name, label, placeholder, step = "any") =>
    el("input", {
      type: "number",
      name,
      step,
      placeholder,
      "aria-label": label,
      value: state[name],
      on: { input: (event) => set(name, event.target.value, 250) },
    });
  const range = (title, name, step) =>
    el(
      "div",
      { class: "field", role: "group", "aria-label": title },
      el("span", {}, title),
      el(
        "span",
        { class: "inputs" },
        numeric(`${name}_min`, `${title} from`, "from", step),
        numeric(`${name}_max`, `${title} to`, "to", step),
      ),
    );
  const choice = (title, name, values, all, words = {}) => {
    const known = state[name] && !values.includes(state[name]) ? [state[name], ...values] : values;
    const select = el(
      "select",
      { name, on: { change: () => set(name, select.value) } },
      all ? el("option", { value: "" }, all) : null,
    );
    select.append(...known.map((value) => el("option", { value, selected: value === state[name] }, words[value] ?? visible(value))));
    return known.length > (all ? 0 : 1) ? field(title, select) : null;
  };
  const text = el("input", {
    type: "search",
    name: "text",
    placeholder: "in question or answer",
    "data-search": true,
    value: state.text,
    on: { input: () => set("text", text.value, 250) },
  });
  const sets = [run.has_rollouts ? "train" : null, run.has_validation ? "validation" : null].filter(Boolean);
  fill(
    form,
    el("label", { class: "wide" }, el("span", {}, "Text"), text),
    choice("Set", "set", sets),
    range("Step", "step", "1"),
    range("Reward", "reward"),
    choice("Source", "data_source", facets.data_sources, "all"),
    choice("Ended by", "stop_reason", facets.stop_reasons, "all"),
    choice("Failed", "failed", facets.failed ? ["true", "false"] : [], "all", { true: "failed", false: "not failed" }),
    choice("Tool", "tool", facets.tools, "any"),
    range("Turns", "turns", "1"),
    range("Tokens", "tokens", "1"),
  );
  summary();
  return details;
}
