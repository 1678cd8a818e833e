// One run: its curves, what happened, where the time went, its configuration.
import { get } from "./api.js";
import { showConfig } from "./config.js";
import { curves } from "./curves.js";
import { button, el, fill } from "./dom.js";
import { ago, number, seconds } from "./format.js";
import { showEvents } from "./events.js";
import { viewKeys } from "./keys.js";
import { every } from "./live.js";
import { Metrics } from "./metrics.js";
import { runStyle } from "./palette.js";
import { go, parse } from "./route.js";
import { stateBadge } from "./runs.js";
import { showTiming } from "./timing.js";

const LIVE_SECONDS = 3;

export async function showRun(main, { run, runs, query, signal }) {
  const others = (query.with ?? "").split(",").filter((id) => id !== run.id && runs.some((one) => one.id === id));
  const ids = [run.id, ...others];
  const loaded = await Promise.all(
    ids.map((id) =>
      loadRun(
        runs.find((one) => one.id === id),
        signal,
      ),
    ),
  );
  const facts = el("section", { class: "facts", "aria-label": "State" });
  const compared = el("section", { class: "compared", "aria-label": "Runs in the charts" });
  const [curvesBox, eventsBox, timingBox, configBox] = [
    "Curves",
    "What happened",
    "Time of a step",
    "Configuration",
  ].map((name) => el("section", { "aria-label": name }));
  fill(main, facts, compared, curvesBox, el("div", { class: "two" }, eventsBox, timingBox), configBox);
  const drawFacts = () => fill(facts, stateBadge(loaded[0].run), ...factList(loaded[0]), trouble(loaded[0].run));
  drawFacts();
  chooseRuns(compared, loaded, runs);
  const drawn = await curves(curvesBox, loaded, query, signal);
  const times = showTiming(timingBox, loaded, query, signal);
  showEvents(eventsBox, loaded[0]);
  showConfig(configBox, loaded, runs, query, signal);
  viewKeys({
    l: ["logarithmic scale", () => curvesBox.querySelector("[name=log]").click()],
    a: [
      "add a metric",
      () => {
        curvesBox.querySelector(".metrics").open = true;
        curvesBox.querySelector(".metrics input").focus();
      },
    ],
  });
  if (loaded.some((one) => one.run.state === "running")) {
    every(
      LIVE_SECONDS,
      async () => {
        if (!(await updated(loaded, signal))) return;
        drawFacts();
        await drawn.redraw();
        times.redraw();
        showEvents(eventsBox, loaded[0]);
      },
      signal,
    );
  }
}

async function loadRun(run, signal) {
  const ask = (what) => get(["runs", run.id, what], {}, signal);
  const [data, events, timing] = await Promise.all([new Metrics(run, signal).open(), ask("events"), ask("timing")]);
  return { run, data, events, timing };
}

/** Ask for what came after the last step that is known; whether anything did. */
async function updated(loaded, signal) {
  const runs = await get(["runs"], {}, signal);
  let news = false;
  for (const one of loaded) {
    const now = runs.find((run) => run.id === one.run.id) ?? one.run;
    news ||= now.state !== one.run.state || now.updated !== one.run.updated;
    if (now.step === one.run.step && now.updated === one.run.updated) continue;
    one.run = now;
    await one.data.more();
    [one.events, one.timing] = await Promise.all(
      ["events", "timing"].map((what) => get(["runs", now.id, what], {}, signal)),
    );
  }
  return news;
}

/** Why a run failed, or what of it cannot be read. */
function trouble(run) {
  const texts = [run.error, run.problem].filter(Boolean);
  return texts.length ? el("p", { class: "trouble" }, texts.join("; ")) : null;
}

function factList({ run, data }) {
  const total = run.total_steps;
  const lasted = data.seconds.at(-1);
  const steps = run.step ?? data.steps.at(-1) ?? 0;
  const left = run.state === "running" && total && steps ? ((total - steps) * lasted) / steps : null;
  const pairs = [
    ["step", total ? `${steps} of ${total}` : String(steps)],
    ["reward", number(run.reward)],
    ["time", seconds(lasted)],
    left ? ["left", `about ${seconds(Math.round(left))}`] : null,
    ["updated", ago(run.updated)],
  ];
  return pairs
    .filter(Boolean)
    .map(([name, value]) =>
      el("span", { class: "fact" }, el("span", { class: "muted" }, name), " ", el("b", {}, value)),
    );
}

/** Which runs lie over each other, each with its colour and dashes, and a choice of more. */
function chooseRuns(box, loaded, runs) {
  const shown = loaded.map(({ run }) => run.id);
  const set = (ids) => {
    const { path, query } = parse();
    go(path, { ...query, with: ids.filter((id) => id !== shown[0]).join(",") });
  };
  const chips = loaded.map(({ run }, i) =>
    el(
      "span",
      { class: "chip" },
      line(i),
      run.name,
      i
        ? button("×", () => set(shown.filter((id) => id !== run.id)), {
            class: "close",
            "aria-label": `Take ${run.name} out of the charts`,
          })
        : null,
    ),
  );
  const more = runs.filter((run) => !shown.includes(run.id));
  const add = el("select", {
    "aria-label": "Lay another run over this one",
    on: { change: () => add.value && set([...shown, add.value]) },
  });
  add.append(
    el("option", { value: "" }, "+ compare with …"),
    ...more.map((run) => el("option", { value: run.id }, run.name)),
  );
  fill(box, chips, more.length ? add : null);
}

/** A short sample of a run's line. */
function line(index) {
  const { variable, dash } = runStyle(index);
  const canvas = el("canvas", { width: 56, height: 12, class: "sample", "aria-hidden": "true" });
  const draw = canvas.getContext("2d");
  draw.strokeStyle = runStyle(index).colour;
  draw.lineWidth = 4;
  draw.setLineDash(dash.map((length) => 2 * length));
  draw.moveTo(0, 6);
  draw.lineTo(56, 6);
  draw.stroke();
  canvas.dataset.colour = variable;
  return canvas;
}
