// The table of quotas: what each user takes of what all share, and how much it may, with a bar for each.

import { ask } from "./api.js";
import { element, setText } from "./dom.js";
import { bytes, number, visible } from "./text.js";

const PAGE = 100;
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
const NEARLY_FULL = 0.8; // of the limit: from here on, the bar is in another color

export class Quotas {
  constructor(panel, note) {
    this.note = note;
    this.rows = new Map();
    this.after = null;
    this.body = element("tbody");
    const head = QUOTAS.map(([, title]) => element("th", { text: title, class: "end" }));
    this.more = element("button", { type: "button", text: "Next page", hidden: "" });
    this.first = element("button", { type: "button", text: "First page", hidden: "" });
    this.empty = element("p", { class: "empty", text: "Nobody uses anything yet.", hidden: "" });
    this.more.addEventListener("click", () => this._turn(this.next));
    this.first.addEventListener("click", () => this._turn(null));
    panel.append(
      element(
        "table",
        {},
        element("thead", {}, element("tr", {}, element("th", { text: "User" }), ...head)),
        this.body,
      ),
      this.empty,
      element("div", { class: "bar flat" }, this.first, this.more),
    );
  }

  /** Ask for the page of accounts that is shown. */
  async refresh(again = false) {
    if (this.refused && !again) return;
    const query = new URLSearchParams({ limit: PAGE });
    if (this.after !== null) query.set("after", this.after);
    try {
      const { accounts, next } = await ask(`quotas?${query}`);
      this.next = next;
      this.more.hidden = next === null;
      this.first.hidden = this.after === null;
      if (this.failed) setText(this.note, "");
      this.failed = this.refused = false;
      this._show(accounts);
    } catch (error) {
      this.failed = true;
      setText(this.note, error.message);
      this.refused = error.status === 401 || error.status === 403;
      if (this.refused) this._show([]);
    }
  }

  _turn(after) {
    this.after = after;
    this.refresh();
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
    this.empty.hidden = accounts.length > 0 || this.failed;
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

/** Write how much is used, and of how much, with a bar if there is a limit. */
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
