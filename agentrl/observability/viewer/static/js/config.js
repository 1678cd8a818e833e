// The configuration of a run, and where another run's differs.
import { get } from "./api.js";
import { el, fill } from "./dom.js";
import { note } from "./route.js";

export function showConfig(box, loaded, runs, query, signal) {
  const { run } = loaded[0];
  const others = runs.filter((one) => one.id !== run.id);
  const against = el("select", {
    "aria-label": "Difference to",
    on: { change: () => (note({ diff: against.value }), draw()) },
  });
  against.append(
    el("option", { value: "" }, "all keys"),
    ...others.map((one) =>
      el(
        "option",
        { value: one.id, selected: one.id === (query.diff ?? loaded[1]?.run.id) },
        `difference to ${one.name}`,
      ),
    ),
  );
  const search = el("input", {
    type: "search",
    placeholder: "Find a key or value",
    "aria-label": "Find a key or value",
    value: query.key,
    on: { input: () => (note({ key: search.value }), filter()) },
  });
  const holder = el("div", { class: "config" });
  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of holder.querySelectorAll("tbody tr"))
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  };
  const draw = async () => {
    try {
      fill(
        holder,
        await (against.value
          ? difference(
              run,
              others.find((one) => one.id === against.value),
              signal,
            )
          : allKeys(run, signal)),
      );
    } catch (error) {
      if (error.name !== "AbortError") fill(holder, el("p", { class: "muted" }, error.message));
    }
    filter();
  };
  const details = el(
    "details",
    { open: Boolean(query.diff || query.key || loaded.length > 1) },
    el("summary", {}, el("h2", {}, "Configuration")),
    el("div", { class: "controls" }, others.length ? against : null, search),
    holder,
  );
  details.addEventListener("toggle", () => details.open && !holder.hasChildNodes() && draw());
  fill(box, details);
  if (details.open) draw();
}

async function allKeys(run, signal) {
  const keys = flat(await get(["runs", run.id, "config"], {}, signal));
  return table(
    ["key", "value"],
    keys.map(([key, value]) => [key, shown(value)]),
  );
}

async function difference(run, other, signal) {
  const found = await get(["config_difference"], { run: [run.id, other.id] }, signal);
  if (!found.length) return el("p", {}, "No key differs.");
  return table(
    ["key", run.name, other.name],
    found.map(({ key, values }) => [key, ...values.map(shown)]),
  );
}

function table(head, rows) {
  return el(
    "table",
    {},
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        head.map((name) => el("th", { scope: "col" }, name)),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map(([key, ...values]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, key),
          values.map((value) => el("td", {}, value)),
        ),
      ),
    ),
  );
}

/** {a: {b: 1}} -> [["a.b", 1]]; lists stay values. */
export function flat(value, before = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value) || !Object.keys(value).length)
    return [[before, value]];
  return Object.entries(value).flatMap(([key, inner]) => flat(inner, before ? `${before}.${key}` : key));
}

function shown(value) {
  if (value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}
