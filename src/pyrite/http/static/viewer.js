// The list of messages: live ones at a readable rate, or messages of the past.

import { eachFrame, element, setText } from "./dom.js";
import { clock, bytes, counted, number, preview, visible } from "./text.js";

const MOST_ROWS = 200;
const ROWS_A_SECOND = 60;
const BURST = 150; // messages shown at once
const KEPT_BYTES = 65536; // of each payload
const SHOW_MILLISECONDS = 100;

export class Viewer {
  /** `chosen(message)` is called when a message is selected. */
  constructor(list, { empty, count, leftOut, note, chosen }) {
    this.list = list;
    this.texts = { empty, count, leftOut, note };
    this.chosen = chosen;
    this.messages = new WeakMap(); // of rows
    this.active = null;
    this.rowNumber = 0;
    this.paused = false;
    this.live = true;
    list.addEventListener("click", (event) => {
      const row = event.target.closest("[role=option]");
      if (row) this._choose(row);
    });
    list.addEventListener("keydown", (event) => this._key(event));
    this.clear();
    setInterval(
      eachFrame(() => this._show()),
      SHOW_MILLISECONDS,
    );
  }

  /** Remove all messages and counts. */
  clear() {
    this.list.replaceChildren();
    this.waiting = [];
    this.received = 0;
    this.leftOut = 0;
    this.whilePaused = 0;
    this.allowance = BURST;
    this.refilled = performance.now();
    this.active = null;
    this.list.removeAttribute("aria-activedescendant");
    this.say("");
    this._words();
  }

  /** Show a note below the list. */
  say(text) {
    setText(this.texts.note, text);
  }

  /** Show a live message, or only count it if there are too many. */
  take(topic, payload, packet) {
    this.received += 1;
    if (this.paused) {
      this.whilePaused += 1;
      return;
    }
    if (this.allowance < 1) {
      this.leftOut += 1;
      return;
    }
    this.allowance -= 1;
    // The page subscribes with QoS 0, so the publisher's QoS is unknown.
    this.waiting.push({
      topic,
      payload: Uint8Array.prototype.slice.call(payload, 0, KEPT_BYTES), // a copy, because it is part of a large buffer
      size: payload.length,
      time: Date.now(),
      retain: packet.retain,
      properties: packet.properties ?? {},
    });
  }

  /** Pause or resume the list. */
  pause(paused) {
    this.paused = paused;
    if (!paused) this.whilePaused = 0;
    this._words();
  }

  /** Show messages of the past, oldest first. */
  past(messages) {
    this.waiting = [];
    this.list.replaceChildren(...messages.map((message) => this._row(message)));
    this.list.parentElement.scrollTop = 0;
    this.active = null;
    this._words();
  }

  _show() {
    const now = performance.now();
    this.allowance = Math.min(BURST, this.allowance + ((now - this.refilled) / 1000) * ROWS_A_SECOND);
    this.refilled = now;
    if (!this.live) return;
    if (this.waiting.length > 0 && !this.paused) {
      const rows = this.waiting
        .reverse()
        .slice(0, MOST_ROWS)
        .map((message) => this._row(message));
      this.waiting = [];
      this.list.prepend(...rows);
      while (this.list.childElementCount > MOST_ROWS) this.list.lastElementChild.remove();
    }
    this._words();
  }

  _row(message) {
    const row = element(
      "div",
      { role: "option", id: `message-${(this.rowNumber += 1)}`, "aria-selected": "false" },
      element("span", { text: clock(message.time), class: "time" }),
      element("span", { text: visible(message.topic), class: "topic" }),
      element("span", { text: preview(message.payload), class: "value" }),
      element("span", { text: bytes(message.size), class: "size" }),
    );
    if (message.retain) row.classList.add("retained");
    this.messages.set(row, message);
    return row;
  }

  _words() {
    const { empty, count, leftOut } = this.texts;
    const rows = this.list.childElementCount;
    empty.hidden = rows > 0;
    setText(empty, this.live ? "Waiting for messages. Under Publish you can send one." : "No messages from there on.");
    if (!this.live) {
      setText(count, rows === 0 ? "" : `${counted(rows, "message", "messages")}, oldest first`);
      return;
    }
    setText(count, this.received === 0 ? "" : `${number(this.received)} received`);
    const words = [];
    if (this.paused) words.push(`Paused; ${number(this.whilePaused)} came since`);
    if (this.leftOut > 0) words.push(`${number(this.leftOut)} left out: more than ${ROWS_A_SECOND} a second`);
    setText(leftOut, words.join(" · "));
  }

  _choose(row) {
    if (!row) return;
    this.active?.setAttribute("aria-selected", "false");
    row.setAttribute("aria-selected", "true");
    this.active = row;
    this.list.setAttribute("aria-activedescendant", row.id);
    this.chosen(this.messages.get(row));
  }

  _key(event) {
    const current = this.active?.isConnected ? this.active : null;
    const first = this.list.firstElementChild;
    const targets = {
      ArrowDown: current === null ? first : current.nextElementSibling,
      ArrowUp: current === null ? first : current.previousElementSibling,
      Home: first,
      End: this.list.lastElementChild,
    };
    if (!(event.key in targets)) return;
    event.preventDefault();
    this._choose(targets[event.key]);
    this.active?.scrollIntoView({ block: "nearest" });
  }
}
