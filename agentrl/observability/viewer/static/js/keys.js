// One handler for the keyboard: the keys of the view that is shown, then those of the page; ? shows both.
import { button, el, fill } from "./dom.js";

const page = new Map();
let view = new Map();

/** Keys of the page: {"?": ["this help", f]}. */
export function pageKeys(keys) {
  for (const [key, entry] of Object.entries(keys)) page.set(key, entry);
}

/** Keys of the view that is shown; they replace those of the last one. */
export function viewKeys(keys) {
  view = new Map(Object.entries(keys));
}

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const target = event.target;
    if (target.matches("input, textarea, select")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (event.key === "Enter" && target.matches("a, button, summary, [data-enter]")) return; // it has a meaning there
    const entry = view.get(event.key) ?? page.get(event.key);
    if (!entry) return;
    event.preventDefault();
    entry[1]();
  });
}

export function help() {
  const dialog = el("dialog", { "aria-label": "Keys", class: "help", on: { close: () => dialog.remove() } });
  const list = (keys) =>
    el(
      "dl",
      {},
      [...keys].map(([key, [text]]) => [el("dt", {}, el("kbd", {}, shown(key))), el("dd", {}, text)]),
    );
  fill(
    dialog,
    el("h2", {}, "Keys"),
    view.size ? [el("h3", {}, "Here"), list(view)] : null,
    el("h3", {}, "Everywhere"),
    list(page),
  );
  dialog.append(button("Close", () => dialog.close(), { class: "primary" }));
  document.body.append(dialog);
  dialog.showModal();
}

function shown(key) {
  return { Enter: "Enter", Escape: "Esc", ArrowLeft: "←", ArrowRight: "→" }[key] ?? key;
}
