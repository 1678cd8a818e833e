// The charts of a run: which metrics, smoothing, log scale, over steps or time.
import { Chart } from "./chart.js";
import { el, empty, fill } from "./dom.js";
import { picker } from "./picker.js";
import { runStyle } from "./palette.js";
import { go, note } from "./route.js";
import { points, usual } from "./series.js";

/** Draw them; returns {redraw}, which keeps what the reader chose and reads `loaded` again. */
export async function curves(box, loaded, query, signal) {
  const names = () => [...new Set(loaded.flatMap(({ data }) => data.names))].sort();
  const state = {
    metrics: query.metrics === undefined ? null : query.metrics.split(",").filter(Boolean),
    weight: Math.min(0.99, Math.max(0, Number(query.smooth) || 0)),
    log: query.log === "1",
    axis: query.x === "seconds" ? "seconds" : "step",
  };
  const grid = el("div", { class: "charts" });
  let charts = [];
  const shown = () => state.metrics ?? usual(names());
  const clear = () => charts.splice(0).forEach((one) => one.destroy());
  const draw = async () => {
    await Promise.all(loaded.map(({ data }) => data.need(shown())));
    if (signal.aborted) return;
    clear();
    charts = shown().map(
      (name) =>
        new Chart(name, ofRuns(loaded, name, state.axis), events(loaded[0], state.axis), {
          ...state,
          pick: (curve, step) => open(curve.run, name, step),
          unzoom: () => charts.forEach((one) => one.unzoom()),
          remove: () => set({ metrics: shown().filter((one) => one !== name) }),
        }),
    );
    fill(
      grid,
      charts.map((one) => one.box),
    );
    const missing = loaded[0].data.problem ?? "The first one is being made.";
    if (!charts.length)
      fill(
        grid,
        names().length
          ? empty("No metric is chosen.", "Choose some under “Metrics”.")
          : empty("No steps yet.", missing),
      );
    for (const one of charts) one.draw();
  };
  const redraw = async () => {
    await Promise.all(loaded.map(({ data }) => data.need(shown())));
    const now = shown().map((name) => ofRuns(loaded, name, state.axis));
    const same = now.length === charts.length && now.every((found, i) => charts[i].fits(shown()[i], found));
    if (!same) return draw();
    charts.forEach((one, i) => one.update(now[i], events(loaded[0], state.axis)));
  };
  const set = (changes) => {
    Object.assign(state, changes);
    note({
      metrics: state.metrics?.join(","),
      smooth: state.weight || "",
      log: state.log ? 1 : "",
      x: state.axis === "step" ? "" : "seconds",
    });
    draw();
  };
  const choose = picker(names, shown, (metrics) => set({ metrics }));
  fill(box, el("div", { class: "controls" }, el("h2", {}, "Curves"), choose, controls(state, set)), grid);
  document.addEventListener("themechange", draw, { signal });
  signal.addEventListener("abort", clear);
  await draw();
  return { redraw };
}

function controls(state, set) {
  const weight = el("input", {
    type: "range",
    name: "smooth",
    min: 0,
    max: 0.99,
    step: 0.01,
    value: state.weight,
    on: { input: () => set({ weight: Number(weight.value) }) },
  });
  const log = el("input", {
    type: "checkbox",
    name: "log",
    checked: state.log,
    on: { change: () => set({ log: log.checked }) },
  });
  const axis = el("select", { name: "x", on: { change: () => set({ axis: axis.value }) } });
  for (const [value, text] of [
    ["step", "steps"],
    ["seconds", "time"],
  ])
    axis.append(el("option", { value, selected: value === state.axis }, text));
  return [el("label", {}, "Smooth ", weight), el("label", {}, log, " Log scale"), el("label", {}, "Over ", axis)];
}

function ofRuns(loaded, name, axis) {
  return loaded
    .map(({ run, data }, i) => ({ run, name: run.name, ...runStyle(i), ...points(data, name, axis) }))
    .filter((curve) => curve.x.length || loaded.length === 1);
}

function events({ events: happened, data }, axis) {
  if (axis === "step") return happened.map((event) => ({ ...event, x: event.step }));
  const when = new Map(data.steps.map((step, i) => [step, data.seconds[i]]));
  return happened.filter((event) => when.has(event.step)).map((event) => ({ ...event, x: when.get(event.step) }));
}

/** The conversations behind a point: those of the validation for a metric of the validation. */
function open(run, name, step) {
  go(["run", run.id, "conversations"], { set: name.startsWith("val-") ? "validation" : "train", step });
}
