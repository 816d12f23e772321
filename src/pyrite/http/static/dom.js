// Creates elements without markup, so that text from topics and payloads stays text.

export const byId = (id) => document.getElementById(id);

/** Create an element with attributes, a text, and children. */
export function element(name, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Set a text if it differs, because writing it costs a layout. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Return a function that calls `work` at most once per frame. */
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
 * Call `work(false)` every `seconds`, one call at a time, while the page is visible and `wanted()` is true.
 * Returns a function that calls `work` immediately, with its own argument.
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
