// What a curve shows of a metric: joined runs, smoothing, what a log scale can hold. Pure functions.

/** Exponential mean without the pull to zero at the start (as TensorBoard's): weight 0 changes nothing. */
export function smooth(values, weight) {
  if (!weight) return values;
  let [mean, mass] = [0, 0];
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    mean = mean * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return mean / mass;
  });
}

/** Values that a logarithm has no place for become gaps; how many there were. */
export function positive(values) {
  let left_out = 0;
  const kept = values.map((value) => {
    if (value === null || value > 0) return value;
    left_out += 1;
    return null;
  });
  return { kept, left_out };
}

/** Append what came after `since`, or take the place of it all: {steps, seconds, metrics: {name: [..]}}. */
export function appended(old, more) {
  const from = old.steps.findIndex((step) => step >= (more.steps[0] ?? Infinity));
  const keep = from < 0 ? old.steps.length : from;
  const names = new Set([...Object.keys(old.metrics), ...Object.keys(more.metrics)]);
  const metrics = {};
  for (const name of names) {
    const before = old.metrics[name]?.slice(0, keep) ?? new Array(keep).fill(null);
    metrics[name] = before.concat(more.metrics[name] ?? new Array(more.steps.length).fill(null));
  }
  return {
    steps: old.steps.slice(0, keep).concat(more.steps),
    seconds: old.seconds.slice(0, keep).concat(more.seconds),
    metrics,
  };
}

/** The points of one metric without gaps: {x, y, steps}. */
export function points(data, name, axis) {
  const values = data.metrics[name] ?? [];
  const found = { x: [], y: [], steps: [] };
  values.forEach((value, i) => {
    if (value === null || value === undefined) return;
    found.x.push(axis === "seconds" ? data.seconds[i] : data.steps[i]);
    found.y.push(value);
    found.steps.push(data.steps[i]);
  });
  return found;
}

const FIRST = [
  /^critic\/score\/mean$/,
  /^val-core\/.*mean@/,
  /^response_length\/mean$/,
  /^actor\/entropy$/,
  /^(num_turns|tool_call_counts)\/mean$/,
  /^actor\/grad_norm$/,
  /^actor\/ppo_kl$/,
  /^timing_s\/step$/,
];

/** The metrics that are shown when nobody chose: one for each question that is asked first. */
export function usual(names) {
  const found = FIRST.map((pattern) => names.find((name) => pattern.test(name))).filter(Boolean);
  return found.length ? found.slice(0, 6) : names.slice(0, 6);
}

/** The index of the value that is nearest to one; -1: there are no values. */
export function nearest(values, wanted) {
  let best = values.length ? 0 : -1;
  values.forEach((value, i) => {
    if (Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = i;
  });
  return best;
}
