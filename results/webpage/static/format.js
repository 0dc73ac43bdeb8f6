"use strict";
// Columns of cases, and how their values are written. Nothing here touches the page.

const LONGEST = 60; // letters of a text in a chart

/** The value of a column in one row; a column that is the same in all rows is stored as that one value. */
function get(data, name, row) {
  if (!Object.hasOwn(data.columns, name)) return null;
  const column = data.columns[name];
  return Array.isArray(column) ? column[row] : column;
}

/** All rows of the data, by number. */
function allRows(data) {
  return Array.from({ length: data.count }, (_, row) => row);
}

/** The different values of a column, in their order; unknown ones are left out. */
function distinct(data, name, rows = allRows(data)) {
  const values = [...new Set(rows.map((row) => get(data, name, row)))].filter((value) => value !== null);
  return values.sort(compare);
}

// Made once: a formatter of its own for each number takes longer than all the rest of the page.
const FORMATS = [0, 1, 2].map((digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const FIVE_DIGITS = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 5 });
const ORDER = new Intl.Collator("en-US", { numeric: true });

/** A number with separators and so many digits behind the point, such as 12,345.6; nothing if it is not known. */
function number(value, digits = 0) {
  if (typeof value !== "number") return value === null ? "" : String(value);
  return FORMATS[digits].format(value);
}

/** Which of two values comes first: numbers by size, texts by their letters, and by the numbers in them. */
function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : ORDER.compare(String(a), String(b));
}

/** The unit in which the largest of some sizes reads well: its name, and its bytes. */
function byteUnit(largest) {
  return largest >= 2 ** 30 ? { name: "GiB", bytes: 2 ** 30 } : { name: "MiB", bytes: 2 ** 20 };
}

/** A size in bytes, such as 7.1 MiB. */
function size(bytes) {
  if (typeof bytes !== "number") return number(bytes);
  const unit = byteUnit(Math.abs(bytes));
  return `${number(bytes / unit.bytes, 1)} ${unit.name}`;
}

/** A time in seconds, in milliseconds. */
function milliseconds(seconds) {
  return typeof seconds === "number" ? `${number(1e3 * seconds, 1)} ms` : number(seconds);
}

/** A fact of a row as its name says it is: names carry their units. */
function fact(name, value) {
  if (value === true) return "yes";
  if (value === false) return "no";
  if (typeof value !== "number") return String(value);
  if (name.includes("bytes")) return Math.abs(value) < 2 ** 10 ? `${number(value)} bytes` : `${size(value)} (${number(value)} bytes)`;
  if (name.includes("seconds") && !name.includes("per_second")) return value < 1 ? milliseconds(value) : `${number(value, 2)} s`;
  if (name.includes("flops_per_second")) return `${number(value / 1e9, 1)} GFLOP/s`;
  return Number.isInteger(value) ? number(value) : FIVE_DIGITS.format(value);
}

/** The name of a case: strategy, mesh, options and microbatches. */
function caseName(data, row) {
  const parts = ["strategy", "mesh", "options"].map((name) => get(data, name, row));
  return parts.filter(Boolean).join(" ");
}

/** A text for Plotly, which reads tags: it shows what stands there, but for the end of what is very long. */
function plain(text) {
  const short = text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
  return short.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** A new element with properties and children; texts become text, never markup. */
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
