// All runs that the server found.
import { el, empty, fill } from "./dom.js";
import { ago, number } from "./format.js";
import { viewKeys } from "./keys.js";
import { get } from "./api.js";
import { every } from "./live.js";
import { walk } from "./walk.js";
import { href } from "./route.js";

export function showRuns(main, { runs, signal }) {
  if (!runs.length)
    return fill(
      main,
      empty("No runs here yet.", "Start one with `agentrl demo`, or name a run's folder: `agentrl view FOLDER`."),
    );
  const list = el("ul", { class: "runs" });
  const draw = (found) => fill(list, found.map(row));
  draw(runs);
  fill(main, el("h1", {}, "Runs"), list);
  viewKeys(walk(list, "a"));
  every(5, async () => draw(await get(["runs"], {}, signal)), signal);
}

function row(run) {
  return el(
    "li",
    {},
    el(
      "a",
      { href: href(["run", run.id]) },
      el("strong", {}, run.name),
      stateBadge(run),
      el("span", {}, `step ${run.step ?? 0}${run.total_steps ? ` of ${run.total_steps}` : ""}`),
      el("span", {}, `reward ${number(run.reward)}`),
      el("span", { class: "muted" }, ago(run.updated)),
      el("span", { class: "muted path" }, run.path),
    ),
  );
}

const SIGNS = { running: "▶", finished: "✔", failed: "✖", killed: "✖", stopped: "■", unknown: "?" };

/** The state as a sign and a word: never as a colour alone. */
export function stateBadge(run) {
  return el("span", { class: `state state-${run.state}` }, `${SIGNS[run.state] ?? "?"} ${run.state}`);
}
