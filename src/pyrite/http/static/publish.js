// The form that publishes, over the page's own MQTT connection.

import { byId, setText } from "./dom.js";
import { asText, bytes } from "./text.js";

/** Activate the form; returns a function that fills it with a message. */
export function publishing(connection) {
  const note = byId("publish-note");
  const say = (text, bad = false) => {
    setText(note, text);
    note.classList.toggle("bad", bad);
  };

  byId("publish").addEventListener("submit", async (event) => {
    event.preventDefault();
    const topic = byId("publish-topic").value;
    if (/[+#]/.test(topic)) {
      say("A topic to publish to has no + and no #.", true);
      return;
    }
    const qos = Number(byId("publish-qos").value);
    const contentType = byId("publish-type").value.trim();
    const properties = contentType === "" ? {} : { contentType };
    say("Publishing ...");
    try {
      const retain = byId("publish-retain").checked;
      await connection.publish(topic, byId("publish-payload").value, { qos, retain, properties });
      say(qos === 0 ? "Sent. With QoS 0 the broker does not answer." : "Published.");
    } catch (error) {
      say(`Refused: ${error.message}`, true);
    }
  });

  return (message) => {
    byId("publish-topic").value = message.topic;
    byId("publish-payload").value = asText(message.payload) ?? "";
    byId("publish-type").value = message.properties.contentType ?? "";
    byId("publish-retain").checked = message.retain;
    if (asText(message.payload) === null) say("The payload is not text and was omitted.", true);
    else if (message.payload.length < message.size)
      say(`This is the first ${bytes(message.payload.length)} of ${bytes(message.size)}.`, true);
    else say("");
  };
}
