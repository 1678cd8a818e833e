// Where the time of a step went: one bar for each run, its parts told apart by pattern and name as well as by colour.
import { el, fill } from "./dom.js";
import { seconds, share } from "./format.js";
import { note } from "./route.js";
import { nearest } from "./series.js";

/** Returns {redraw}: after new steps, the bar stays where the reader put it, or follows the last step. */
export function showTiming(box, loaded, query) {
  const steps = () => loaded[0].timing.steps;
  const state = { step: query.at ? Number(query.at) : null };
  const bars = el("div");
  const where = el("output");
  const slider = el("input", {
    type: "range",
    "aria-label": "Step",
    on: { input: () => choose(Number(slider.value)) },
  });
  const draw = () => {
    if (!steps().length) return fill(box, el("h2", {}, "Time of a step"), el("p", { class: "muted" }, "No times yet."));
    const index = state.step === null ? steps().length - 1 : nearest(steps(), state.step);
    slider.min = 0;
    slider.max = steps().length - 1;
    slider.value = index;
    where.textContent = `step ${steps()[index]}${state.step === null ? " (the last)" : ""}`;
    fill(
      bars,
      loaded.map((one) => bar(one, steps()[index], loaded.length > 1)),
    );
  };
  const choose = (index) => {
    state.step = index === steps().length - 1 ? null : steps()[index];
    note({ at: state.step });
    draw();
  };
  fill(box, el("h2", {}, "Time of a step"), el("div", { class: "controls" }, slider, where), bars);
  draw();
  return { redraw: draw };
}

function bar({ run, timing }, step, named) {
  const index = nearest(timing.steps, step);
  if (index < 0) return el("p", { class: "muted" }, `${run.name}: no times`);
  const parts = Object.entries(timing.phases).map(([name, values]) => [name, values[index] ?? 0]);
  parts.push(["other", timing.other[index] ?? 0]);
  const used = parts
    .map(([name, value], i) => ({ name, value, look: name === "other" ? "other" : i % 8 }))
    .filter(({ value }) => value > 0);
  const whole = used.reduce((sum, { value }) => sum + value, 0);
  return el(
    "div",
    { class: "split" },
    named ? el("h3", {}, run.name) : null,
    el(
      "div",
      {
        class: "bar",
        role: "img",
        "aria-label": used.map(({ name, value }) => `${name} ${share(value, whole)}`).join(", "),
      },
      used.map(({ name, value, look }) =>
        el(
          "span",
          {
            class: `part look-${look}`,
            title: `${name}: ${seconds(value)}, ${share(value, whole)}`,
            vars: { "--share": value / whole },
          },
          value / whole > 0.12 ? el("i", {}, name) : null,
        ),
      ),
    ),
    el(
      "table",
      { class: "parts" },
      used.map(({ name, value, look }) =>
        el(
          "tr",
          {},
          el("td", {}, el("span", { class: `swatch look-${look}` })),
          el("th", { scope: "row" }, name),
          el("td", {}, seconds(value)),
          el("td", {}, share(value, whole)),
        ),
      ),
      el("tr", { class: "sum" }, el("td"), el("th", { scope: "row" }, "step"), el("td", {}, seconds(whole)), el("td")),
    ),
  );
}
