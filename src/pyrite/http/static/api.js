// The broker's HTTP API, for what MQTT has not: the past, clients, streams.

let credentials = null;

/** Log in with a name and a password from now on; null for nobody. */
export function useCredentials(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  credentials = user === null ? null : `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

/** A refusal or a failure, in words for people; `status` is HTTP's, 0 if nothing answered. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Ask the API; `path` is relative to /api/v1. Returns what the answer's JSON says, null if it has none. */
export async function ask(path, { method = "GET" } = {}) {
  const headers = { Accept: "application/json" };
  if (credentials !== null) headers.Authorization = credentials;
  let answer;
  try {
    // "omit" keeps the browser from asking for a password itself
    answer = await fetch(`api/v1/${path}`, { method, headers, credentials: "omit", cache: "no-store" });
  } catch {
    throw new ApiError(0, "The broker does not answer.");
  }
  const text = await answer.text();
  let content = null;
  try {
    content = text === "" ? null : JSON.parse(text);
  } catch {
    // an error of something between the page and the broker
  }
  if (!answer.ok) {
    if (answer.status === 401 || answer.status === 403) document.dispatchEvent(new Event("refused"));
    const reason = content?.detail ?? content?.title ?? answer.statusText;
    throw new ApiError(answer.status, `${refusal(answer.status)}${reason}`);
  }
  return content;
}

function refusal(status) {
  if (status === 401) return "Log-in needed: ";
  if (status === 403) return "Not allowed: ";
  return "";
}

/** The bytes of a payload as the API gives it: text, or base64. */
export function payloadOf(message) {
  if (message.payload_base64 != null) return fromBase64(message.payload_base64);
  return new TextEncoder().encode(message.payload ?? "");
}

/** Bytes out of base64. */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
