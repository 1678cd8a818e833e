// To the step before and the step after, among those that have conversations.
import { button } from "./dom.js";

export function stepButtons({ step_list: steps }, step, go) {
  const before = steps.findLast((one) => one < step);
  const after = steps.find((one) => one > step);
  return [
    button("‹", () => go(before), { class: "before", disabled: before === undefined, "aria-label": "The step before" }),
    button("›", () => go(after), { class: "after", disabled: after === undefined, "aria-label": "The step after" }),
  ];
}
