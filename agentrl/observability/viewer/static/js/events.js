// Alarms, failures, checkpoints and validations, by step: signs on a line, and a list in words.
import { el, fill } from "./dom.js";
import { seconds } from "./format.js";
import { href } from "./route.js";
import { SIGNS } from "./chart.js";

const LONG = 40;
const SERIOUS = ["alarm", "alarm_end", "failure", "skipped", "end"];

export function showEvents(box, { run, events, data }) {
  const heading = el("h2", {}, "What happened");
  if (!events.length) return fill(box, heading, el("p", { class: "muted" }, "No alarms, no failures."));
  const shown = [...events].sort((a, b) => b.step - a.step);
  const serious = shown.filter((event) => SERIOUS.includes(event.kind));
  const rest = shown.filter((event) => !serious.includes(event));
  fill(
    box,
    heading,
    timeLine(run, events, data),
    serious.length ? list(run, serious.slice(0, LONG)) : el("p", { class: "muted" }, "No alarms, no failures."),
    rest.length
      ? el(
          "details",
          {},
          el("summary", {}, `${rest.length} checkpoints, validations and resumes`),
          list(run, rest.slice(0, 10 * LONG)),
        )
      : null,
  );
}

/** The whole run from left to right, with a link for each event at its step. */
function timeLine(run, events, data) {
  const first = Math.min(...events.map((event) => event.step), data.steps[0] ?? 0);
  const end = Math.max(run.total_steps ?? 0, ...events.map((event) => event.step), data.steps.at(-1) ?? 1, 1);
  const done = (100 * ((data.steps.at(-1) ?? 0) - first)) / (end - first || 1);
  const at = (step) => `${(100 * (step - first)) / (end - first || 1)}%`;
  const order = ["checkpoint", "validation", "resume", "alarm_end", "skipped", "end", "alarm", "failure"];
  const sorted = [...events].sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind)); // what matters lies on top
  return el(
    "div",
    { class: "timeline-events" },
    el("div", { class: "done", vars: { "--share": `${Math.min(100, done)}%` } }),
    sorted.map((event) =>
      el(
        "a",
        {
          class: `mark kind-${event.kind}`,
          href: address(run, event),
          title: `${event.kind} at step ${event.step}: ${event.text}`,
          "aria-label": `${event.kind} at step ${event.step}: ${event.text}`,
          vars: { "--at": at(event.step) },
        },
        SIGNS[event.kind] ?? "•",
      ),
    ),
    el("span", { class: "from muted" }, `step ${first}`),
    el("span", { class: "to muted" }, `step ${end}`),
  );
}

function list(run, events) {
  return el(
    "ul",
    { class: "events" },
    events.map((event) =>
      el(
        "li",
        {},
        el(
          "a",
          { href: address(run, event), class: `kind-${event.kind}` },
          `${SIGNS[event.kind] ?? "•"} step ${event.step}`,
        ),
        " ",
        event.text.startsWith(event.kind.split("_")[0]) ? null : el("b", {}, `${named(event.kind)} `),
        event.text,
        event.time ? el("span", { class: "muted" }, ` (after ${seconds(event.time)})`) : null,
      ),
    ),
  );
}

function named(kind) {
  return kind.replaceAll("_", " ");
}

function address(run, event) {
  return href(["run", run.id, "conversations"], {
    set: event.kind === "validation" ? "validation" : "train",
    step: event.step,
    failed: event.kind === "failure" ? "true" : "",
  });
}
