// One message in full: its properties, and its payload as JSON, text or hexadecimal.

import { byId, element, setText } from "./dom.js";
import { tabs } from "./tabs.js";
import { asHex, asJson, asText, bytes, moment, number, plainHex, visible } from "./text.js";

const MOST_CHARACTERS = 100000;

/** Create the panel; returns a function that shows a message, or null for none. `again(message)` republishes. */
export function detail(again) {
  let current = null;

  const show = (form) => {
    if (current === null) return;
    const { payload, size } = current;
    const notes = [];
    if (payload.length < size) notes.push(`The first ${bytes(payload.length)} of ${bytes(size)}.`);
    let text = null;
    if (form === "as-json") text = asJson(payload);
    if (form === "as-text") text = asText(payload);
    if (text === null && form === "as-json") notes.push("This is not JSON.");
    if (text === null && form === "as-text") notes.push("This is not UTF-8 text; shown as hexadecimal.");
    if (text === null) text = (form === "as-json" ? asText(payload) : null) ?? asHex(payload);
    if (text.length > MOST_CHARACTERS)
      notes.push(`${number(text.length - MOST_CHARACTERS)} characters are left out.`);
    setText(byId("payload"), text.slice(0, MOST_CHARACTERS));
    setText(byId("payload-note"), notes.join(" "));
  };

  const choose = tabs(byId("as-json").parentElement, show);
  byId("again").addEventListener("click", () => current !== null && again(current));

  return (message) => {
    current = message;
    byId("detail-empty").hidden = message !== null;
    byId("detail-body").hidden = message === null;
    if (message === null) return;
    byId("detail-pairs").replaceChildren(
      ...pairs(message).flatMap(([key, value]) => [
        element("dt", { text: key }),
        element("dd", { text: value }),
      ]),
    );
    choose(form(message.payload));
  };
}

function form(payload) {
  if (asJson(payload) !== null) return "as-json";
  return asText(payload) === null ? "as-hex" : "as-text";
}

function pairs(message) {
  const { properties } = message;
  const seconds = (value) => `${number(value)} s`;
  const rows = [
    ["Topic", visible(message.topic)],
    [
      "Time",
      `${moment(message.time).replace("T", " ")}.${String(Math.floor(message.time) % 1000).padStart(3, "0")}`,
    ],
    ["Offset", message.offset === undefined ? null : String(message.offset)],
    ["From", message.client ?? null],
    ["QoS", message.qos === undefined ? null : String(message.qos)],
    ["Retained", message.retain ? "yes" : null],
    ["Size", bytes(message.size)],
    ["Content type", properties.contentType ?? null],
    ["Response topic", properties.responseTopic ?? null],
    ["Correlation", properties.correlationData ? plainHex(properties.correlationData) : null],
    [
      "Expires in",
      properties.messageExpiryInterval == null ? null : seconds(properties.messageExpiryInterval),
    ],
  ];
  for (const [key, value] of userProperties(properties.userProperties)) rows.push([key, value]);
  return rows.filter(([, value]) => value !== null);
}

/** User properties: in mqtt.js an object whose values are texts or lists of texts, in the API a list of pairs. */
function userProperties(found) {
  if (!found) return [];
  if (Array.isArray(found)) return found;
  return Object.entries(found).flatMap(([key, value]) => [value].flat().map((one) => [key, one]));
}
