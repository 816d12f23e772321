// The named readers of the log, below the table of streams: how far each of them lags.

import { ask } from "./api.js";
import { element, setText } from "./dom.js";
import { duration, number } from "./text.js";

const COLUMNS = ["Reader", "User", "Stream", "Offset", "Lag", "Last heard"];
const START = new Set(["Reader", "User", "Stream"]);

export class Readers {
  constructor(panel) {
    this.body = element("tbody");
    const head = COLUMNS.map((name) => element("th", { text: name, class: START.has(name) ? "" : "end" }));
    this.table = element("table", { hidden: "" }, element("thead", {}, element("tr", {}, ...head)), this.body);
    panel.append(this.table);
  }

  /** Load the readers; whoever may not see them sees no table. */
  async refresh() {
    let readers = [];
    try {
      ({ readers } = await ask("readers"));
    } catch {
      // the table of streams says what is wrong
    }
    this.table.hidden = readers.length === 0;
    while (this.body.children.length > readers.length) this.body.lastChild.remove();
    readers.forEach((reader, place) => {
      if (!this.body.children[place]) {
        const cells = COLUMNS.map((name) => element("td", { class: START.has(name) ? "mono" : "end" }));
        this.body.append(element("tr", {}, ...cells));
      }
      const texts = [
        reader.name,
        reader.user,
        reader.stream,
        number(reader.offset),
        number(reader.lag),
        `${duration(reader.seconds)} ago`,
      ];
      texts.forEach((text, column) => setText(this.body.children[place].children[column], text));
    });
  }
}
