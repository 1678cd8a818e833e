// The address after the "#" holds the whole state of a view, so that it can be sent: #/run/demo/conversations?step=12

/** "#/run/a%2Fb?x=1" -> {path: ["run", "a/b"], query: {x: "1"}}; nothing else is kept anywhere. */
export function parse(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { path: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}

/** The other way round; empty values are left out: href(["run", "a"], {step: 3, text: ""}) -> "#/run/a?step=3". */
export function href(path, query = {}) {
  const text = queryText(query);
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function queryText(query) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
}

/** Go to a view; "back" returns. */
export function go(path, query = {}) {
  location.hash = href(path, query);
}

/** Change what the present address says about the view without drawing it again; "back" does not stop here. */
export function note(changes) {
  const { path, query } = parse();
  history.replaceState(null, "", href(path, { ...query, ...changes }));
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
