// The broker's own figures, from $SYS/broker/#: values, and rates between two rounds of them.

import { setText, element } from "./dom.js";
import { bytes, duration, number } from "./text.js";

const PREFIX = "$SYS/broker/";
const ROUND_MILLISECONDS = 80; // the figures of one round come together
const KEPT = 600; // samples

/** The newest value of each figure, and a ring of samples. Events: `sample`, `value`. */
export class Figures extends EventTarget {
  constructor() {
    super();
    this.values = new Map();
    this.samples = [];
    this._last = null;
    this._round = null;
  }

  /** Take a message of $SYS. */
  take(topic, payload, packet) {
    const name = topic.slice(PREFIX.length);
    this.values.set(name, new TextDecoder().decode(payload));
    if (this._round !== null) return;
    // What is retained came at some time before: good as a value, not as the start of a rate.
    const live = !packet.retain;
    const time = performance.now();
    this._round = setTimeout(() => {
      this._round = null;
      if (live) this._sample(time);
      this.dispatchEvent(new Event("value"));
    }, ROUND_MILLISECONDS);
  }

  /** A figure as a number, or null if the broker has none of that name. */
  number(name) {
    const value = Number.parseFloat(this.values.get(name));
    return Number.isFinite(value) ? value : null;
  }

  /** The sum of figures whose names match, or null if there are none. */
  sum(pattern) {
    let sum = null;
    for (const name of this.values.keys()) {
      if (pattern.test(name)) sum = (sum ?? 0) + (this.number(name) ?? 0);
    }
    return sum;
  }

  /** Begin anew, after the connection was lost: no rate reaches over the gap. */
  interrupt() {
    this._last = null;
  }

  _sample(time) {
    const counters = {
      messagesIn: this.number("publish/messages/received"),
      messagesOut: this.number("publish/messages/sent"),
      bytesIn: this.number("bytes/received"),
      bytesOut: this.number("bytes/sent"),
      logMessages: this.number("log/messages/written") ?? this.sum(/^log\/streams\/.+\/offset$/),
      logBytes: this.number("log/bytes/written"),
    };
    const last = this._last;
    this._last = { time, counters };
    if (last === null) return;
    const seconds = (time - last.time) / 1000;
    const sample = { time: Date.now() / 1000 };
    for (const [name, value] of Object.entries(counters)) {
      const before = last.counters[name];
      sample[name] = value === null || before === null ? null : Math.max(0, (value - before) / seconds);
    }
    sample.commitMedian = this.number("log/commits/median");
    sample.commitLongest = this.number("log/commits/longest");
    this.samples.push(sample);
    if (this.samples.length > KEPT) this.samples.shift();
    this.dispatchEvent(new Event("sample"));
  }
}

/** Messages in queues of sessions: what is stored, less what is retained. */
function waiting(figures) {
  const stored = figures.number("messages/stored");
  const retained = figures.number("retained messages/count");
  return stored === null || retained === null ? null : Math.max(0, stored - retained);
}

/** Messages that the log keeps, in all streams; older ones may have been dropped. */
function kept(figures) {
  const ends = figures.sum(/^log\/streams\/.+\/offset$/);
  return ends === null ? null : ends - (figures.sum(/^log\/streams\/.+\/first$/) ?? 0);
}

// Label, how to read it, how to write it, whether more than none is bad. What the broker lacks is hidden.
const TILES = [
  ["Clients", (figures) => figures.number("clients/connected"), number],
  ["Subscriptions", (figures) => figures.number("subscriptions/count"), number],
  ["Retained", (figures) => figures.number("retained messages/count"), number],
  ["Waiting", waiting, number],
  ["In the log", kept, number],
  ["Log size", (figures) => figures.sum(/^log\/streams\/.+\/bytes$/), bytes],
  ["Slow consumers", (figures) => figures.number("clients/behind"), number, true],
  ["Dropped", (figures) => figures.number("publish/messages/dropped"), number, true],
  ["Lost by the log", (figures) => figures.number("log/lost"), number, true],
  ["Longest block", (figures) => figures.number("loop/longest block"), (value) => `${number(value)} ms`],
];

/** Show the tiles in a `dl`; returns a function that brings them up to date. */
export function tiles(list, figures) {
  const shown = TILES.map(([label, read, write, bad]) => {
    const value = element("dd", { text: "–" });
    const tile = element("div", { "data-tile": label }, element("dt", { text: label }), value);
    list.append(tile);
    return { tile, value, read, write, bad };
  });
  return () => {
    const known = figures.values.size > 0;
    for (const { tile, value, read, write, bad } of shown) {
      const current = read(figures);
      tile.hidden = known && current === null;
      if (current === null) continue;
      setText(value, write(current));
      tile.classList.toggle("bad", Boolean(bad) && current > 0);
    }
  };
}

/** Version and uptime in one line. */
export function about(figures) {
  const version = figures.values.get("version")?.replace(/^pyrite version /, "");
  const uptime = figures.number("uptime");
  return [version, uptime === null ? null : `up ${duration(uptime)}`].filter(Boolean).join(" · ");
}

/** All figures as a table, in the order of their names; returns a function that brings it up to date. */
export function table(panel, figures) {
  const body = element("tbody");
  const head = element(
    "tr",
    {},
    element("th", { text: "Figure" }),
    element("th", { text: "Value", class: "end" }),
  );
  panel.append(element("table", { class: "narrow" }, element("thead", {}, head), body));
  const rows = new Map();
  return () => {
    for (const [name, value] of rows) {
      if (figures.values.has(name)) continue;
      value.parentElement.remove();
      rows.delete(name);
    }
    for (const name of [...figures.values.keys()].sort()) {
      if (!rows.has(name)) {
        const value = element("td", { class: "end" });
        const row = element("tr", {}, element("td", { text: name, class: "mono" }), value);
        rows.set(name, value);
        const after = [...body.children].find((other) => other.firstChild.textContent > name);
        body.insertBefore(row, after ?? null);
      }
      setText(rows.get(name), figures.values.get(name));
    }
  };
}
