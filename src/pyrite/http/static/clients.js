// The table of connected clients, with their subscriptions and a button to disconnect each.

import { ask } from "./api.js";
import { element, setText } from "./dom.js";
import { PagedTable } from "./paged.js";
import { bytes, duration, number, visible } from "./text.js";

const COLUMNS = [
  "Client",
  "User",
  "Protocol",
  "Address",
  "Since",
  "Subscriptions",
  "Queued",
  "Received",
  "Sent",
  "",
];
const END = new Set(["Subscriptions", "Queued", "Received", "Sent"]);

/** Format a number that the broker may not know. */
const figure = (value, write) => (value == null ? "–" : write(value));

export class Clients extends PagedTable {
  constructor(panel, note) {
    const heads = COLUMNS.map((name) => element("th", { text: name, class: END.has(name) ? "end" : "" }));
    super(panel, note, { path: "clients", list: "clients", heads, empty: "No client is connected." });
    this.opened = null;
  }

  async _show(clients) {
    const ids = new Set(clients.map(({ id }) => id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.main.remove();
      row.more.remove();
      this.rows.delete(id);
      if (this.opened === id) this.opened = null;
    }
    for (const client of clients) {
      if (!this.rows.has(client.id)) this.rows.set(client.id, this._row(client.id));
      const row = this.rows.get(client.id);
      const since = Date.parse(client.connected_since);
      const cells = [
        null,
        visible(client.user ?? "–"),
        client.protocol ?? "–",
        client.address ?? "–",
        Number.isNaN(since) ? "–" : duration(Math.max(0, (Date.now() - since) / 1000)),
        number(client.subscriptions),
        figure(client.queued, number),
        figure(client.received, bytes),
        figure(client.sent, bytes),
      ];
      cells.forEach((text, place) => text !== null && setText(row.main.children[place], text));
      row.slow.hidden = !client.slow;
    }
    if (this.opened !== null) await this._subscriptions(this.opened);
  }

  _row(id) {
    const open = element("button", {
      type: "button",
      class: "link mono",
      text: visible(id),
      "aria-expanded": "false",
    });
    const slow = element("span", { class: "badge", text: "slow", hidden: "" });
    const end = element("button", { type: "button", text: "Disconnect", "aria-label": `Disconnect ${id}` });
    const cells = COLUMNS.slice(1, -1).map((name) => element("td", { class: END.has(name) ? "end" : "" }));
    const main = element(
      "tr",
      {},
      element("td", {}, open, slow),
      ...cells,
      element("td", { class: "end" }, end),
    );
    const list = element("td", { colspan: COLUMNS.length });
    const more = element("tr", { class: "more", hidden: "" }, list);
    this.body.append(main, more);
    open.addEventListener("click", () => this._open(this.opened === id ? null : id));
    end.addEventListener("click", () => this._disconnect(id, end));
    return { main, more, list, open, slow };
  }

  _open(id) {
    this.opened = id;
    for (const [other, row] of this.rows) {
      row.more.hidden = other !== id;
      row.open.setAttribute("aria-expanded", other === id);
    }
    if (id !== null) this._subscriptions(id).catch((error) => setText(this.note, error.message));
  }

  async _subscriptions(id) {
    const client = await ask(`clients/${encodeURIComponent(id)}`);
    const row = this.rows.get(id);
    if (row === undefined) return;
    const words = client.subscribed.map(({ filter, qos }) =>
      element(
        "li",
        {},
        element("span", { class: "mono", text: visible(filter) }),
        element("span", { class: "soft", text: ` QoS ${qos}` }),
      ),
    );
    row.list.replaceChildren(
      words.length === 0
        ? element("span", { class: "soft", text: "No subscriptions." })
        : element("ul", {}, ...words),
    );
  }

  /** Disconnect a client at the second click within four seconds. */
  async _disconnect(id, button) {
    if (button.dataset.sure === undefined) {
      button.dataset.sure = "";
      setText(button, "Really?");
      setTimeout(() => {
        delete button.dataset.sure;
        setText(button, "Disconnect");
      }, 4000);
      return;
    }
    try {
      await ask(`clients/${encodeURIComponent(id)}`, { method: "DELETE" });
      setText(this.note, `${id} was disconnected.`);
    } catch (error) {
      setText(this.note, error.message);
    }
    await this.refresh();
  }
}
