// The tokens of the response: coloured, with the number under the pointer, and walked through with the arrow keys.
import { byChange, colourings } from "./colouring.js";
import { button, el, fill, say } from "./dom.js";
import { count, tokenText, visible } from "./format.js";
import { note } from "./route.js";
import { details, placed, summary } from "./token_details.js";

const LAST_COLOUR = "agentrl-colour";
const FIRST_COLOUR = "change";

/** The tokens of one conversation: `box` is put into the page, then `shown` is called, in the end `leave`. */
export class TokenView {
  /**
   * @param tokens columns with one value for each token
   * @param query what the address says: {colour, token}
   * @param earlier asks for an earlier answer to the same prompt, or null
   */
  constructor(tokens, query, earlier) {
    Object.assign(this, { tokens, query, earlier, ways: colourings(tokens), at: -1, rank: -1 });
    const texts = tokens.text.length ? tokens.text : tokens.id.map((id) => `[${id}]`);
    this.spans = texts.map((text, i) => el("span", { class: "t", "data-i": i }, tokenText(text)));
    this.preferred = query.colour ?? stored() ?? FIRST_COLOUR;
    this.stream = this.#stream();
    this.panel = el("section", { class: "token-panel", "aria-label": "Token" });
    this.tip = el("div", { class: "tip", role: "tooltip", hidden: true });
    this.legend = el("ul", { class: "legend", "aria-label": "Legend" });
    this.ranked = el("output", { class: "muted" });
    this.colour = this.#choice();
    this.box = el("div", { class: "tokens" }, this.#top(), this.stream, this.tip);
    this.out = () => (this.tip.hidden = true);
    addEventListener("scroll", this.out, { passive: true });
    this.#paint();
  }

  get keys() {
    return {
      c: ["colour by the next quantity", () => this.#nextColour()],
      n: ["the next most striking token", () => this.#strike(this.rank + 1)],
      N: ["back to a more striking one", () => this.#strike(this.rank - 1)],
    };
  }

  shown() {
    if (this.query.token !== undefined) this.#choose(Number(this.query.token));
    else if (this.query.colour in this.ways || stored() in this.ways) this.#strike(0);
    this.#offerChange().catch(() => {}); // without an earlier answer there is one colour less
  }

  leave() {
    removeEventListener("scroll", this.out);
  }

  get #way() {
    return this.ways[this.colour.value];
  }

  #stream() {
    const over = (event) => this.#point(event.target.closest?.("span.t"));
    const attributes = { class: "stream", dir: "ltr", role: "group", "aria-label": "Tokens of the response" };
    const on = {
      pointerover: over,
      focusin: over,
      pointerleave: () => this.out(),
      focusout: () => this.out(),
      click: (event) => this.#clicked(event),
      keydown: (event) => this.#pressed(event),
    };
    if (this.spans[0]) this.spans[0].tabIndex = 0;
    return el("div", { ...attributes, "data-enter": true, on }, segments(this.tokens, this.spans));
  }

  #choice() {
    const wanted = this.preferred in this.ways ? this.preferred : "mask";
    const chosen = () => {
      this.preferred = colour.value;
      note({ colour: colour.value });
      keep(colour.value);
      this.#paint();
      this.#strike(0, false); // the focus stays here: arrow keys go through the colours
    };
    const colour = el("select", { name: "colour", on: { change: chosen } });
    for (const [name, { title }] of Object.entries(this.ways)) {
      colour.append(el("option", { value: name, selected: name === wanted }, title));
    }
    return colour;
  }

  #top() {
    const { note: problem } = this.tokens;
    fill(this.panel, el("p", { class: "muted" }, "Point at a token, or press n for the most striking one."));
    return el(
      "div",
      { class: "token-top" },
      el(
        "div",
        { class: "controls" },
        el("label", {}, "Colour by ", this.colour),
        button("Most striking", () => this.#strike(0)),
        button("next", () => this.#strike(this.rank + 1), { "aria-label": "Next most striking" }),
        this.ranked,
      ),
      problem ? el("p", { class: "muted small" }, visible(problem)) : null,
      this.legend,
      this.panel,
    );
  }

  #paint() {
    const { look, legend } = this.#way;
    this.spans.forEach((span, i) => (span.className = i === this.at ? `t ${look(i)} chosen` : `t ${look(i)}`));
    const entries = legend.map(([name, text]) => el("li", {}, el("span", { class: `t ${name}` }, "token"), " ", text));
    fill(this.legend, entries);
  }

  /** What has changed since an earlier answer takes a second request; those who chose no colour see it. */
  async #offerChange() {
    const before = await this.earlier();
    if (!before) return;
    this.ways.change = byChange(this.tokens, before);
    this.colour.append(el("option", { value: "change" }, this.ways.change.title));
    if (this.preferred !== "change") return;
    this.colour.value = "change";
    this.#paint();
    if (this.query.token === undefined) this.#strike(0);
  }

  #nextColour() {
    this.colour.selectedIndex = (this.colour.selectedIndex + 1) % this.colour.options.length;
    this.colour.dispatchEvent(new Event("change"));
  }

  /** Choose the token that stands out most, the next one, … */
  #strike(rank, focus = true) {
    const order = this.#way.strongest;
    this.rank = order.length ? (rank + order.length) % order.length : -1;
    this.ranked.textContent = order.length ? `${this.rank + 1} of ${count(order.length, "token")}` : "none";
    if (order.length) this.#choose(order[this.rank], focus);
  }

  #choose(i, focus = true) {
    const span = this.spans[i];
    if (!span) return;
    const last = this.spans[this.at] ?? this.spans[0];
    last.classList.remove("chosen");
    last.removeAttribute("tabindex");
    this.at = i;
    span.classList.add("chosen");
    span.tabIndex = 0;
    fill(this.panel, details(this.tokens, i));
    if (focus) span.focus({ preventScroll: true });
    span.scrollIntoView({ block: "nearest" });
    say(summary(this.tokens, i, this.#way));
    note({ token: i });
  }

  #point(span) {
    this.tip.hidden = !span;
    if (span) placed(this.tip, span, summary(this.tokens, Number(span.dataset.i), this.#way));
  }

  #clicked(event) {
    const span = event.target.closest("span.t");
    if (span && getSelection().isCollapsed) this.#choose(Number(span.dataset.i));
  }

  #pressed(event) {
    const to = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: this.spans.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.#choose(to);
  }
}

/** One block for each run of sampled or not sampled tokens, with what it is. */
function segments(tokens, spans) {
  const found = [];
  let turn = 0;
  for (let start = 0, end; start < spans.length; start = end) {
    end = start + 1;
    while (end < spans.length && tokens.mask[end] === tokens.mask[start]) end += 1;
    const sampled = tokens.mask[start];
    if (sampled) turn += 1;
    const versions = [...new Set(tokens.weight_version.slice(start, end))].join(", ");
    const size = count(end - start, "token");
    const label = sampled ? `turn ${turn}, sampled, ${size}, weights ${versions}` : `not sampled, ${size}`;
    found.push(
      el(
        "div",
        { class: `segment ${sampled ? "sampled" : "not-sampled"}` },
        el("div", { class: "segment-head muted" }, label),
        el("div", { class: "segment-text" }, spans.slice(start, end)),
      ),
    );
  }
  return found;
}

function stored() {
  try {
    return localStorage.getItem(LAST_COLOUR);
  } catch {
    return null;
  }
}

function keep(name) {
  try {
    localStorage.setItem(LAST_COLOUR, name);
  } catch {
    // storage is switched off: the choice lasts for this conversation
  }
}
