// MQTT.js clients, driven by JSON: a command a line in, an answer or a message a line out.
//
// In:  {"id": 1, "client": "a", "do": "open", ...}; payloads and other binary data in base64.
// Out: {"id": 1} or {"id": 1, "error": "..."} for each command, and {"client": "a", "message": {...}}.

"use strict";

const fs = require("node:fs");
const readline = require("node:readline");
const mqtt = require("mqtt");

const clients = new Map();

function say(what) {
  process.stdout.write(JSON.stringify(what) + "\n");
}

function messageOf(topic, payload, packet) {
  const properties = packet.properties ?? {};
  return {
    topic,
    payload: payload.toString("base64"),
    qos: packet.qos,
    retain: packet.retain,
    userProperties: properties.userProperties ?? {},
    contentType: properties.contentType,
    responseTopic: properties.responseTopic,
    correlationData: properties.correlationData?.toString("base64"),
    messageExpiryInterval: properties.messageExpiryInterval,
    subscriptionIdentifiers: [properties.subscriptionIdentifier ?? []].flat(),
  };
}

const commands = {
  open({ client: name, url, options, ca }) {
    if (ca) options.ca = fs.readFileSync(ca);
    if (options.will) options.will.payload = Buffer.from(options.will.payload, "base64");
    const client = mqtt.connect(url, { ...options, reconnectPeriod: 0 });
    clients.set(name, client);
    client.on("message", (topic, payload, packet) =>
      say({ client: name, message: messageOf(topic, payload, packet) }),
    );
    return new Promise((resolve, reject) => {
      client.once("connect", () => resolve());
      client.on("error", reject);
      client.once("close", () => reject(new Error("the connection was closed")));
    });
  },

  subscribe({ client: name, filter, options }) {
    return clients.get(name).subscribeAsync(filter, options);
  },

  publish({ client: name, topic, payloads, options }) {
    const correlation = options.properties?.correlationData;
    if (correlation) options.properties.correlationData = Buffer.from(correlation, "base64");
    const client = clients.get(name);
    return Promise.all(
      payloads.map((payload) => client.publishAsync(topic, Buffer.from(payload, "base64"), options)),
    );
  },

  close({ client: name }) {
    const client = clients.get(name);
    clients.delete(name);
    return client.endAsync();
  },

  // No DISCONNECT; and no closing frame, as this terminates a WebSocket.
  break({ client: name }) {
    const client = clients.get(name);
    clients.delete(name);
    const closed = new Promise((resolve) => client.once("close", resolve));
    client.stream.destroy();
    return closed;
  },
};

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", async (line) => {
  const command = JSON.parse(line);
  try {
    await commands[command.do](command);
    say({ id: command.id });
  } catch (error) {
    say({ id: command.id, error: String(error) });
  }
});
lines.on("close", () => process.exit(0));
