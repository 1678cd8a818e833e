// Exact texts: the prompt as it was rendered, the response, and the conversation as a test case to copy.
import { button, el, say } from "./dom.js";
import { count, visible } from "./format.js";

export function exact({ prompt, response }) {
  return el("div", {}, block("Prompt, as rendered", prompt), block("Response", response));
}

export function testCase(text) {
  return el("div", {}, block("A test of this conversation", text, "Copy as test case"));
}

function block(title, text, label = "Copy") {
  const pre = el("pre", { class: "exact", dir: "auto", tabindex: "0", "aria-label": title }, visible(text));
  const copy = button(label, () => copied(text, copy, pre));
  return el(
    "section",
    {},
    el(
      "div",
      { class: "controls" },
      el("h2", {}, title),
      el("span", { class: "muted" }, count(text.length, "character")),
      copy,
    ),
    pre,
  );
}

/**
 * Copies what the server sent, not what is shown. Browsers allow that on loopback and with https; elsewhere the text is
 * selected.
 */
async function copied(text, copy, pre) {
  try {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(pre);
    copy.textContent = "Selected: press Ctrl-C";
  }
  say(copy.textContent);
}
