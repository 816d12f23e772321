// The broker's HTTP API, for data that MQTT does not have: the past, clients, streams.

let credentials = null;

/** Use these credentials from now on; null for none. */
export function useCredentials(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  credentials = user === null ? null : `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

/** A failed request; `status` is the HTTP status, or 0 without an answer. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Send a request; `path` is relative to /api/v1. Returns the JSON answer, or null. */
export async function ask(path, { method = "GET" } = {}) {
  const headers = { Accept: "application/json" };
  if (credentials !== null) headers.Authorization = credentials;
  let answer;
  try {
    // with "omit", the browser does not ask for a password itself
    answer = await fetch(`api/v1/${path}`, { method, headers, credentials: "omit", cache: "no-store" });
  } catch {
    throw new ApiError(0, "The broker does not answer.");
  }
  const text = await answer.text();
  let content = null;
  try {
    content = text === "" ? null : JSON.parse(text);
  } catch {
    // an error page of a proxy
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

/** The payload of a message of the API as bytes. */
export function payloadOf(message) {
  if (message.payload_base64 != null) return fromBase64(message.payload_base64);
  return new TextEncoder().encode(message.payload ?? "");
}

/** Decode base64. */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
