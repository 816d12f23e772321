// The topic tree: grows as messages arrive, up to a limit. Only visible rows are in the page.

import { eachFrame, element, setText } from "./dom.js";
import { counted, number, preview, visible } from "./text.js";

const MOST_NODES = 20000;
const MOST_LEVELS = 64;
const MOST_CHARACTERS = 1024; // of a topic
const ROW_HEIGHT = 28;
const KEPT_BYTES = 160;
const OPEN_LEVELS = 3; // levels that are open until they are closed by hand
const SHAPE_MILLISECONDS = 200; // new topics appear at most this often

class Node {
  constructor(name, topic, level, parent) {
    this.name = name;
    this.topic = topic;
    this.level = level;
    this.parent = parent;
    this.children = null;
    this.open = level < OPEN_LEVELS;
    this.count = 0; // messages of this topic and below
    this.value = null;
    this.number = 0;
  }
}

export class Tree {
  /** `chosen(filter)` is called when a topic is selected. */
  constructor(list, { empty, count, note, chosen }) {
    this.list = list;
    this.scroller = list.parentElement;
    this.emptyText = empty;
    this.countText = count;
    this.noteText = note;
    this.chosen = chosen;
    this.pool = [];
    this.rendered = eachFrame(() => this._render());
    this.scroller.addEventListener("scroll", this.rendered, { passive: true });
    new ResizeObserver(this.rendered).observe(this.scroller);
    list.addEventListener("keydown", (event) => this._key(event));
    list.addEventListener("click", (event) => this._click(event));
    list.addEventListener("focus", () => {
      if (this.active === null && this.rows.length > 0) this._activate(this.rows[0]);
    });
    this.clear();
  }

  /** Remove all topics. */
  clear() {
    this.root = new Node("", "", -1, null);
    this.root.children = new Map();
    this.nodes = 0;
    this.topics = 0;
    this.leftOut = 0;
    this.rows = [];
    this.active = null;
    this.changed = true;
    this.shaped = 0;
    this.refused = null;
    this.rendered();
  }

  /** Show why there are no messages. */
  refuse(reason) {
    this.refused = reason;
    this.rendered();
  }

  /** Count a message. */
  take(topic, payload, packet) {
    const node = this._find(topic);
    if (node === null) {
      this.leftOut += 1;
    } else {
      if (node.value === null) this.topics += 1;
      // Every subscription sends retained messages again; count them once.
      const again = packet.retain && node.value !== null;
      node.value = Uint8Array.prototype.slice.call(payload, 0, KEPT_BYTES); // a copy, because it is part of a large buffer
      if (!again) for (let at = node; at !== null; at = at.parent) at.count += 1;
    }
    this.rendered();
  }

  _find(topic) {
    if (topic.length > MOST_CHARACTERS) return null;
    const levels = topic.split("/");
    if (levels.length > MOST_LEVELS) return null;
    let node = this.root;
    for (let level = 0; level < levels.length; level += 1) {
      node.children ??= new Map();
      let child = node.children.get(levels[level]);
      if (child === undefined) {
        if (this.nodes >= MOST_NODES) return null;
        child = new Node(levels[level], levels.slice(0, level + 1).join("/"), level, node);
        node.children.set(child.name, child);
        this.nodes += 1;
        this.changed = true;
      }
      node = child;
    }
    return node;
  }

  _shape() {
    const rows = [];
    const walk = (node) => {
      const children = [...node.children.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
      children.forEach((child, place) => {
        child.place = place + 1;
        child.siblings = children.length;
        child.number = rows.length;
        rows.push(child);
        if (child.open && child.children !== null) walk(child);
      });
    };
    walk(this.root);
    this.rows = rows;
    this.list.style.height = `${rows.length * ROW_HEIGHT}px`;
    this.changed = false;
    this.shaped = performance.now();
  }

  _render() {
    if (this.changed) {
      const wait = this.shaped + SHAPE_MILLISECONDS - performance.now();
      if (wait <= 0) this._shape();
      else if (!this.waiting) {
        this.waiting = setTimeout(() => {
          this.waiting = null;
          this.rendered();
        }, wait);
      }
    }
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW_HEIGHT) - 2);
    const last = Math.min(this.rows.length, first + Math.ceil(this.scroller.clientHeight / ROW_HEIGHT) + 4);
    for (let place = 0; place < Math.max(last - first, this.pool.length); place += 1) {
      const node = first + place < last ? this.rows[first + place] : null;
      this._row(place, node);
    }
    this._words();
  }

  _row(place, node) {
    this.pool[place] ??= this._make(place);
    const row = this.pool[place];
    row.node = node;
    row.main.hidden = node === null;
    if (node === null) return;
    const y = node.number * ROW_HEIGHT;
    if (row.y !== y) {
      row.y = y;
      row.main.style.transform = `translateY(${y}px)`;
    }
    if (row.level !== node.level) {
      row.level = node.level;
      row.main.style.setProperty("--level", Math.min(node.level, 12));
      row.main.setAttribute("aria-level", node.level + 1);
    }
    row.main.setAttribute("aria-setsize", node.siblings);
    row.main.setAttribute("aria-posinset", node.place);
    row.main.setAttribute("aria-selected", node === this.active);
    if (node.children === null) row.main.removeAttribute("aria-expanded");
    else row.main.setAttribute("aria-expanded", node.open);
    if (node === this.active) this.list.setAttribute("aria-activedescendant", row.main.id);
    setText(row.name, node.name === "" ? "(empty)" : visible(node.name));
    setText(row.value, node.value === null ? "" : preview(node.value));
    setText(row.count, number(node.count));
  }

  _make(place) {
    const name = element("span", { class: "name" });
    const value = element("span", { class: "value" });
    const count = element("span", { class: "count" });
    const arrow = element("span", { class: "arrow", "aria-hidden": "true" });
    const main = element("div", { role: "treeitem", id: `topic-${place}` }, arrow, name, value, count);
    this.list.append(main);
    return { main, name, value, count, node: null, y: null, level: null };
  }

  _words() {
    this.emptyText.hidden = this.rows.length > 0;
    setText(this.countText, this.topics === 0 ? "" : counted(this.topics, "topic", "topics"));
    const words = [];
    if (this.refused !== null) words.push(`Refused: ${this.refused}`);
    if (this.leftOut > 0) {
      const full = this.nodes >= MOST_NODES;
      const which = full ? "on further topics, for which there is no room" : "on topics too long to be shown";
      words.push(`Left out: ${counted(this.leftOut, "message", "messages")} ${which}.`);
      if (full) words.push("Follow fewer.");
    }
    setText(this.noteText, words.join(" "));
  }

  _activate(node) {
    this.active = node;
    const top = node.number * ROW_HEIGHT;
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + ROW_HEIGHT > scrollTop + clientHeight)
      this.scroller.scrollTop = top + ROW_HEIGHT - clientHeight;
    this._render();
  }

  _toggle(node, open) {
    if (node.children === null || node.open === open) return;
    node.open = open;
    this._shape();
    this._render();
  }

  _choose(node) {
    this._activate(node);
    this.chosen(node.children === null ? node.topic : `${node.topic}/#`);
  }

  _click(event) {
    const row = this.pool.find(({ main }) => main.contains(event.target));
    if (!row?.node) return;
    if (event.target.classList.contains("arrow")) {
      this._toggle(row.node, !row.node.open);
      this._activate(row.node);
    } else this._choose(row.node);
  }

  _key(event) {
    const node = this.active ?? this.rows[0];
    if (node === undefined) return;
    const step = (by) =>
      this._activate(this.rows[Math.max(0, Math.min(this.rows.length - 1, node.number + by))]);
    const keys = {
      ArrowDown: () => step(1),
      ArrowUp: () => step(-1),
      PageDown: () => step(10),
      PageUp: () => step(-10),
      Home: () => step(-this.rows.length),
      End: () => step(this.rows.length),
      ArrowRight: () =>
        node.children !== null && !node.open ? this._toggle(node, true) : node.children && step(1),
      ArrowLeft: () => {
        if (node.children !== null && node.open) this._toggle(node, false);
        else if (node.parent !== this.root) this._activate(node.parent);
      },
      Enter: () => this._choose(node),
      " ": () => this._choose(node),
    };
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  }
}
