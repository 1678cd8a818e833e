// The server's answers, and its errors in words.

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * GET /api/{parts…}?query -> JSON. Empty values are left out; a list is a parameter given several times.
 * Raises `ServerError`, or an AbortError when the view was left.
 */
export async function get(parts, query = {}, signal = undefined) {
  const text = query instanceof URLSearchParams ? query : parameters(query);
  const address = `api/${parts.map((part) => encodeURIComponent(part)).join("/")}${text.size ? `?${text}` : ""}`;
  let answer;
  try {
    answer = await fetch(address, { signal, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("agentrl view does not answer: is it still running?", 0);
  }
  if (answer.ok) return answer.json();
  const body = await answer.json().catch(() => ({}));
  if (answer.status === 401)
    throw new ServerError("This page needs its token: open the address that `agentrl view` printed.", 401);
  throw new ServerError(body.error ?? `The server answered ${answer.status}.`, answer.status);
}

function parameters(query) {
  const text = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    for (const one of [value].flat()) if (one !== "" && one !== null && one !== undefined) text.append(key, one);
  }
  return text;
}
