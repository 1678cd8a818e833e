// j and k walk through the links of a list; Enter follows the one that has the focus by itself.

export function walk(list, selector) {
  const step = (by) => {
    const links = [...list.querySelectorAll(selector)];
    const at = links.indexOf(document.activeElement);
    const next = links[Math.max(0, Math.min(links.length - 1, at + by))];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  };
  return {
    j: ["next", () => step(1)],
    k: ["previous", () => step(-1)],
  };
}
