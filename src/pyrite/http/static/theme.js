// Light or dark, before the first paint: what was chosen here before, else what the system says.
(() => {
  const KEY = "pyrite-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden; the choice then lasts as long as the page
    }
  };
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("themechange", { detail: theme }));
  };
  const wanted = () => {
    const chosen = stored();
    return chosen === "light" || chosen === "dark" ? chosen : system.matches ? "dark" : "light";
  };
  apply(wanted());
  system.addEventListener("change", () => apply(wanted()));

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => button.setAttribute("aria-pressed", document.documentElement.dataset.theme === "dark");
    button.addEventListener("click", () => {
      const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // as above
      }
      apply(theme);
    });
    document.addEventListener("themechange", show);
    show();
  });
})();
