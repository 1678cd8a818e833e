// The reward and its parts, and what was asked for.
import { el } from "./dom.js";
import { cut, number, visible } from "./format.js";

export function rewardParts(reward, truth) {
  const parts = Object.entries(reward?.parts ?? {});
  const largest = Math.max(1e-9, ...parts.map(([, value]) => (typeof value === "number" ? Math.abs(value) : 0)));
  return el(
    "section",
    { class: "side" },
    el("h2", {}, "Reward ", el("b", {}, number(reward?.score))),
    parts.length
      ? el(
          "table",
          { class: "parts" },
          parts.map(([name, value]) => part(name, value, largest)),
        )
      : el("p", { class: "muted" }, "The score function gave no parts."),
    truth === null || truth === undefined
      ? null
      : el(
          "div",
          {},
          el("h3", {}, "Ground truth"),
          el(
            "pre",
            { class: "truth", dir: "auto" },
            visible(cut(typeof truth === "string" ? truth : JSON.stringify(truth, null, 2), 2000)),
          ),
        ),
  );
}

function part(name, value, largest) {
  const numeric = typeof value === "number";
  const shown = numeric ? number(value) : cut(typeof value === "string" ? value : JSON.stringify(value), 200);
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, visible(name)),
    el("td", { class: numeric ? "num" : "" }, visible(shown)),
    el(
      "td",
      { class: "meter-cell" },
      numeric
        ? el("span", {
            class: `meter${value < 0 ? " minus" : ""}`,
            "aria-hidden": "true",
            vars: { "--share": Math.abs(value) / largest },
          })
        : null,
    ),
  );
}
