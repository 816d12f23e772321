// Spark pipelines: the last status of each, retained at $pipelines/NAME.

import { element, setText } from "./dom.js";
import { duration, number } from "./text.js";

const MOST = 200;
const COLUMNS = ["Pipeline", "State", "Batch", "Rows a second", "Lag", "Last heard"];
const START = new Set(["Pipeline", "State"]);

export class Pipelines {
  /** `emptied` is called when the last pipeline is removed while the panel is visible. */
  constructor(panel, tab, emptied) {
    this.panel = panel;
    this.emptied = emptied;
    this.tab = tab;
    this.rows = new Map();
    this.refused = element("p", { class: "empty", role: "status" });
    this.body = element("tbody");
    const head = COLUMNS.map((name) => element("th", { text: name, class: START.has(name) ? "" : "end" }));
    panel.append(
      element("table", {}, element("thead", {}, element("tr", {}, ...head)), this.body),
      this.refused,
    );
    this.refuse("");
    setInterval(() => this._ages(), 1000);
  }

  /** Show why there is no status; an empty reason clears the note. */
  refuse(reason) {
    setText(this.refused, reason);
    this.refused.hidden = reason === "";
    this._tab();
  }

  /** Remove all pipelines. */
  clear() {
    this.rows.clear();
    this.body.replaceChildren();
    this.refuse("");
  }

  /** Handle the status of a pipeline; a payload that is not a JSON object removes the pipeline. */
  take(topic, payload) {
    let said = null;
    try {
      said = JSON.parse(new TextDecoder().decode(payload));
    } catch {
      // an empty payload removes the pipeline
    }
    if (said === null || typeof said !== "object" || Array.isArray(said)) {
      this.rows.get(topic)?.row.remove();
      this.rows.delete(topic);
    } else if (this.rows.has(topic) || this.rows.size < MOST) {
      if (!this.rows.has(topic)) {
        const cells = COLUMNS.map((name) => element("td", { class: START.has(name) ? "" : "end" }));
        const row = element("tr", {}, ...cells);
        this.body.append(row);
        this.rows.set(topic, { row, time: NaN });
      }
      const entry = this.rows.get(topic);
      entry.time = timeOf(said.time);
      const texts = [
        String(said.name ?? topic.split("/").at(-1)),
        String(said.state ?? "–"),
        figure(said.batch),
        figure(said.rows_per_second),
        figure(said.lag),
      ];
      texts.forEach((text, place) => setText(entry.row.children[place], text));
      this._ages();
    }
    this._tab();
  }

  /** Show the tab while there are pipelines. */
  _tab() {
    this.tab.hidden = this.rows.size === 0 && this.refused.hidden;
    if (this.tab.hidden && !this.panel.hidden) this.emptied();
  }

  _ages() {
    for (const { row, time } of this.rows.values()) {
      const age = Number.isNaN(time) ? "–" : `${duration(Math.max(0, (Date.now() - time) / 1000))} ago`;
      setText(row.lastChild, age);
    }
  }
}

const figure = (value) => (typeof value === "number" ? number(value) : String(value ?? "–"));

/** Seconds since 1970, or a date as text. */
const timeOf = (value) => (typeof value === "number" ? value * 1000 : Date.parse(value));
