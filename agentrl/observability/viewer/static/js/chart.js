// One chart: curves of several runs, marks of events, and a click that goes to the step. uPlot draws.
import { button, el, say } from "./dom.js";
import { number, seconds } from "./format.js";
import { colour } from "./palette.js";
import { nearest, positive, smooth } from "./series.js";

const HEIGHT = 180;

/** One metric as a figure: `box` is put into the page, then `draw` is called, in the end `destroy`. */
export class Chart {
  /**
   * @param title the metric
   * @param curves [{name, x, y, steps, variable, dash}], one for each run
   * @param events [{x, step, kind, text}] of the first run
   * @param options {log, weight, axis: "step"|"seconds", pick(curve, step), unzoom(), remove()}
   */
  constructor(title, curves, events, options) {
    Object.assign(this, { title, curves, events, options, plot: null, index: null });
    const { data, left_out } = prepared(curves, options);
    this.data = data;
    this.readout = el("output", { class: "readout" });
    this.zoomed = button("reset zoom", () => options.unzoom(), { class: "close", hidden: true });
    this.holder = el("div", {
      class: "plot",
      tabindex: "0",
      role: "group",
      "data-enter": true,
      "aria-label": spoken(title, curves),
      on: { keydown: (event) => this.pressed(event) },
    });
    const remove = { class: "close", "aria-label": `Remove ${title}`, title: "Remove" };
    this.box = el(
      "figure",
      { class: "chart", "data-metric": title },
      el(
        "figcaption",
        {},
        el("span", { class: "metric", title }, title),
        this.readout,
        this.zoomed,
        options.remove ? button("×", options.remove, remove) : null,
      ),
      this.holder,
      left_out ? el("p", { class: "muted small" }, `${left_out} values ≤ 0 have no place on a log scale`) : null,
    );
    this.sized = new ResizeObserver(() => this.plot?.setSize({ width: this.holder.clientWidth, height: HEIGHT }));
  }

  /** To be called once the figure is in the page: the plot is as wide as its place. */
  draw() {
    const { options, holder } = this;
    const tints = Object.fromEntries(MARKED.map((kind) => [kind, colour(`--${kind}`)]));
    const own = {
      width: holder.clientWidth || 320,
      hooks: {
        setCursor: [(plot) => this.show(plot.cursor.idx)],
        draw: [(plot) => marks(plot, this.events, tints)],
        setSelect: [(plot) => (this.zoomed.hidden = !plot.select.width)],
      },
    };
    this.plot = new window.uPlot(settings(this.curves, options, own), this.data, holder);
    this.plot.over.addEventListener("click", (event) => this.pick(this.plot.cursor.idx, event.offsetY));
    this.show(null);
    this.sized.observe(holder);
  }

  /** Whether these curves can take the place of those that are drawn. */
  fits(title, curves) {
    return title === this.title && curves.length === this.curves.length;
  }

  /** More points: what is zoomed stays, and where the reader is. */
  update(curves, events) {
    this.data = prepared(curves, this.options).data;
    Object.assign(this, { curves, events });
    this.holder.setAttribute("aria-label", spoken(this.title, curves));
    this.plot.setData(this.data, this.zoomed.hidden);
    this.show(this.index);
  }

  destroy() {
    this.sized.disconnect();
    this.plot?.destroy();
  }

  /** Charts beside each other are zoomed together, and so back. */
  unzoom() {
    this.plot.setData(this.data);
    this.zoomed.hidden = true;
  }

  /** The measured values at a place, or the last ones. */
  show(index) {
    this.index = index ?? null;
    if (this.index === null) return void (this.readout.textContent = last(this.curves));
    const x = this.data[0][index];
    const place = this.options.axis === "seconds" ? `after ${seconds(x)}` : `step ${number(x)}`;
    const values = this.curves.map((_, i) => number(this.data[2 * i + 1][index]));
    this.readout.textContent = `${place}: ${values.join(" · ")}`;
  }

  /** Choose the point of the curve that is nearest to a height, at the cursor's x. */
  pick(index, top) {
    if (index === null || index === undefined || !this.curves.length) return;
    const away = this.curves.map((_, i) => {
      const value = this.data[2 * i + 2][index];
      return value === null || value === undefined ? Infinity : Math.abs(this.plot.valToPos(value, "y") - top);
    });
    const curve = this.curves[away.indexOf(Math.min(...away))];
    this.options.pick(curve, curve.steps[nearest(curve.x, this.data[0][index])]);
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.data[0].length) return;
    if (event.key === "ArrowRight") this.move(1);
    else if (event.key === "ArrowLeft") this.move(-1);
    else if (event.key === "Enter") this.pick(this.index ?? this.data[0].length - 1, 20);
    else return;
    event.preventDefault();
  }

  move(by) {
    const points = this.data[0].length;
    const from = this.index ?? (by > 0 ? -1 : points);
    const index = Math.max(0, Math.min(points - 1, from + by));
    this.plot.setCursor({ left: this.plot.valToPos(this.data[0][index], "x"), top: 20 });
    this.show(index);
    say(this.readout.textContent);
  }
}

/** Each run gives two columns: what was measured, and the same smoothed. */
function prepared(curves, { log, weight }) {
  let left_out = 0;
  const tables = curves.map((curve) => {
    const { kept, left_out: gone } = log ? positive(curve.y) : { kept: curve.y, left_out: 0 };
    left_out += gone;
    return [curve.x, kept, smooth(kept, weight)];
  });
  return { data: tables.length ? window.uPlot.join(tables) : [[]], left_out };
}

/** What was measured is faint, and only there beside a smoothed line. */
function lines(curves, weight) {
  const drawn = curves.flatMap((curve) => {
    const [stroke, spanGaps] = [colour(curve.variable), true];
    const points = { show: curve.x.length < 40, size: 5, fill: stroke };
    return [
      { show: weight > 0, stroke, width: 1, alpha: 0.3, spanGaps, points: { show: false } },
      { stroke, width: 1.75, dash: curve.dash, spanGaps, points },
    ];
  });
  return [{}, ...drawn];
}

function settings(curves, { log, weight, axis }, { width, hooks }) {
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
  return {
    width,
    height: HEIGHT,
    series: lines(curves, weight),
    legend: { show: false },
    padding: [6, 12, 0, 0],
    cursor: { sync: { key: `steps-${axis}`, setSeries: false }, drag: { x: true, y: false }, points: { size: 7 } },
    scales: { x: { time: false }, y: log ? { distr: 3 } : {} },
    axes: [
      { ...line, values: time, size: 26, space: 55 },
      { ...line, size: 52, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
    ],
    hooks,
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

function last(curves) {
  return curves.map((curve) => number(curve.y.at(-1))).join(" · ");
}

function spoken(title, curves) {
  const each = curves.map(
    (curve) => `${curve.name}: ${curve.y.length} points, first ${number(curve.y[0])}, last ${number(curve.y.at(-1))}`,
  );
  return `${title}. ${each.join("; ")}. Arrow keys move through the steps, Enter opens the conversations of one.`;
}
