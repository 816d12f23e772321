// The plots: traffic, growth of the log, and duration of commits.

import { byId, element, setText } from "./dom.js";
import { bytes, clock, number, short } from "./text.js";

const WINDOW_SECONDS = 300;
const LEAST_SECONDS = 20;

const daytime = (seconds) => clock(seconds * 1000).slice(0, 8);
const milliseconds = (value) => `${number(value)} ms`;
const each = (write) => (value) => `${write(value)}/s`;

// Element, series as [name, key in a sample, colour], format of values,
// and the metric without which the plot is hidden.
const PLOTS = [
  [
    "plot-messages",
    [
      ["in", "messagesIn", "--in"],
      ["out", "messagesOut", "--out"],
    ],
    each(number),
    "uptime",
  ],
  [
    "plot-bytes",
    [
      ["in", "bytesIn", "--in"],
      ["out", "bytesOut", "--out"],
    ],
    each(bytes),
    "uptime",
  ],
  ["plot-log", [["messages", "logMessages", "--log"]], each(number), "log/error"],
  [
    "plot-commit",
    [
      ["median", "commitMedian", "--log"],
      ["longest", "commitLongest", "--out"],
    ],
    milliseconds,
    "log/commits/median",
  ],
];

/** The range of times; at least some seconds, so that few samples do not fill the whole width. */
function span(times) {
  const most = times.at(-1) ?? Date.now() / 1000;
  return [Math.min(times[0] ?? most, most - LEAST_SECONDS), most];
}

class Plot {
  constructor(id, series, write, needs) {
    this.panel = byId(id);
    this.place = this.panel.querySelector(".canvas");
    this.series = series;
    this.write = write;
    this.needs = needs;
    this.values = series.map(([name, , colour]) => {
      const value = element("dd", { text: "–" });
      const key = element("dt", { text: name, class: `key ${colour.slice(2)}` });
      this.panel.querySelector(".legend").append(element("div", {}, key, value));
      return value;
    });
    this.data = [[], ...series.map(() => [])];
    this.draw();
    new ResizeObserver(() => this.resize()).observe(this.place);
  }

  /** Create the plot in the colours of the theme. */
  draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const font = "11px system-ui, sans-serif";
    const axis = {
      stroke: colour("--soft"),
      font,
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
    };
    this.chart?.destroy();
    this.chart = new uPlot(
      {
        width: Math.max(this.place.clientWidth, 100),
        height: this.place.clientHeight,
        padding: [8, 28, 0, 0],
        cursor: { y: false, drag: { setScale: false }, points: { size: 5 } },
        legend: { show: false },
        scales: {
          x: { range: () => span(this.data[0]) }, // for a single sample, uPlot would show the whole day
          y: { range: (_chart, _least, most) => [0, Math.max(most ?? 0, 1) * 1.1] },
        },
        axes: [
          {
            ...axis,
            size: 24,
            space: 76,
            grid: { show: false },
            // uPlot may add a tick after the end, whose label would be cut off
            values: ({ scales }, ticks) => ticks.map((tick) => (tick <= scales.x.max ? daytime(tick) : "")),
          },
          { ...axis, size: 42, gap: 4, space: 28, values: (_chart, ticks) => ticks.map(short) },
        ],
        series: [
          {},
          ...this.series.map(([label, , name], place) => ({
            label,
            stroke: colour(name),
            fill: place === 0 ? `${colour(name)}1a` : undefined,
            width: 1.75,
            points: { show: false },
          })),
        ],
      },
      this.data,
      this.place,
    );
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.place;
    if (width === 0 || (width === this.chart.width && height === this.chart.height)) return;
    this.chart.setSize({ width, height });
  }

  /** Hide plots of metrics that the broker does not have. */
  hide(figures) {
    this.panel.hidden = !figures.values.has(this.needs);
  }

  /** Show the samples. */
  show(samples) {
    if (this.panel.hidden) return;
    const start = samples.at(-1).time - WINDOW_SECONDS;
    const recent = samples.filter((sample) => sample.time >= start);
    this.data = [
      recent.map((sample) => sample.time),
      ...this.series.map(([, key]) => recent.map((s) => s[key])),
    ];
    this.chart.setData(this.data);
    this.series.forEach(([, key], number) => {
      const value = recent.at(-1)[key];
      setText(this.values[number], value === null ? "–" : this.write(value));
    });
  }
}

/** Create the plots, and update them. */
export function plots(figures) {
  const all = PLOTS.map((plot) => new Plot(...plot));
  document.addEventListener("themechange", () => all.forEach((plot) => plot.draw()));
  figures.addEventListener("value", () => all.forEach((plot) => plot.hide(figures)));
  figures.addEventListener("sample", () => all.forEach((plot) => plot.show(figures.samples)));
}
