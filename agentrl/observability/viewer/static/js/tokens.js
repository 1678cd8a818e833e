// The tokens of the response: coloured, with the number under the pointer, and walked through with the arrow keys.
import { byChange, colourings } from "./colouring.js";
import { button, el, fill, say } from "./dom.js";
import { count, tokenText, visible } from "./format.js";
import { note } from "./route.js";
import { details, placed, summary } from "./token_details.js";

const LAST_COLOUR = "agentrl-colour";

/**
 * @param tokens columns with one value for each token
 * @param query what the address says: {colour, token}
 * @param earlier asks for an earlier answer to the same prompt, or null
 * @returns {box, keys, shown, leave}
 */
export function tokenView(tokens, query, earlier) {
  if (!tokens.id.length && !tokens.text.length)
    return { box: el("p", { class: "muted" }, visible(tokens.note ?? "The dump holds no tokens.")) };
  const ways = colourings(tokens);
  const texts = tokens.text.length ? tokens.text : tokens.id.map((id) => `[${id}]`);
  const spans = texts.map((text, i) => el("span", { class: "t", "data-i": i }, tokenText(text)));
  const stream = el(
    "div",
    { class: "stream", dir: "ltr", role: "group", "aria-label": "Tokens of the response", "data-enter": true },
    segments(tokens, spans),
  );
  const panel = el("section", { class: "token-panel", "aria-label": "Token", "aria-live": "off" });
  const tip = el("div", { class: "tip", role: "tooltip", id: "tip", hidden: true });
  const legend = el("ul", { class: "legend", "aria-label": "Legend" });
  const colour = el("select", {
    name: "colour",
    on: { change: () => (note({ colour: colour.value }), keep(colour.value), paint(), strongest(0)) },
  });
  const state = { at: -1, rank: -1 };

  const wanted = [query.colour, stored(), "mask"].find((name) => ways[name]);
  colour.append(
    ...Object.entries(ways).map(([name, way]) => el("option", { value: name, selected: name === wanted }, way.title)),
  );
  const way = () => ways[colour.value];
  const paint = () => {
    const { look } = way();
    spans.forEach((span, i) => (span.className = i === state.at ? `t ${look(i)} chosen` : `t ${look(i)}`));
    fill(
      legend,
      way().legend.map(([name, text]) => el("li", {}, el("span", { class: `t ${name}` }, "token"), " ", text)),
    );
  };
  const choose = (i, focus = true) => {
    if (i < 0 || i >= spans.length) return;
    spans[state.at]?.classList.remove("chosen");
    spans[state.at]?.removeAttribute("tabindex");
    state.at = i;
    spans[i].classList.add("chosen");
    spans[i].tabIndex = 0;
    fill(panel, details(tokens, i));
    if (focus) {
      spans[i].focus({ preventScroll: true });
      spans[i].scrollIntoView({ block: "nearest" });
      say(summary(tokens, i, way()));
    }
    note({ token: i });
  };
  /** The one that stands out most, then the next one, … */
  const strongest = (rank) => {
    const order = way().strongest;
    if (!order.length) return;
    state.rank = (rank + order.length) % order.length;
    choose(order[state.rank]);
    ranked.textContent = `${state.rank + 1} of ${count(order.length, "token")}`;
  };
  const ranked = el("output", { class: "muted" });
  const over = (event) => {
    const span = event.target.closest?.("span.t");
    tip.hidden = !span;
    if (span) placed(tip, span, summary(tokens, Number(span.dataset.i), way()));
  };
  const out = () => (tip.hidden = true);
  stream.addEventListener("pointerover", over);
  stream.addEventListener("focusin", over);
  stream.addEventListener("pointerleave", out);
  stream.addEventListener("focusout", out);
  stream.addEventListener("click", (event) => {
    const span = event.target.closest("span.t");
    if (span && getSelection().isCollapsed) choose(Number(span.dataset.i));
  });
  stream.addEventListener("keydown", (event) => {
    const to = { ArrowRight: state.at + 1, ArrowLeft: state.at - 1, Home: 0, End: spans.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(to);
  });
  const cycle = () => {
    colour.selectedIndex = (colour.selectedIndex + 1) % colour.options.length;
    colour.dispatchEvent(new Event("change"));
  };
  const controls = el(
    "div",
    { class: "controls" },
    el("label", {}, "Colour by ", colour),
    button("Most striking", () => strongest(0)),
    button("next", () => strongest(state.rank + 1), { "aria-label": "Next most striking" }),
    ranked,
  );
  const offerChange = async () => {
    const before = await earlier();
    if (!before) return;
    ways.change = byChange(tokens, before);
    colour.append(el("option", { value: "change" }, ways.change.title));
    if ((query.colour ?? stored()) !== "change") return;
    colour.value = "change";
    paint();
    if (query.token === undefined) strongest(0);
  };
  const problem = tokens.note ? el("p", { class: "muted small" }, visible(tokens.note)) : null;
  const box = el(
    "div",
    { class: "tokens" },
    el("div", { class: "token-top" }, controls, problem, legend, panel),
    stream,
    tip,
  );
  paint();
  if (spans[0]) spans[0].tabIndex = 0;
  fill(
    panel,
    el(
      "p",
      { class: "muted" },
      spans.length ? "Point at a token, or press n for the most striking one." : "The response has no tokens.",
    ),
  );
  addEventListener("scroll", out, { passive: true });
  return {
    box,
    keys: {
      c: ["colour by the next quantity", cycle],
      n: ["the next most striking token", () => strongest(state.rank + 1)],
      N: ["back to a more striking one", () => strongest(state.rank - 1)],
    },
    shown: () => {
      if (query.token !== undefined) choose(Number(query.token));
      else if (wanted !== "mask") strongest(0);
      offerChange().catch(() => {}); // without an earlier answer there is one colour less
    },
    leave: () => removeEventListener("scroll", out),
  };
}

/** One block for each run of sampled or not sampled tokens, with its first token's number and what it is. */
function segments(tokens, spans) {
  const found = [];
  let turn = 0;
  for (let start = 0; start < spans.length;) {
    let end = start + 1;
    while (end < spans.length && tokens.mask[end] === tokens.mask[start]) end += 1;
    const sampled = tokens.mask[start];
    if (sampled) turn += 1;
    const versions = [...new Set(tokens.weight_version.slice(start, end))].join(", ");
    const label = sampled
      ? `turn ${turn}, sampled, ${count(end - start, "token")}, weights ${versions}`
      : `not sampled, ${count(end - start, "token")}`;
    found.push(
      el(
        "div",
        { class: `segment ${sampled ? "sampled" : "not-sampled"}` },
        el("div", { class: "segment-head muted" }, label),
        el("div", { class: "segment-text" }, spans.slice(start, end)),
      ),
    );
    start = end;
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
