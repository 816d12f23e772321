// A table with one page of a list of the API, and buttons for the first and the next page.

import { ask } from "./api.js";
import { element, setText } from "./dom.js";

const PAGE = 100;

export class PagedTable {
  /** Show the entries that `path` of the API has in its field `list`; a subclass fills `body` in `_show`. */
  constructor(panel, note, { path, list, heads, empty }) {
    this.note = note;
    this.path = path;
    this.list = list;
    this.rows = new Map();
    this.after = null;
    this.body = element("tbody");
    this.more = element("button", { type: "button", text: "Next page", hidden: "" });
    this.first = element("button", { type: "button", text: "First page", hidden: "" });
    this.empty = element("p", { class: "empty", text: empty, hidden: "" });
    this.more.addEventListener("click", () => this._turn(this.next));
    this.first.addEventListener("click", () => this._turn(null));
    panel.append(
      element("table", {}, element("thead", {}, element("tr", {}, ...heads)), this.body),
      this.empty,
      element("div", { class: "bar flat" }, this.first, this.more),
    );
  }

  /** Load the current page. */
  async refresh(again = false) {
    if (this.refused && !again) return;
    const query = new URLSearchParams({ limit: PAGE });
    if (this.after !== null) query.set("after", this.after);
    try {
      const answer = await ask(`${this.path}?${query}`);
      this.next = answer.next;
      this.more.hidden = this.next === null;
      this.first.hidden = this.after === null;
      if (this.failed) setText(this.note, "");
      this.failed = this.refused = false;
      await this._show(answer[this.list]);
    } catch (error) {
      this.failed = true;
      setText(this.note, error.message);
      // Without another log-in, the API would refuse again: do not ask every other second.
      this.refused = error.status === 401 || error.status === 403;
      if (this.refused) await this._show([]);
    }
    this.empty.hidden = this.rows.size > 0 || this.failed;
  }

  _turn(after) {
    this.after = after;
    this.refresh();
  }
}
