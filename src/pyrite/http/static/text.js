// Formats numbers, times and payloads.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SMALL = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const UNITS = ["B", "KB", "MB", "GB", "TB"];
const PREVIEW_BYTES = 200;

/** A number with separators, and one decimal if it is small. */
export function number(value) {
  return Math.abs(value) < 10 && !Number.isInteger(value) ? SMALL.format(value) : WHOLE.format(value);
}

/** A short number, for axes. */
export function short(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${SMALL.format(value / 1e9)}G`;
  if (size >= 1e6) return `${SMALL.format(value / 1e6)}M`;
  if (size >= 1e3) return `${SMALL.format(value / 1e3)}k`;
  return SMALL.format(value);
}

/** A count with its noun. */
export function counted(value, one, more) {
  return `${number(value)} ${value === 1 ? one : more}`;
}

// Invisible characters, line ends, and characters that change the text direction.
const UNSEEN = /[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]/g;

/** A text in one line, with symbols (U+2400) or code points for invisible characters. */
export function visible(text) {
  return text.replace(UNSEEN, (character) => {
    const code = character.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : `\u27e8${code.toString(16)}\u27e9`;
  });
}

/** Bytes with a unit. */
export function bytes(value) {
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || Math.abs(value) >= 100 ? WHOLE.format(value) : SMALL.format(value)} ${UNITS[unit]}`;
}

/** A duration in its two largest units of days, hours, minutes and seconds. */
export function duration(seconds) {
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [Math.floor(seconds) % 60, "s"],
  ];
  const first = parts.findIndex(([count]) => count > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .map(([count, unit]) => `${count} ${unit}`)
    .join(" ");
}

const pad = (value, width = 2) => String(value).padStart(width, "0");

/** The time of day, to the millisecond. */
export function clock(milliseconds) {
  const date = new Date(milliseconds);
  const time = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  return `${time}.${pad(date.getMilliseconds(), 3)}`;
}

/** Date and time, in the format of `datetime-local`. */
export function moment(milliseconds) {
  const date = new Date(milliseconds);
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day}T${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** The payload as text, or null if it is not UTF-8. The last character may be truncated. */
export function asText(payload) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(payload, { stream: true });
    return /[\x00-\x08\x0b\x0c\x0e-\x1f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** The payload as indented JSON, or null if it is not JSON. */
export function asJson(payload) {
  const text = asText(payload);
  if (text === null || !/^\s*[[{"\-0-9tfn]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indented(text);
}

const TOKENS = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const MOST_INDENTATION = 40; // levels

/** Indent JSON without parsing numbers, which would change large ones. */
function indented(text) {
  const tokens = text.match(TOKENS);
  const parts = [];
  let level = 0;
  const line = () => `\n${"  ".repeat(Math.min(level, MOST_INDENTATION))}`;
  tokens.forEach((token, place) => {
    const before = tokens[place - 1];
    if (token === "}" || token === "]") {
      level -= 1;
      if (before !== "{" && before !== "[") parts.push(line());
    } else if (before === "{" || before === "[" || before === ",") parts.push(line());
    if (token === "{" || token === "[") level += 1;
    parts.push(token.startsWith('"') ? JSON.stringify(JSON.parse(token)) : token);
    if (token === ":") parts.push(" ");
  });
  return parts.join("");
}

/** Rows of sixteen bytes: offset, hexadecimal, characters. */
export function asHex(payload, most = 4096) {
  const rows = [];
  for (let start = 0; start < Math.min(payload.length, most); start += 16) {
    const row = payload.subarray(start, Math.min(start + 16, most));
    const hex = Array.from(row, (byte) => pad(byte.toString(16)));
    const left = hex.slice(0, 8).join(" ").padEnd(23);
    const right = hex.slice(8).join(" ").padEnd(23);
    const characters = Array.from(row, (byte) =>
      byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".",
    );
    rows.push(`${pad(start.toString(16), 4)}  ${left}  ${right}  ${characters.join("")}`);
  }
  if (payload.length > most) rows.push(`... ${number(payload.length - most)} bytes more`);
  return rows.join("\n");
}

/** Bytes as hexadecimal digits. */
export function plainHex(payload, most = 64) {
  const digits = Array.from(payload.subarray(0, most), (byte) => pad(byte.toString(16))).join(" ");
  return payload.length > most ? `${digits} ...` : digits;
}

/** The beginning of a payload in one line. */
export function preview(payload) {
  const start = payload.subarray(0, PREVIEW_BYTES);
  const text = asText(start);
  return text === null ? plainHex(start, 24) : visible(text.replace(/\s+/g, " "));
}
