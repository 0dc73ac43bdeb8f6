"use strict";
// Access to the columns of cases, and formatting of their values. Apart from `element`, nothing here touches the page.

const LONGEST = 60; // most characters of a text in a chart

/** The value of a column in one row; a column that is the same in all rows is stored as that one value. */
function get(data, name, row) {
  if (!Object.hasOwn(data.columns, name)) return null;
  const column = data.columns[name];
  return Array.isArray(column) ? column[row] : column;
}

/** The indices of all rows. */
function allRows(data) {
  return Array.from({ length: data.count }, (_, row) => row);
}

/** The distinct known values of a column, sorted. */
function distinct(data, name, rows = allRows(data)) {
  const values = [...new Set(rows.map((row) => get(data, name, row)))].filter((value) => value !== null);
  return values.sort(compare);
}

// Formatters are made once: one for each number would take longer than everything else on the page.
const FORMATS = [0, 1, 2].map((digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const FIVE_DIGITS = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 5 });
const ORDER = new Intl.Collator("en-US", { numeric: true });

/** A number with thousands separators and `digits` decimals, such as 12,345.6; "" for null, other values as text. */
function number(value, digits = 0) {
  if (typeof value !== "number") return value === null ? "" : String(value);
  return FORMATS[digits].format(value);
}

/** Compare two values for sorting: numbers by size, texts alphabetically with the numbers in them by size. */
function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : ORDER.compare(String(a), String(b));
}

/** The unit for sizes up to `largest` bytes: its name, and its number of bytes. */
function byteUnit(largest) {
  return largest >= 2 ** 30 ? { name: "GiB", bytes: 2 ** 30 } : { name: "MiB", bytes: 2 ** 20 };
}

/** A size in bytes, such as 7.1 MiB. */
function size(bytes) {
  if (typeof bytes !== "number") return number(bytes);
  const unit = byteUnit(Math.abs(bytes));
  return `${number(bytes / unit.bytes, 1)} ${unit.name}`;
}

/** A time in seconds, formatted in milliseconds. */
function milliseconds(seconds) {
  return typeof seconds === "number" ? `${number(1e3 * seconds, 1)} ms` : number(seconds);
}

/** A fact of a row with its unit, which is derived from the name of its column. */
function fact(name, value) {
  if (value === true) return "yes";
  if (value === false) return "no";
  if (typeof value !== "number") return String(value);
  if (name.includes("bytes")) return Math.abs(value) < 2 ** 10 ? `${number(value)} bytes` : `${size(value)} (${number(value)} bytes)`;
  if (name.includes("seconds") && !name.includes("per_second")) return value < 1 ? milliseconds(value) : `${number(value, 2)} s`;
  if (name.includes("flops_per_second")) return `${number(value / 1e9, 1)} GFLOP/s`;
  return Number.isInteger(value) ? number(value) : FIVE_DIGITS.format(value);
}

/** The name of a case: strategy, mesh and options. */
function caseName(data, row) {
  const parts = ["strategy", "mesh", "options"].map((name) => get(data, name, row));
  return parts.filter(Boolean).join(" ");
}

/** A text for a chart, cut off after `most` characters. */
function short(text, most = LONGEST) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** A new element with properties and children; strings become text nodes, never markup. */
function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
