// Conversations side by side, as cards: reward, advantage, how it ended, how it begins.
import { el } from "./dom.js";
import { count, number, signed, visible } from "./format.js";
import { href } from "./route.js";

/** @param from what the address of a conversation says about the list that it came from: {list, from} */
export function cards(run, rows, from = {}) {
  const largest = Math.max(1e-9, ...rows.map((row) => Math.abs(row.advantage ?? 0)));
  return el(
    "div",
    { class: "cards" },
    rows.map((row) => card(run, row, largest, from)),
  );
}

function card(run, row, largest, from) {
  return el(
    "a",
    { class: row.failed ? "card wrong" : "card", href: href(["run", run.id, "conversation", row.id], from) },
    el(
      "span",
      { class: "top" },
      row.failed ? el("b", { class: "error-mark" }, "✖ failed") : el("b", {}, number(row.reward)),
      row.advantage === null ? null : el("span", {}, `adv. ${signed(row.advantage)}`),
    ),
    row.advantage === null ? null : advantageBar(row.advantage, largest),
    el("span", { class: "start", dir: "auto" }, visible(row.start) || "(no text)"),
    el(
      "span",
      { class: "muted small" },
      [visible(row.stop_reason) || "–", row.failed ? null : count(row.turns, "turn"), count(row.tokens, "token")]
        .filter(Boolean)
        .join(" · "),
    ),
  );
}

/** From the middle to the right when better than its group, to the left when worse. */
function advantageBar(advantage, largest) {
  const sign = advantage >= 0 ? "up" : "down";
  return el(
    "span",
    { class: `advantage-bar ${sign}`, "aria-hidden": "true", vars: { "--share": Math.abs(advantage) / largest } },
    el("i"),
  );
}
