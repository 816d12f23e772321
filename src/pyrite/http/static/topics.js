// MQTT topic filters.

/** Return a function that returns true for topics that match the filter. */
export function matcher(filter) {
  const levels = filter.startsWith("$share/") ? filter.split("/").slice(2) : filter.split("/");
  const plain = levels.join("/");
  if (plain === "#") return (topic) => !topic.startsWith("$");
  if (!plain.includes("+") && !plain.includes("#")) return (topic) => topic === plain;
  const open = levels.at(-1) === "#";
  const fixed = open ? levels.slice(0, -1) : levels;
  const wild = fixed[0] === "+"; // [MQTT-4.7.2-1]: a wildcard at the start does not match $SYS
  return (topic) => {
    if (wild && topic.startsWith("$")) return false;
    const parts = topic.split("/");
    if (open ? parts.length < fixed.length : parts.length !== fixed.length) return false;
    return fixed.every((level, number) => level === "+" || level === parts[number]);
  };
}

/** The error in a filter, or null. */
export function complaint(filter) {
  if (filter === "") return "A filter has at least one character; # stands for all topics.";
  const levels = filter.split("/");
  const last = levels.length - 1;
  for (const [number, level] of levels.entries()) {
    if (level.includes("#") && (level !== "#" || number !== last))
      return "# stands alone, and at the end: sensors/#";
    if (level.includes("+") && level !== "+") return "+ stands alone between slashes: sensors/+/temperature";
  }
  return null;
}
