// The only place that makes elements. Text always becomes a text node: what a model wrote can never be markup.

/**
 * Make an element: el("a", {href: "#/", class: "x", on: {click: f}, vars: {"--at": "10%"}}, "text", child, null).
 * `true` sets an attribute without a value, `false` and null leave it out; children may be nested lists.
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "vars") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else if (name === "value") node.value = value ?? "";
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  add(node, children);
  return node;
}

/** Append children as `el` does. */
export function add(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** Put children in the place of what a node holds. */
export function fill(node, ...children) {
  node.replaceChildren();
  return add(node, ...children);
}

/** A line that a screen reader says, without moving the focus. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

export function button(text, click, attributes = {}) {
  return el("button", { type: "button", ...attributes, on: { click } }, text);
}

/** A box for what is missing, in words: a title and what to do. */
export function empty(title, ...advice) {
  return el(
    "div",
    { class: "empty" },
    el("p", { class: "empty-title" }, title),
    advice.length ? el("p", {}, advice) : null,
  );
}
