// Sets the light or dark theme before the first paint: the stored choice, or that of the system.
(() => {
  const KEY = "pyrite-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // without storage, the choice lasts as long as the page
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
