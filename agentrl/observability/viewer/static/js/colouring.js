// What colours a token: for each way, its value, its class of the style sheet, and the legend. Pure functions.
import { newTokens } from "./changes.js";
import { number, signed } from "./format.js";

const PROBABILITY_STEPS = [
  [-0.105, "p > 0.9"],
  [-0.693, "0.5 – 0.9"],
  [-2.303, "0.1 – 0.5"],
  [-4.605, "0.01 – 0.1"],
  [-Infinity, "p < 0.01"],
];

/** The ways that these tokens have data for, by name: {title, value(i), look(i), legend, strongest: [i, …]}. */
export function colourings(tokens) {
  const ways = { mask: byMask(tokens), log_prob: byProbability(tokens), version: byVersion(tokens) };
  if (tokens.advantage) ways.advantage = byValue(tokens, "Advantage", (i) => tokens.advantage[i]);
  if (tokens.train_log_prob)
    ways.difference = byValue(tokens, "Train − rollout log-prob", (i) => difference(tokens, i));
  return ways;
}

/** log p(trainer) − log p(engine) of a sampled token: 0 where both agree; null where it was not sampled. */
export function difference(tokens, i) {
  const [train, rollout] = [tokens.train_log_prob?.[i], tokens.log_prob[i]];
  return tokens.mask[i] && typeof train === "number" && typeof rollout === "number" ? train - rollout : null;
}

export function kindOf(tokens, i) {
  if (!tokens.mask[i]) return "given";
  return tokens.loss_mask[i] ? "trained" : "held";
}

export const KINDS = { trained: "sampled, trained on", held: "sampled, not trained on", given: "not sampled" };

/** Tokens that an earlier answer to the same prompt does not have. */
export function byChange(tokens, before) {
  const { fresh, gaveUp } = newTokens(tokens.id, before.tokens.id);
  const unknown = (i) => gaveUp && i >= gaveUp[0] && i < gaveUp[1];
  const look = (i) => (unknown(i) ? "c-unknown" : fresh[i] ? "c-new" : "c-kept");
  const texts = { "c-new": `not in an answer of step ${before.row.step}`, "c-kept": "the same" };
  if (gaveUp) texts["c-unknown"] = `not compared: tokens ${gaveUp[0] + 1} to ${gaveUp[1]} differ too much`;
  const strongest = changes(tokens, look).filter((i) => look(i) === "c-new");
  return {
    title: `Changed since step ${before.row.step}`,
    value: (i) => (unknown(i) ? "not compared" : fresh[i] ? "new" : "the same"),
    look,
    legend: Object.entries(texts),
    strongest,
  };
}

function byMask(tokens) {
  const look = (i) => `m-${kindOf(tokens, i)}`;
  return {
    title: "Mask",
    value: (i) => KINDS[kindOf(tokens, i)],
    look,
    legend: Object.entries(KINDS).map(([kind, text]) => [`m-${kind}`, text]),
    strongest: changes(tokens, look),
  };
}

function byProbability(tokens) {
  const level = (i) => PROBABILITY_STEPS.findIndex(([least]) => tokens.log_prob[i] >= least);
  const look = (i) => (tokens.mask[i] ? `q-${level(i)}` : "given");
  const order = sampled(tokens).sort((a, b) => tokens.log_prob[a] - tokens.log_prob[b]);
  return {
    title: "Log-prob (rollout)",
    value: (i) => (tokens.mask[i] ? number(tokens.log_prob[i]) : null),
    look,
    legend: PROBABILITY_STEPS.map(([, text], i) => [`q-${i}`, text]),
    strongest: order,
  };
}

/** Above zero and below it, in four strengths each, measured by the largest of this conversation. */
function byValue(tokens, title, value) {
  const indices = sampled(tokens).filter((i) => typeof value(i) === "number");
  const largest = indices.reduce((most, i) => Math.max(most, Math.abs(value(i))), 0);
  const look = (i) => {
    const here = tokens.mask[i] ? value(i) : null;
    if (typeof here !== "number") return "given";
    const part = largest ? Math.abs(here) / largest : 0;
    return part < 0.02 ? "d-0" : `d-${here > 0 ? "p" : "n"}${Math.min(4, Math.ceil(part * 4))}`;
  };
  const legend = [-1, -0.5, 0, 0.5, 1].map((part) => [
    part ? `d-${part > 0 ? "p" : "n"}${Math.abs(part) * 4}` : "d-0",
    signed(part * largest),
  ]);
  return {
    title,
    value: (i) => (tokens.mask[i] ? signed(value(i)) : null),
    look,
    legend,
    strongest: indices.sort((a, b) => Math.abs(value(b)) - Math.abs(value(a))),
  };
}

function byVersion(tokens) {
  const versions = [...new Set(sampled(tokens).map((i) => tokens.weight_version[i]))].sort((a, b) => a - b);
  const look = (i) => (tokens.mask[i] ? `v-${versions.indexOf(tokens.weight_version[i]) % 4}` : "given");
  return {
    title: "Weight version",
    value: (i) => (tokens.mask[i] ? tokens.weight_version[i] : null),
    look,
    legend: versions.slice(0, 12).map((version, i) => [`v-${i % 4}`, `version ${version}`]),
    strongest: changes(tokens, look),
  };
}

function sampled(tokens) {
  return [...tokens.mask.keys()].filter((i) => tokens.mask[i]);
}

/** Where the look changes: the first token of each run. */
function changes(tokens, look) {
  return [...tokens.mask.keys()].filter((i) => i === 0 || look(i) !== look(i - 1));
}
