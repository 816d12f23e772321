// The table of streams: their size and growth.

import { ask } from "./api.js";
import { element, setText } from "./dom.js";
import { bytes, number } from "./text.js";

const COLUMNS = ["Stream", "Topics", "First", "End", "Messages", "Growth", "Size", "Segments", "State"];
const START = new Set(["Stream", "Topics", "State"]);

export class Streams {
  /** `names` is called with the names of the streams. */
  constructor(panel, note, names) {
    this.note = note;
    this.names = names;
    this.rows = new Map();
    this.before = new Map();
    this.body = element("tbody");
    const head = COLUMNS.map((name) => element("th", { text: name, class: START.has(name) ? "" : "end" }));
    this.empty = element("p", { class: "empty", text: "This broker keeps no log.", hidden: "" });
    panel.append(
      element("table", {}, element("thead", {}, element("tr", {}, ...head)), this.body),
      this.empty,
    );
  }

  /** Load the streams. */
  async refresh(again = false) {
    if (this.refused && !again) return;
    try {
      const { streams, withheld } = await ask("streams");
      setText(
        this.empty,
        withheld ? "You may not pull from any stream of this broker." : "This broker keeps no log.",
      );
      if (this.failed) setText(this.note, "");
      this.failed = this.refused = false;
      this.names(streams.map(({ name }) => name));
      this._show(streams);
    } catch (error) {
      this.failed = true;
      setText(this.note, error.message);
      this.refused = error.status === 401 || error.status === 403;
      if (this.refused) this._show([]);
    }
  }

  _show(streams) {
    const now = performance.now();
    this.empty.hidden = streams.length > 0 || this.failed;
    for (const [name, row] of this.rows) {
      if (streams.some((stream) => stream.name === name)) continue;
      row.remove();
      this.rows.delete(name);
    }
    for (const stream of streams) {
      if (!this.rows.has(stream.name)) {
        const cells = COLUMNS.map((name) => element("td", { class: START.has(name) ? "" : "end" }));
        cells[0].classList.add("mono");
        cells[1].classList.add("mono");
        this.rows.set(stream.name, element("tr", {}, ...cells));
        this.body.append(this.rows.get(stream.name));
      }
      const row = this.rows.get(stream.name);
      const before = this.before.get(stream.name);
      const growth = before ? ((stream.end - before.end) * 1000) / (now - before.time) : null;
      this.before.set(stream.name, { end: stream.end, time: now });
      const topics = Array.isArray(stream.topics) ? stream.topics.join(", ") : String(stream.topics ?? "");
      const texts = [
        stream.name,
        topics,
        number(stream.first),
        number(stream.end),
        number(stream.end - stream.first),
        growth === null ? "–" : `${number(Math.max(0, growth))}/s`,
        bytes(stream.bytes),
        number(stream.segments),
        stream.error ?? "healthy",
      ];
      texts.forEach((text, place) => setText(row.children[place], text));
      row.lastChild.classList.toggle("bad", stream.error !== null);
      row.lastChild.classList.toggle("good", stream.error === null);
    }
  }
}
