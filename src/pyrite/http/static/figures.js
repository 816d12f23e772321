// The broker's metrics from $SYS/broker/#: values, and rates between two updates.

import { setText, element } from "./dom.js";
import { bytes, duration, number } from "./text.js";

const PREFIX = "$SYS/broker/";
const ROUND_MILLISECONDS = 80; // metrics of one update arrive together
const KEPT = 600; // samples

/** The newest value of each metric, and a ring of samples. Events: `sample`, `value`. */
export class Figures extends EventTarget {
  constructor() {
    super();
    this.values = new Map();
    this.samples = [];
    this._last = null;
    this._round = null;
  }

  /** Handle a message of $SYS. */
  take(topic, payload, packet) {
    const name = topic.slice(PREFIX.length);
    this.values.set(name, new TextDecoder().decode(payload));
    if (this._round !== null) return;
    // The age of a retained message is unknown: it has a value, but cannot start a rate.
    const live = !packet.retain;
    const time = performance.now();
    this._round = setTimeout(() => {
      this._round = null;
      if (live) this._sample(time);
      this.dispatchEvent(new Event("value"));
    }, ROUND_MILLISECONDS);
  }

  /** A metric as a number, or null if the broker does not have it. */
  number(name) {
    const value = Number.parseFloat(this.values.get(name));
    return Number.isFinite(value) ? value : null;
  }

  /** The sum of metrics whose names match, or null if there are none. */
  sum(pattern) {
    let sum = null;
    for (const name of this.values.keys()) {
      if (pattern.test(name)) sum = (sum ?? 0) + (this.number(name) ?? 0);
    }
    return sum;
  }

  /** Restart after a lost connection, so that no rate spans the gap. */
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

/** Messages in queues of sessions: stored minus retained messages. */
function waiting(figures) {
  const stored = figures.number("messages/stored");
  const retained = figures.number("retained messages/count");
  return stored === null || retained === null ? null : Math.max(0, stored - retained);
}

/** Messages in all streams of the log. */
function kept(figures) {
  const ends = figures.sum(/^log\/streams\/.+\/offset$/);
  return ends === null ? null : ends - (figures.sum(/^log\/streams\/.+\/first$/) ?? 0);
}

// Label, read function, format function, true for an alarm. Tiles without a value are hidden.
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

/** Show the tiles in a `dl`; returns a function that updates them. */
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

/** Show all metrics as a table, ordered by name; returns a function that updates it. */
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
