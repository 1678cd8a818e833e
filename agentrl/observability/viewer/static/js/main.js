// Start, the header, and which view an address shows.
import { ServerError, get } from "./api.js";
import { showConversation } from "./conversation.js";
import { showConversations } from "./conversations.js";
import { add, button, el, empty, fill } from "./dom.js";
import { showGroups } from "./groups.js";
import { help, listen, pageKeys, viewKeys } from "./keys.js";
import { showPrompt } from "./prompt.js";
import { go, href, parse } from "./route.js";
import { showRun } from "./run.js";
import { showRuns } from "./runs.js";

const VIEWS = {
  "": { show: showRun, tab: "Run" },
  conversations: { show: showConversations, tab: "Conversations" },
  groups: { show: showGroups, tab: "Groups" },
  prompt: { show: showPrompt, tab: "" },
  conversation: { show: showConversation, tab: "" },
};
let leaving = new AbortController();

/** Draw what the address says. */
async function draw() {
  leaving.abort();
  const controller = (leaving = new AbortController());
  const main = document.getElementById("main");
  viewKeys({});
  main.setAttribute("aria-busy", "true");
  fill(main, el("p", { class: "loading" }, "Loading …"));
  try {
    await drawView(main, parse(), controller.signal);
  } catch (error) {
    if (controller.signal.aborted) return;
    fill(main, empty(error.message, button("Try again", draw, { class: "primary" })));
    if (!(error instanceof ServerError)) throw error; // a fault of the page itself: the console shows where
  } finally {
    if (!controller.signal.aborted) main.setAttribute("aria-busy", "false");
  }
}

/** A view gets {run, runs, query, path, signal}; the signal ends all that it began. */
async function drawView(main, { path, query }, signal) {
  const runs = await get(["runs"], {}, signal);
  if (path[0] !== "run" && path[0] !== "runs" && runs.length === 1) {
    path = ["run", runs[0].id];
    history.replaceState(null, "", href(path));
  }
  const run = path[0] === "run" ? runs.find((one) => one.id === path[1]) : undefined;
  const view = run && VIEWS[path[2] ?? ""];
  header(run, runs, path[2] ?? "");
  fill(main);
  main.className = `view-${run ? path[2] || "run" : "runs"}`;
  document.title = run ? `${run.name} · agentrl view` : "agentrl view";
  scrollTo(0, 0);
  if (document.activeElement === document.body) main.focus({ preventScroll: true });
  if (view) return view.show(main, { run, runs, query, path: path.slice(3), signal });
  if (path[0] !== "run") return showRuns(main, { runs, signal });
  const missing = run ? `No view is called ${path[2]}.` : `No run is called ${path[1]}.`;
  fill(main, empty(missing, el("a", { href: "#/runs" }, "See all runs")));
}

function header(run, runs, at) {
  const tabs = Object.entries(VIEWS).filter(([, view]) => view.tab);
  const links = run
    ? tabs.map(([name, { tab }]) =>
        el(
          "a",
          { href: href(name ? ["run", run.id, name] : ["run", run.id]), "aria-current": name === at ? "page" : null },
          tab,
        ),
      )
    : [];
  const choose = el("select", {
    "aria-label": "Run",
    on: { change: () => go(choose.value ? ["run", choose.value, ...(at && VIEWS[at]?.tab ? [at] : [])] : ["runs"]) },
  });
  if (runs.length > 1) add(choose, el("option", { value: "" }, "All runs"));
  add(
    choose,
    runs.map((one) => el("option", { value: one.id, selected: one.id === run?.id }, one.name)),
  );
  fill(
    document.getElementById("top"),
    el("a", { class: "brand", href: "#/runs", "aria-label": "agentrl view, all runs" }, "agentrl"),
    choose,
    el("nav", { "aria-label": "Views" }, links),
    el("span", { class: "offline" }, "not connected, trying again …"),
    el("span", { class: "tools" }, themeButton(), button("?", help, { title: "Keys (?)", "aria-label": "Keys" })),
  );
}

function themeButton() {
  const label = () => ({ system: "◐", light: "☀", dark: "☾" })[window.agentrlTheme.name];
  const title = () => `Colours: ${window.agentrlTheme.name} (press to change)`;
  const node = button(
    label(),
    () => {
      window.agentrlTheme.next();
      node.textContent = label();
      node.title = title();
      node.setAttribute("aria-label", title());
    },
    { title: title(), "aria-label": title(), class: "theme" },
  );
  return node;
}

function goTab(name) {
  const { path } = parse();
  if (path[0] === "run") go(name ? ["run", path[1], name] : ["run", path[1]]);
}

/** A conversation leads to the list that it came from, everything else to its run, a run to all runs. */
function up() {
  const { path, query } = parse();
  if (path[0] !== "run") return;
  if (path[2] === "conversation")
    return go(
      ["run", path[1], ...(query.list ?? "conversations").split("/")],
      Object.fromEntries(new URLSearchParams(query.from)),
    );
  go(path[2] ? ["run", path[1]] : ["runs"]);
}

pageKeys({
  "?": ["this help", help],
  1: ["the run", () => goTab("")],
  2: ["its conversations", () => goTab("conversations")],
  3: ["its groups", () => goTab("groups")],
  "/": ["search", () => document.querySelector("[data-search]")?.focus()],
  Escape: ["up: a conversation, its list, its run, all runs", up],
});
listen();
addEventListener("hashchange", draw);
draw();
