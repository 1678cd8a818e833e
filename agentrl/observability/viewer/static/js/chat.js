// Messages as a chat: who said what, calls of tools with their arguments, results and errors.
import { button, el } from "./dom.js";
import { count, visible } from "./format.js";

const LONG = 4000;

export function chat(messages) {
  if (!messages?.length) return el("p", { class: "muted" }, "The dump holds no messages; see “As rendered”.");
  return el("ol", { class: "chat" }, messages.map(message));
}

function message(one) {
  const wrong = one.is_error === true; // an answer to a mistake; dumps of earlier versions do not say
  const name = one.name && one.role === "tool" ? `: ${visible(String(one.name))}` : "";
  return el(
    "li",
    {
      class: `message role-${one.role in WHO ? one.role : "other"}${wrong ? " wrong" : ""}`,
    },
    el(
      "div",
      { class: "who" },
      `${WHO[one.role] ?? one.role}${name}`,
      wrong ? el("b", { class: "error-mark" }, " ✖ error") : null,
    ),
    one.reasoning_content
      ? el(
          "details",
          { class: "thinking" },
          el("summary", {}, `thinking (${count(one.reasoning_content.length, "character")})`),
          text(one.reasoning_content),
        )
      : null,
    contents(one.content),
    (one.tool_calls ?? []).map(call),
  );
}

const WHO = { system: "system", user: "user", assistant: "assistant", tool: "tool result" };

/** Text, or a list of parts; a picture is only named: nothing is ever loaded from elsewhere. */
function contents(content) {
  if (content === null || content === undefined || content === "") return null;
  if (typeof content === "string") return text(content);
  if (!Array.isArray(content)) return text(JSON.stringify(content, null, 2));
  return content.map((part) =>
    part?.type === "text" || typeof part?.text === "string"
      ? text(String(part.text ?? ""))
      : el("p", { class: "picture" }, `▣ ${visible(String(part?.type ?? "part"))}`),
  );
}

function text(whole) {
  const shown = visible(whole);
  const box = el("div", { class: "text", dir: "auto" }, shown.slice(0, LONG));
  if (shown.length <= LONG) return box;
  const more = button(
    `Show all ${count(shown.length, "character")}`,
    () => ((box.textContent = shown), more.remove()),
    { class: "more" },
  );
  return [box, more];
}

function call(one) {
  const called = one.function ?? one;
  return el(
    "div",
    { class: "call" },
    el("div", { class: "who" }, "calls ", el("b", {}, visible(String(called.name)))),
    el("pre", { dir: "ltr" }, visible(pretty(called.arguments)).slice(0, 4 * LONG)),
  );
}

/** Arguments are JSON text or already an object; text that is not JSON is shown as it is. */
function pretty(given) {
  if (given === undefined || given === null) return "";
  if (typeof given !== "string") return lines(given);
  try {
    return lines(JSON.parse(given));
  } catch {
    return given;
  }
}

/** {expression: "2*3"} -> "expression: 2*3": easier to read than JSON, and code keeps its lines. */
function lines(value) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return JSON.stringify(value, null, 2);
  return Object.entries(value)
    .map(([key, inner]) => {
      const shown = typeof inner === "string" ? inner : JSON.stringify(inner);
      return shown.includes("\n") ? `${key}:\n${shown}` : `${key}: ${shown}`;
    })
    .join("\n");
}
