// When a conversation generated, ran tools, waited and was scored.
import { el } from "./dom.js";
import { count, seconds, share } from "./format.js";

const KNOWN = ["generate", "tool", "wait", "score"];

/** @param timeline [{name, start, seconds, detail}] or null */
export function waterfall(timeline) {
  if (!timeline?.length)
    return el(
      "section",
      { class: "side" },
      el("h2", {}, "Time"),
      el("p", { class: "muted" }, "The dump holds no times of this conversation."),
    );
  const first = Math.min(...timeline.map((span) => span.start));
  const whole = Math.max(...timeline.map((span) => span.start + span.seconds)) - first || 1e-9;
  const sums = Map.groupBy(timeline, (span) => span.name);
  return el(
    "section",
    { class: "side" },
    el("h2", {}, "Time ", el("b", {}, seconds(whole))),
    el(
      "ul",
      { class: "sums" },
      [...sums].map(([name, spans]) => {
        const sum = spans.reduce((total, span) => total + span.seconds, 0);
        return el(
          "li",
          {},
          el("span", { class: `swatch span-${look(name)}` }),
          ` ${name} ${seconds(sum)} (${share(sum, whole)}, ${count(spans.length, "time")})`,
        );
      }),
    ),
    el(
      "ol",
      { class: "waterfall", tabindex: "0", "aria-label": "Time line" },
      timeline.map((span) => line(span, first, whole)),
    ),
  );
}

function line(span, first, whole) {
  const text = `${span.name}${span.detail ? ` ${span.detail}` : ""}`;
  return el(
    "li",
    { title: `${text}: ${seconds(span.seconds)}, from ${seconds(span.start - first)}` },
    el("span", { class: "name" }, text),
    el(
      "span",
      { class: "lane" },
      el("span", {
        class: `span span-${look(span.name)}`,
        vars: { "--from": (span.start - first) / whole, "--share": span.seconds / whole },
      }),
    ),
    el("span", { class: "long" }, seconds(span.seconds)),
  );
}

function look(name) {
  return KNOWN.includes(name) ? name : "wait";
}
