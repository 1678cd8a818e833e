// A table of any length: only the rows in sight exist, and the server sends them page by page.
import { add, el, fill, say } from "./dom.js";

const PAGE = 100;
const KEPT_PAGES = 40;
const AROUND = 8;

/**
 * @param columns [{name, title, sort}]: `sort` is the server's word, if it can sort by this
 * @param load async (offset, limit) -> {total, rows, …}
 * @param cells (row) -> one content for each column
 * @param link (row, index) -> the address of a row
 * @param moved (index) called when the reader walked to a row
 * @param answered (answer) called with each answer
 */
export function virtualTable({ columns, load, cells, link, moved, answered, sorted }) {
  const space = el("div", { class: "space", role: "rowgroup" });
  const scroller = el("div", { class: "scroller", tabindex: "-1" }, space);
  const head = el("div", { class: "row head", role: "row" });
  const table = el(
    "div",
    { class: "table", role: "grid", "aria-label": "Conversations" },
    el("div", { role: "rowgroup" }, head),
    scroller,
  );
  const rows = new Map(); // index -> element
  let pages = new Map(); // number of the page -> promise of its rows
  let [total, at, round] = [0, -1, 0];

  const height = () => Number.parseFloat(getComputedStyle(table).getPropertyValue("--row")) || 34;
  const page = (number) => {
    if (!pages.has(number)) {
      if (pages.size >= KEPT_PAGES) pages.delete(pages.keys().next().value);
      const mine = round;
      const asked = load(number * PAGE, PAGE).then((answer) => {
        if (mine === round) resized(answer);
        return answer.rows;
      });
      asked.catch(() => pages.delete(number));
      pages.set(number, asked);
    }
    return pages.get(number);
  };
  const resized = (answer) => {
    total = answer.total;
    space.style.height = `${total * height()}px`;
    table.setAttribute("aria-rowcount", total + 1);
    answered(answer);
  };
  async function draw() {
    const [tall, mine] = [height(), round];
    const first = Math.max(0, Math.floor(scroller.scrollTop / tall) - AROUND);
    const last = Math.min(total, Math.ceil((scroller.scrollTop + scroller.clientHeight) / tall) + AROUND);
    for (const [index, node] of rows) if ((index < first || index >= last) && index !== at) drop(index, node);
    const numbers = new Set([Math.floor(first / PAGE), Math.floor(Math.max(first, last - 1) / PAGE)]);
    for (const number of numbers) {
      const found = await page(number).catch(() => []);
      if (mine !== round) return;
      found.forEach((row, i) => {
        const index = number * PAGE + i;
        if (index >= first && index < last) place(index, row, tall);
      });
    }
  }
  const drop = (index, node) => (node.remove(), rows.delete(index));
  const place = (index, row, tall) => {
    if (rows.has(index)) return;
    const node = el("a", {
      class: "row",
      role: "row",
      href: link(row, index),
      "aria-rowindex": index + 2,
      "data-index": index,
      tabindex: index === Math.max(0, at) ? "0" : "-1",
      vars: { "--top": `${index * tall}px` },
    });
    add(
      node,
      cells(row).map((content, i) => el("span", { role: "gridcell", class: `cell ${columns[i].name}` }, content)),
    );
    node.addEventListener("focus", () => select(index));
    rows.set(index, node);
    space.append(node);
    node.classList.toggle("at", index === at);
  };
  const select = (index) => {
    for (const one of [rows.get(at), rows.get(index)]) if (one) one.tabIndex = -1;
    rows.get(at)?.classList.remove("at");
    at = index;
    const node = rows.get(index);
    if (node) node.tabIndex = 0;
    node?.classList.add("at");
    moved(index);
  };
  const reveal = (index) => {
    const [tall, top] = [height(), index * height()];
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + tall > scroller.scrollTop + scroller.clientHeight)
      scroller.scrollTop = top + tall - scroller.clientHeight;
  };
  async function walk(by) {
    if (!total) return;
    const index = Math.max(0, Math.min(total - 1, at + by));
    reveal(index);
    await draw();
    rows.get(index)?.focus({ preventScroll: true });
  }
  const order = (column) => () => {
    sorted.change(column.sort);
    drawHead();
    reset();
  };
  const drawHead = () =>
    fill(
      head,
      columns.map((column) => {
        const now = column.sort && sorted.now().sort === column.sort ? sorted.now().order : null;
        const title = column.sort
          ? el(
              "button",
              { type: "button", on: { click: order(column) } },
              column.title,
              now ? { asc: " ↑", desc: " ↓" }[now] : "",
            )
          : column.title;
        return el(
          "span",
          {
            role: "columnheader",
            class: `cell ${column.name}`,
            "aria-sort": now ? { asc: "ascending", desc: "descending" }[now] : null,
          },
          title,
        );
      }),
    );

  /** Ask anew: other filters, another order. `index` is shown and chosen, if given. */
  async function reset(index = -1) {
    round += 1;
    pages = new Map();
    for (const [one, node] of rows) drop(one, node);
    at = index;
    scroller.scrollTop = 0;
    await page(Math.max(0, Math.floor(index / PAGE)));
    if (index >= 0) reveal(Math.min(index, total - 1));
    await draw();
    if (index >= 0) rows.get(index)?.focus({ preventScroll: true });
    say(`${total} conversations`);
  }
  scroller.addEventListener("scroll", () => draw(), { passive: true });
  new ResizeObserver(() => {
    const tall = height();
    space.style.height = `${total * tall}px`;
    for (const [index, node] of rows) node.style.setProperty("--top", `${index * tall}px`);
    draw();
  }).observe(scroller);
  drawHead();
  return { table, reset, walk, open: () => rows.get(at)?.click() };
}
