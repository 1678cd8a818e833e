// The choice of metrics: a list by first part of their names, with a search.
import { button, el, fill } from "./dom.js";

export function picker(names, shown, choose) {
  const search = el("input", {
    type: "search",
    placeholder: "Find a metric",
    "aria-label": "Find a metric",
    "data-search": true,
  });
  const list = el("div", { class: "metric-list" });
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = names().filter((name) => words.every((word) => name.toLowerCase().includes(word)));
    const groups = Map.groupBy(found, (name) => name.split("/")[0]);
    fill(
      list,
      [...groups].map(([group, members]) => el("fieldset", {}, el("legend", {}, group), members.map(entry))),
    );
    if (!found.length) fill(list, el("p", { class: "muted" }, "No metric has this in its name."));
  };
  const entry = (name) => {
    const box = el("input", { type: "checkbox", checked: shown().includes(name) });
    box.addEventListener("change", () =>
      choose(box.checked ? [...shown(), name] : shown().filter((one) => one !== name)),
    );
    return el("label", {}, box, " ", name.split("/").slice(1).join("/") || name);
  };
  search.addEventListener("input", draw);
  const usualOnes = button("Show the usual ones", () => (choose(null), draw()));
  const details = el(
    "details",
    { class: "metrics drop", on: { toggle: () => details.open && draw() } },
    el("summary", {}, "Metrics"),
    el("div", { class: "panel" }, search, list, usualOnes),
  );
  details.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    details.open = false;
    details.querySelector("summary").focus();
  });
  return details;
}
