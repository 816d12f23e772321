// Messages of the past: a time in a stream of the log, and the messages from there on.

import { ask, fromBase64, payloadOf } from "./api.js";
import { byId, element } from "./dom.js";
import { moment } from "./text.js";

const PAGE = 100;
const SETTLE_MILLISECONDS = 150; // the slider must rest for this long
const STEPS = 1000;

/** Convert a message of the API for the viewer. */
function fromApi(message) {
  const payload = payloadOf(message);
  return {
    topic: message.topic,
    payload,
    size: payload.length,
    time: Date.parse(message.timestamp),
    qos: message.qos,
    retain: message.retain,
    offset: message.offset,
    client: message.client_id,
    properties: {
      contentType: message.content_type,
      responseTopic: message.response_topic,
      correlationData: message.correlation_data_base64 ? fromBase64(message.correlation_data_base64) : null,
      messageExpiryInterval: message.message_expiry,
      userProperties: message.user_properties,
    },
  };
}

export class Past {
  /** `filter()` returns the viewer's current filter. */
  constructor(viewer, filter) {
    this.viewer = viewer;
    this.filter = filter;
    this.stream = byId("past-stream");
    this.slider = byId("past-slider");
    this.time = byId("past-time");
    this.later = byId("past-later");
    this.first = null;
    this.next = null;
    this.asked = 0;
    this.slider.addEventListener("input", () => {
      this._showTime(this._sliderTime());
      this._soon();
    });
    this.time.addEventListener("change", () => {
      const chosen = new Date(this.time.value).getTime();
      if (!Number.isFinite(chosen)) return;
      this._showSlider(chosen);
      this.look(chosen);
    });
    this.stream.addEventListener("change", () => this.open());
    this.later.addEventListener("click", () => this.look(this.next));
  }

  /** Set the names of the streams. */
  streams(names) {
    const known = [...this.stream.options].map((option) => option.value);
    if (known.join("\n") === names.join("\n")) return;
    const chosen = this.stream.value;
    this.stream.replaceChildren(...names.map((name) => element("option", { text: name, value: name })));
    if (names.includes(chosen)) this.stream.value = chosen;
  }

  /** Show the newest minute. */
  open() {
    return this._begin(null);
  }

  /** Reload for another filter or user, at the same time if possible. */
  again() {
    return this._begin(this._sliderTime());
  }

  /** Show messages from a time in milliseconds, or from the `next` offset of an answer. */
  async look(from) {
    clearTimeout(this.settling);
    if (from === null || this.stream.value === "") return;
    const asked = (this.asked += 1);
    const position = from === this.next ? String(from) : new Date(from).toISOString();
    const query = new URLSearchParams({ filter: this.filter(), from: position, limit: PAGE });
    this.later.disabled = true;
    try {
      const answer = await ask(`${this._path()}?${query}`);
      if (asked !== this.asked) return;
      const messages = answer.messages.map(fromApi);
      this.next = answer.next;
      this.later.disabled = answer.next === null;
      this.viewer.say(answer.skipped?.length ? `Left out: ${answer.skipped.join("; ")}` : "");
      this.viewer.past(messages);
      if (position === String(from) && messages.length > 0) {
        this._showSlider(messages[0].time);
        this._showTime(messages[0].time);
      }
    } catch (error) {
      if (asked !== this.asked) return;
      this.viewer.past([]);
      this.viewer.say(error.message);
    }
  }

  /** Ignore answers to earlier requests. */
  leave() {
    this.asked += 1;
    clearTimeout(this.settling);
  }

  /** Find the first message of the filter, and show messages from a time on; null for the newest minute. */
  async _begin(from) {
    this.leave();
    const asked = this.asked;
    this.last = Date.now();
    this.first = null;
    this.next = null;
    this.later.disabled = this.slider.disabled = this.time.disabled = true;
    this.viewer.past([]);
    try {
      if (this.stream.value === "") this.streams((await ask("streams")).streams.map(({ name }) => name));
      if (asked !== this.asked) return;
      if (this.stream.value === "") {
        this.viewer.say("This broker keeps no log.");
        return;
      }
      const first = await this._firstTime(asked);
      if (asked !== this.asked) return;
      this.first = first ?? this.last - 1000;
    } catch (error) {
      if (asked === this.asked) this.viewer.say(error.message);
      return;
    }
    this.slider.disabled = this.time.disabled = false;
    const start = Math.max(this.first, from ?? this.last - 60000);
    this._showSlider(start);
    this._showTime(start);
    await this.look(start);
  }

  /** The time of the first message of the filter, or null. */
  async _firstTime(asked) {
    let position = "earliest";
    while (position !== null && asked === this.asked) {
      const query = new URLSearchParams({ filter: this.filter(), from: position, limit: 1 });
      const { messages, next } = await ask(`${this._path()}?${query}`);
      if (messages.length > 0) return Date.parse(messages[0].timestamp);
      position = next; // a long search ends early, and says where to continue
      if (position !== null && asked === this.asked) this.viewer.say("Looking for the first message ...");
    }
    return null;
  }

  _path() {
    return `streams/${encodeURIComponent(this.stream.value)}/messages`;
  }

  _soon() {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.look(this._sliderTime()), SETTLE_MILLISECONDS);
  }

  _sliderTime() {
    if (this.first === null) return null;
    return this.first + ((this.last - this.first) * Number(this.slider.value)) / STEPS;
  }

  _showSlider(time) {
    this.slider.value = Math.round(((time - this.first) / Math.max(1, this.last - this.first)) * STEPS);
    this.slider.setAttribute("aria-valuetext", moment(time).replace("T", " "));
  }

  _showTime(time) {
    if (time === null) return;
    this.time.value = moment(time);
    this.slider.setAttribute("aria-valuetext", moment(time).replace("T", " "));
  }
}
