// The table of quotas: the usage and limit of each user, with a bar.

import { element, setText } from "./dom.js";
import { PagedTable } from "./paged.js";
import { bytes, number, visible } from "./text.js";

const QUOTAS = [
  ["sessions", "Sessions", number],
  ["connections", "Connections", number],
  ["subscriptions", "Subscriptions", number],
  ["consumers", "Consumers", number],
  ["retained_messages", "Retained", number],
  ["retained_bytes", "Retained size", bytes],
  ["stored_bytes", "Stored", bytes],
  ["message_rate", "Messages/s", number],
  ["byte_rate", "Bytes/s", bytes],
  ["concurrent_reads", "Reads", number],
];
const NEARLY_FULL = 0.8; // share of the limit at which the bar changes its color

export class Quotas extends PagedTable {
  constructor(panel, note) {
    const heads = QUOTAS.map(([, title]) => element("th", { text: title, class: "end" }));
    heads.unshift(element("th", { text: "User" }));
    super(panel, note, { path: "quotas", list: "accounts", heads, empty: "No user uses anything yet." });
  }

  _show(accounts) {
    const names = accounts.map(({ user, address }) => (user === null ? `@${address}` : `=${user}`));
    for (const [name, row] of this.rows) {
      if (names.includes(name)) continue;
      row.remove();
      this.rows.delete(name);
    }
    accounts.forEach(({ user, address, quotas }, place) => {
      if (!this.rows.has(names[place])) this.rows.set(names[place], this._row(user, address));
      const row = this.rows.get(names[place]);
      QUOTAS.forEach(([name, title, write], column) => {
        fill(row.children[column + 1], quotas[name], title, write);
      });
      if (this.body.children[place] !== row) this.body.insertBefore(row, this.body.children[place] ?? null);
    });
  }

  _row(user, address) {
    const name = user === null ? `without a name, from ${address}` : visible(user);
    const head = element("td", { text: name, class: user === null ? "soft" : "mono" });
    const cells = QUOTAS.map(([name]) => {
      const bar = element("meter", { min: 0, hidden: "" });
      return element("td", { class: "end quota", "data-quota": name }, element("span"), bar);
    });
    return element("tr", {}, head, ...cells);
  }
}

/** Show the usage of a quota, with a bar if there is a limit. */
function fill(cell, { used, limit }, title, write) {
  const [words, bar] = cell.children;
  setText(words, limit === null ? write(used) : `${write(used)} of ${write(limit)}`);
  bar.hidden = limit === null;
  if (limit === null) return;
  bar.max = Math.max(limit, used, 1);
  bar.high = NEARLY_FULL * bar.max;
  bar.value = limit === 0 ? bar.max : used;
  bar.setAttribute("aria-label", `${title}: ${words.textContent}`);
}
