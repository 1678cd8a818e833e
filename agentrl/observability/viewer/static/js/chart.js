// One chart: curves of several runs, marks of events, and a click that goes to the step. uPlot draws.
import { button, el, say } from "./dom.js";
import { number, seconds } from "./format.js";
import { colour } from "./palette.js";
import { positive, smooth } from "./series.js";

const HEIGHT = 180;

/**
 * Draw one metric.
 *
 * @param title the metric
 * @param curves [{name, x, y, steps, colour, dash}], one for each run
 * @param events [{x, step, kind, text}] of the first run
 * @param options {log, weight, axis: "step"|"seconds", pick(curveIndex, step), remove()}
 */
export function chart(title, curves, events, options) {
  const readout = el("output", { class: "readout" });
  const holder = el("div", {
    class: "plot",
    tabindex: "0",
    role: "group",
    "data-enter": true,
    "aria-label": spoken(title, curves),
  });
  const close = options.remove
    ? button("×", options.remove, { class: "close", "aria-label": `Remove ${title}`, title: "Remove" })
    : null;
  const box = el(
    "figure",
    { class: "chart", "data-metric": title },
    el("figcaption", {}, el("span", { class: "metric", title }, title), readout, close),
    holder,
  );
  const { data, series, left_out } = prepared(curves, options);
  if (left_out) box.append(el("p", { class: "muted small" }, `${left_out} values ≤ 0 have no place on a log scale`));
  let plot = null;
  const at = { index: null };

  /** The curve whose point is nearest to the pointer, at the cursor's x. */
  const chosen = (index, top) => {
    const near = curves.map((curve, i) => {
      const value = data[2 * i + 2][index];
      return value === null || value === undefined ? Infinity : Math.abs(plot.valToPos(value, "y") - top);
    });
    return near.indexOf(Math.min(...near));
  };
  const show = (index) => {
    at.index = index;
    if (index === null || index === undefined) return void (readout.textContent = last(curves));
    const x = data[0][index];
    const place = options.axis === "seconds" ? `after ${seconds(x)}` : `step ${number(x)}`;
    const values = curves.map((_, i) => number(data[2 * i + 2][index])).join(" · ");
    readout.textContent = `${place}: ${values}`;
  };
  const pick = (index, top) => {
    if (index === null || index === undefined) return;
    const which = Math.max(0, chosen(index, top));
    const curve = curves[which];
    const step = options.axis === "seconds" ? nearest(curve, data[0][index]) : data[0][index];
    options.pick(which, step);
  };
  const move = (by) => {
    if (!data[0].length) return;
    const index = Math.max(0, Math.min(data[0].length - 1, (at.index ?? (by > 0 ? -1 : data[0].length)) + by));
    plot.setCursor({ left: plot.valToPos(data[0][index], "x"), top: 20 });
    show(index);
    say(readout.textContent);
  };
  holder.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") move(event.key === "ArrowRight" ? 1 : -1);
    else if (event.key === "Enter") pick(at.index ?? data[0].length - 1, 20);
    else return;
    event.preventDefault();
  });

  const draw = () => {
    plot?.destroy();
    plot = new window.uPlot(
      settings(series(), events, { ...options, width: holder.clientWidth || 320, show }),
      data,
      holder,
    );
    plot.over.addEventListener("click", (event) => pick(plot.cursor.idx, event.offsetY));
    show(null);
  };
  const sized = new ResizeObserver(() => plot?.setSize({ width: holder.clientWidth, height: HEIGHT }));
  return {
    box,
    draw() {
      draw();
      sized.observe(holder);
    },
    destroy() {
      sized.disconnect();
      plot?.destroy();
    },
  };
}

/** Each run gives two columns: what was measured (faint when smoothed) and the smoothed line. */
function prepared(curves, { log, weight }) {
  let left_out = 0;
  const tables = curves.map((curve) => {
    const { kept, left_out: gone } = log ? positive(curve.y) : { kept: curve.y, left_out: 0 };
    left_out += gone;
    return [curve.x, kept, smooth(kept, weight)];
  });
  const data = tables.length ? window.uPlot.join(tables) : [[]];
  const series = () => [
    {},
    ...curves.flatMap((curve) => [
      {
        show: weight > 0,
        stroke: colour(curve.variable),
        width: 1,
        alpha: 0.3,
        spanGaps: true,
        points: { show: false },
      },
      {
        stroke: colour(curve.variable),
        width: 1.75,
        dash: curve.dash,
        spanGaps: true,
        points: { show: curve.x.length < 40, size: 5, fill: colour(curve.variable) },
      },
    ]),
  ];
  return { data, series, left_out };
}

function settings(series, events, { width, log, axis, show }) {
  const line = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1, size: 4 },
    font: "11px system-ui, sans-serif",
  };
  const time =
    axis === "seconds"
      ? (_, ticks) => ticks.map((tick) => seconds(tick))
      : (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : ""));
  const tints = Object.fromEntries(MARKED.map((kind) => [kind, colour(`--${kind}`)]));
  return {
    width,
    height: HEIGHT,
    series,
    legend: { show: false },
    padding: [6, 12, 0, 0],
    cursor: { sync: { key: `steps-${axis}`, setSeries: false }, drag: { x: true, y: false }, points: { size: 7 } },
    scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
    axes: [
      { ...line, values: time, size: 26, space: 55 },
      { ...line, size: 52, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
    ],
    hooks: { setCursor: [(plot) => show(plot.cursor.idx)], draw: [(plot) => marks(plot, events, tints)] },
  };
}

const MARKED = ["alarm", "failure", "resume"];
export const SIGNS = {
  alarm: "▲",
  alarm_end: "△",
  failure: "✖",
  skipped: "⊘",
  end: "■",
  checkpoint: "◆",
  resume: "↻",
  validation: "◇",
};

/** A dashed line and a sign for each alarm and failure; other events only have their place in the list. */
function marks(plot, events, tints) {
  const { ctx, bbox } = plot;
  const scale = window.devicePixelRatio || 1;
  ctx.save();
  ctx.font = `${11 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  for (const event of events.filter(({ kind }) => kind in tints)) {
    const x = plot.valToPos(event.x, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = tints[event.kind];
    ctx.setLineDash(event.kind === "failure" ? [] : [3 * scale, 3 * scale]);
    ctx.lineWidth = scale;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + 12 * scale);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(SIGNS[event.kind], x, bbox.top + 10 * scale);
  }
  ctx.restore();
}

function nearest(curve, x) {
  let best = 0;
  curve.x.forEach((value, i) => {
    if (Math.abs(value - x) < Math.abs(curve.x[best] - x)) best = i;
  });
  return curve.steps[best];
}

function last(curves) {
  return curves.map((curve) => number(curve.y.at(-1))).join(" · ");
}

function spoken(title, curves) {
  const each = curves.map(
    (curve) => `${curve.name}: ${curve.y.length} points, first ${number(curve.y[0])}, last ${number(curve.y.at(-1))}`,
  );
  return `${title}. ${each.join("; ")}. Arrow keys move through the steps, Enter opens the conversations of one.`;
}
