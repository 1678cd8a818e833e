// One prompt over the steps of training: its reward as a curve, its answers step by step.
import { get } from "./api.js";
import { cards } from "./cards.js";
import { Chart } from "./chart.js";
import { el, empty, fill } from "./dom.js";
import { count, number, visible } from "./format.js";
import { viewKeys } from "./keys.js";
import { runStyle } from "./palette.js";
import { queryText } from "./route.js";
import { walk } from "./walk.js";

export async function showPrompt(main, { run, query, path, signal }) {
  const set = query.set ?? "train";
  const rows = await get(["runs", run.id, "prompts", path[0]], { set }, signal);
  if (!rows.length) return fill(main, empty("No conversation has this prompt."));
  const steps = [...Map.groupBy(rows, (row) => row.step)];
  const mean = (found) => found.reduce((sum, row) => sum + (row.reward ?? 0), 0) / found.length;
  const numbers = steps.map(([step]) => step);
  const curve = () => ({
    name: run.name,
    ...runStyle(0),
    x: numbers,
    y: steps.map(([, found]) => mean(found)),
    steps: numbers,
  });
  const list = el(
    "div",
    { class: "groups" },
    steps.map(([step, found]) =>
      el(
        "section",
        { class: "group", id: `step-${step}` },
        el("h2", {}, `Step ${step}`),
        el("p", { class: "muted small" }, `${count(found.length, "answer")}, mean reward ${number(mean(found))}`),
        cards(run, found, { list: `prompt/${path[0]}`, from: queryText({ set }) }),
      ),
    ),
  );
  const holder = el("div", { class: "charts one" });
  let drawn = null;
  const draw = () => {
    drawn?.destroy();
    drawn = new Chart("mean reward of this prompt", [curve()], [], {
      axis: "step",
      weight: 0,
      log: false,
      unzoom: () => drawn.unzoom(),
      pick: (_, step) => list.querySelector(`#step-${step} a.card`)?.focus(),
    });
    fill(holder, drawn.box);
    drawn.draw();
  };
  fill(
    main,
    el("h1", { class: "prompt-title", dir: "auto" }, visible(rows[0].question)),
    el("p", { class: "muted" }, `${count(rows.length, "conversation")} at ${count(steps.length, "step")}`),
    holder,
    list,
  );
  draw();
  document.addEventListener("themechange", draw, { signal });
  signal.addEventListener("abort", () => drawn?.destroy());
  viewKeys(walk(list, "a.card"));
}
