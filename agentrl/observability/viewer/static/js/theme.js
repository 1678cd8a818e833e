// Runs before anything is drawn (so it is no module): the system's choice of dark or light, unless the reader chose.
(() => {
  const order = ["system", "light", "dark"];
  const root = document.documentElement;
  const stored = () => {
    try {
      return localStorage.getItem("agentrl-theme");
    } catch {
      return null; // storage is switched off
    }
  };
  const apply = (name) =>
    name === "system" ? root.removeAttribute("data-theme") : root.setAttribute("data-theme", name);
  let theme = order.includes(stored()) ? stored() : "system";
  apply(theme);
  window.agentrlTheme = {
    get name() {
      return theme;
    },
    next() {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      apply(theme);
      try {
        localStorage.setItem("agentrl-theme", theme);
      } catch {
        // the choice then lasts as long as the page
      }
      document.dispatchEvent(new CustomEvent("themechange"));
      return theme;
    },
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.dispatchEvent(new CustomEvent("themechange")),
  );
})();
