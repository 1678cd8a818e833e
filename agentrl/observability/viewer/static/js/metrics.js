// The metrics of one run that the charts need so far; a long run has more of them than anybody looks at.
import { get } from "./api.js";
import { appended } from "./series.js";

export class Metrics {
  constructor(run, signal) {
    this.run = run;
    this.signal = signal;
    this.names = [];
    this.steps = [];
    this.seconds = [];
    this.metrics = {};
  }

  /** Ask for the steps and the names of all metrics, not for their values. */
  async open() {
    this.#take(await this.#ask({ names: "" }));
    return this;
  }

  /** Ask for the values of the metrics among these that are not here yet. */
  async need(names) {
    const missing = names.filter((name) => !(name in this.metrics) && this.names.includes(name));
    if (!missing.length) return;
    const answer = await this.#ask({ names: missing.join(",") });
    for (const name of missing) this.metrics[name] = answer.metrics[name].slice(0, this.steps.length);
  }

  /** Ask for what came after the last step; whether there was anything. */
  async more() {
    const answer = await this.#ask({ since: this.steps.at(-1), names: Object.keys(this.metrics).join(",") });
    if (!answer.steps.length) return false;
    const kept = { steps: this.steps, seconds: this.seconds, metrics: this.metrics };
    this.#take({ ...answer, ...appended(kept, answer) });
    return true;
  }

  #take({ names, steps, seconds, metrics, problem }) {
    Object.assign(this, { names, steps, seconds, metrics, problem });
  }

  #ask(query) {
    // An empty list of names is said as such: without `names` the server sends all.
    const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined));
    return get(["runs", this.run.id, "metrics"], text, this.signal);
  }
}
