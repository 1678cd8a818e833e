// Numbers and hostile text, made readable.

/** 1234567 -> "1.235e6", 0.12345 -> "0.1235", 3 -> "3", null -> "–". */
export function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-4)) {
    return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  }
  return String(Number(value.toPrecision(digits)));
}

/** As `number`, with a plus before what is above zero: an advantage, a difference. */
export function signed(value, digits = 3) {
  return value > 0 ? `+${number(value, digits)}` : number(value, digits).replace("-", "−");
}

/** 0.0123 -> "12 ms", 75 -> "1 min 15 s". */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toPrecision(3)} s`;
  const [minutes, rest] = [Math.floor(value / 60), Math.round(value % 60)];
  return minutes < 60 ? `${minutes} min ${rest} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function share(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(1)} %` : "–";
}

/** 1234567 -> "1,234,567". */
export function whole(n) {
  return n === null || n === undefined ? "–" : n.toLocaleString("en");
}

export function ago(unix) {
  const passed = Math.max(0, Date.now() / 1000 - unix);
  if (passed < 5) return "just now";
  if (passed < 60) return `${Math.round(passed)} s ago`;
  if (passed < 172800) return `${seconds(Math.round(passed)).replace(/ (\d+ s|0 min)$/, "")} ago`;
  return `${Math.floor(passed / 86400)} days ago`;
}

export function count(n, one, many = `${one}s`) {
  if (n === null || n === undefined) return `? ${many}`;
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}

const BIDI = /[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/**
 * Text with every character that would hide or move others shown as a name: "\u202Eabc" -> "⟨U+202E⟩abc",
 * "a\u0000b" -> "a⟨U+0000⟩b". Newlines and tabs stay.
 */
export function visible(text) {
  return text.replace(/\r\n/g, "\n").replace(CONTROL, named).replace(BIDI, named);
}

/** A token's text: as `visible`, and its newlines, tabs and edges of spaces can be seen. */
export function tokenText(text) {
  if (text === "") return "·"; // a part of a character, whose text is at its last token
  return visible(text).replace(/\n/g, "↵\n").replace(/\t/g, "→\t");
}

export function cut(text, length) {
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

function named(sign) {
  return `⟨U+${sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
