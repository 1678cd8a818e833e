// All that is known of one token, as a line under the pointer and as a list.
import { KINDS, difference, kindOf } from "./colouring.js";
import { el } from "./dom.js";
import { cut, number, signed } from "./format.js";

/** "“ cat” log-prob −1.2": the quantity that colours, and the text. */
export function summary(tokens, i, way) {
  const value = way.value(i);
  return `${tokens.text.length ? quoted(tokens.text[i]) : tokens.id[i]} · ${way.title}: ${value ?? "not sampled"}`;
}

export function details(tokens, i) {
  const sampled = tokens.mask[i];
  const pairs = [
    ["token", tokens.text.length ? quoted(tokens.text[i]) : "(unknown)"],
    ["id", tokens.id[i]],
    ["place", `${i + 1} of ${tokens.id.length}`],
    ["mask", KINDS[kindOf(tokens, i)]],
    sampled
      ? ["log-prob, rollout", `${number(tokens.log_prob[i])} (p = ${number(Math.exp(tokens.log_prob[i]), 3)})`]
      : null,
    sampled && tokens.train_log_prob ? ["log-prob, training", number(tokens.train_log_prob[i])] : null,
    sampled && tokens.train_log_prob ? ["difference", signed(difference(tokens, i))] : null,
    sampled && tokens.advantage ? ["advantage", signed(tokens.advantage[i])] : null,
    sampled ? ["weight version", tokens.weight_version[i]] : null,
  ];
  return el(
    "dl",
    {},
    pairs.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value ?? "–"))),
  );
}

/** Put a tip under an element, or over it where there is no place, and never beyond the window's edges. */
export function placed(tip, target, text) {
  tip.textContent = text;
  const [at, own] = [target.getClientRects()[0] ?? target.getBoundingClientRect(), tip.getBoundingClientRect()];
  const below = at.bottom + 6 + own.height < innerHeight;
  tip.style.left = `${Math.max(4, Math.min(at.left, innerWidth - own.width - 4))}px`;
  tip.style.top = `${below ? at.bottom + 6 : at.top - own.height - 6}px`;
}

/** As in JSON, so that spaces, newlines and invisible characters can be told apart. */
function quoted(text) {
  const escaped = JSON.stringify(cut(text, 120)).replace(
    /[\u007f-\u00a0\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
  return `\u2068${escaped}\u2069`; // isolated, so that a token of right-to-left text leaves the line as it is
}
