// Tabs with arrow keys: shows the panel of the selected tab.

/** Activate a `role=tablist`; `chosen` is called with the tab's id. Returns a function that selects a tab. */
export function tabs(list, chosen = () => {}) {
  const all = [...list.querySelectorAll("[role=tab]")];
  const panels = new Map(all.map((tab) => [tab, document.getElementById(tab.getAttribute("aria-controls"))]));

  const choose = (tab, focus = false) => {
    for (const other of all) {
      other.setAttribute("aria-selected", other === tab);
      other.tabIndex = other === tab ? 0 : -1;
    }
    for (const panel of panels.values()) panel.hidden = panel !== panels.get(tab);
    if (focus) tab.focus();
    chosen(tab.id);
  };

  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const visible = all.filter((tab) => !tab.hidden);
    const at = visible.indexOf(document.activeElement);
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: visible.length - 1 };
    if (at < 0 || !(event.key in steps)) return;
    event.preventDefault();
    choose(visible.at(steps[event.key] % visible.length), true);
  });
  choose(all[0]);
  return (id) => choose(all.find((tab) => tab.id === id));
}
