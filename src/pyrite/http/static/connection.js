// The page as an MQTT 5 client: one connection, and the handlers of each filter.

import mqtt from "./vendor/mqtt/mqtt.esm.js";
import { matcher } from "./topics.js";

const REFUSED = new Set([0x84, 0x85, 0x86, 0x87, 0x8a, 0x8c, 0x9f]); // other reasons are temporary
const RETRY_MILLISECONDS = 2000;

/** A handler of a filter; `refused` is called with the reason if the broker refuses the subscription. */
class Follower {
  constructor(filter, handle, refused) {
    this.handle = handle;
    this.refused = refused;
    this.filter = filter;
    this.matches = matcher(filter);
  }
}

/** A connection that reconnects. Events: `state` ({state, reason}). */
export class Connection extends EventTarget {
  constructor(url) {
    super();
    this.url = url;
    this.client = null;
    this.connected = false;
    this.reason = null; // of the broker's DISCONNECT
    this.followers = new Set();
    this.again = () => this.open(); // reconnects as the same user
  }

  /** Connect as a user, or anonymously. */
  open(user = null, password = "") {
    this.close();
    this.again = () => this.open(user, password);
    const client = mqtt.connect(this.url, {
      protocolVersion: 5,
      clientId: `dashboard-${Math.random().toString(36).slice(2, 10)}`,
      clean: true,
      keepalive: 30,
      connectTimeout: 5000,
      reconnectPeriod: RETRY_MILLISECONDS,
      reconnectOnConnackError: true,
      resubscribe: false,
      queueQoSZero: false,
      timerVariant: "native", // other timers need a blob worker, which the page's policy forbids
      ...(user === null ? {} : { username: user, password }),
    });
    this.client = client;
    this._tell("connecting");
    client.on("connect", () => {
      this.connected = true;
      this._tell("connected");
      for (const filter of new Set([...this.followers].map((follower) => follower.filter)))
        this._subscribe(filter);
    });
    client.on("message", (topic, payload, packet) => {
      for (const follower of this.followers) {
        if (follower.matches(topic)) follower.handle(topic, payload, packet);
      }
    });
    let said = null;
    client.on("packetreceive", (packet) => {
      if (packet.cmd === "connack") said = packet.properties?.reasonString ?? null;
    });
    client.on("error", (error) => {
      if (error.code === undefined || client !== this.client) return;
      this.reason = said ?? error.message.replace(/^Connection refused: /, "");
      if (!REFUSED.has(error.code)) return;
      this.close();
      this._tell("refused", this.reason);
      this.reason = null;
    });
    client.on("disconnect", (packet) => {
      this.reason = packet.properties?.reasonString ?? null;
    });
    client.on("close", () => {
      if (client !== this.client) return;
      this.connected = false;
      this._tell("lost", this.reason);
      this.reason = null;
    });
  }

  /** Close the connection for good. */
  close() {
    const client = this.client;
    this.client = null;
    this.connected = false;
    client?.end(true);
  }

  /** Call `handle(topic, payload, packet)` for matching messages; returns the argument of `unfollow`. */
  follow(filter, handle, refused = () => {}) {
    const known = [...this.followers].some((follower) => follower.filter === filter);
    const follower = new Follower(filter, handle, refused);
    this.followers.add(follower);
    // Subscribe again even if the filter is in use: the new handler needs the retained messages, too.
    if (this.connected) this._subscribe(filter, known ? follower : null);
    return follower;
  }

  /** Remove a handler. */
  unfollow(follower) {
    if (!this.followers.delete(follower)) return;
    const wanted = [...this.followers].some((other) => other.filter === follower.filter);
    if (!wanted && this.connected) this.client.unsubscribe(follower.filter);
  }

  /** Publish; resolves once the broker has acknowledged the message, or rejects with a reason. */
  publish(topic, payload, options) {
    if (!this.connected) return Promise.reject(new Error("Not connected."));
    return new Promise((resolve, reject) => {
      this.client.publish(topic, payload, options, (error, packet) => {
        if (!error) resolve();
        else
          reject(
            new Error(packet?.properties?.reasonString ?? error.message.replace(/^Publish error: /, "")),
          );
      });
    });
  }

  _subscribe(filter, only = null) {
    this.client.subscribe(filter, { qos: 0 }, (error, _granted, packet) => {
      if (!error) return;
      document.dispatchEvent(new Event("refused"));
      const reason = packet?.properties?.reasonString ?? error.message.replace(/^Subscribe error: /, "");
      for (const follower of this.followers) {
        if (follower.filter === filter && (only === null || follower === only)) follower.refused(reason);
      }
    });
  }

  _tell(state, reason = null) {
    this.dispatchEvent(new CustomEvent("state", { detail: { state, reason } }));
  }
}
