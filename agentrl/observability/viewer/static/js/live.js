// Asking again while something may change: never while the page is hidden, at once when it is seen again.

/** Call `task` every so many seconds until the signal; a task that fails is tried again later. */
export function every(secondsBetween, task, signal) {
  let timer = 0;
  let running = false;
  const wait = () => {
    clearTimeout(timer);
    if (!signal.aborted && !document.hidden) timer = setTimeout(run, secondsBetween * 1000);
  };
  async function run() {
    if (running || signal.aborted || document.hidden) return;
    running = true;
    try {
      await task();
      connected(true);
    } catch (error) {
      if (error.name !== "AbortError") connected(false);
    } finally {
      running = false;
      wait();
    }
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : run()), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  wait();
}

function connected(yes) {
  document.documentElement.toggleAttribute("data-disconnected", !yes);
}
