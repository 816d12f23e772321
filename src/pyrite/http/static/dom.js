// Elements, made without markup: text that comes from topics and payloads stays text.

export const byId = (id) => document.getElementById(id);

/** An element with a class, a text, and children. */
export function element(name, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Set a text only if it is another, as writing it costs a layout. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Call `work` at most once for each frame, however often the returned function is called. */
export function eachFrame(work) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame((now) => {
      waiting = false;
      work(now);
    });
  };
}

/**
 * Call `work(false)` every `seconds`, one at a time, while the page is looked at and `wanted` says so.
 * Returns a function that calls it at once; what it is given, `work` is given.
 */
export function repeat(seconds, wanted, work) {
  let busy = false;
  const once = async (again = false) => {
    if (busy || document.hidden || !wanted()) return;
    busy = true;
    try {
      await work(again);
    } finally {
      busy = false;
    }
  };
  setInterval(() => once(), seconds * 1000);
  return once;
}
