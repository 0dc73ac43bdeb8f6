"use strict";
// A table that can be sorted and filtered. A column is {name, label} and optionally: `value(row)`, the value to sort by;
// `write(value, row)`, its text; `interval(row)`, a small text below it; `numeric`; `smallFirst`, whether numbers sort
// from the smallest first; `long`, for long texts; and `bad(row)`, whether to highlight a cell as a failure.

const FIRST = 100; // rows built at first, because the browser takes long to lay out a thousand

/** A table of the columns that have a value in some row; a click on the name of a strategy calls `open(row)`. */
class SortableTable {
  constructor(data, columns, caption, open) {
    this.data = data;
    this.open = open;
    this.order = allRows(data);
    this.shown = new Set(this.order);
    this.most = FIRST;
    this.lines = new Map(); // row index -> the line built for it when it was first shown
    this.columns = columns.map((column) => ({ value: (row) => get(data, column.name, row), ...column }));
    this.columns = this.columns.filter((column) => allRows(data).some((row) => known(column.value(row))));
    this.headers = this.columns.map((column, place) => this.header(column, place));
    this.body = element("tbody");
    const head = element("thead", {}, element("tr", {}, ...this.headers));
    this.element = element("table", {}, element("caption", { className: "unseen", textContent: caption }), head, this.body);
    this.more = element("button", { type: "button", className: "more" });
    this.more.addEventListener("click", () => this.showAll());
  }

  /** Put the visible rows into the page, in the order of the sort. */
  render() {
    const rows = this.order.filter((row) => this.shown.has(row));
    this.body.replaceChildren(...rows.slice(0, this.most).map((row) => this.line(row)));
    this.more.hidden = rows.length <= this.most;
    this.more.textContent = `Show all ${number(rows.length)} rows`;
  }

  /** Show these rows only. */
  show(rows) {
    this.shown = new Set(rows);
    this.render();
  }

  /** Show all rows that pass the filter, however many there are. */
  showAll() {
    this.most = Infinity;
    this.render();
  }

  /** A header is a button: the first click sorts numbers from the largest and texts from A, the next one reverses it. */
  header(column, place) {
    const button = element("button", { type: "button", textContent: column.label });
    const cell = element("th", { scope: "col", className: column.numeric ? "number" : "" }, button);
    button.addEventListener("click", () => {
      const first = column.numeric && !column.smallFirst ? "descending" : "ascending";
      const other = first === "descending" ? "ascending" : "descending";
      this.sort(place, cell.ariaSort === first ? other : first);
    });
    return cell;
  }

  /** The line of a row, built when it is first shown. */
  line(row) {
    if (!this.lines.has(row)) this.lines.set(row, element("tr", {}, ...this.cells(row)));
    return this.lines.get(row);
  }

  cells(row) {
    return this.columns.map((column, place) => {
      const text = column.write ? column.write(column.value(row), row) : number(column.value(row));
      if (place === 0) return element("th", { scope: "row" }, this.opener(row, text));
      const cell = element("td", { textContent: text, className: [column.numeric && "number", column.long && "long"].filter(Boolean).join(" ") });
      const interval = column.interval?.(row);
      if (interval) cell.append(element("span", { className: "interval", textContent: interval }));
      if (column.bad?.(row)) cell.classList.add("bad");
      return cell;
    });
  }

  /** The button that opens the facts of a case: the name of its strategy, with its symbol. */
  opener(row, text) {
    const button = element("button", { type: "button" }, symbol(text), text);
    button.setAttribute("aria-label", `Facts of ${caseName(this.data, row)}`);
    button.addEventListener("click", () => this.open(row));
    return button;
  }

  /** Sort by a column; rows where its value is unknown come last in both directions. */
  sort(place, direction) {
    this.headers.forEach((cell) => cell.removeAttribute("aria-sort"));
    this.headers[place].ariaSort = direction;
    const { value } = this.columns[place];
    const sign = direction === "ascending" ? 1 : -1;
    this.order.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (!known(x) || !known(y)) return known(y) - known(x);
      return sign * compare(x, y);
    });
    this.render();
  }
}

/** Whether a value is known. */
function known(value) {
  return value !== null && value !== undefined && value !== "";
}

/** The interval of a value, such as 5,200–5,400; empty if it is unknown. */
function interval(low, high, digits = 0) {
  return known(low) && known(high) ? `${number(low, digits)}–${number(high, digits)}` : "";
}

/** The columns of the table of cases. */
function caseColumns(data) {
  const seconds = (name) => (row) => scaled(get(data, name, row), 1e3);
  const between = (name, factor, digits) => (row) =>
    interval(...["low", "high"].map((end) => scaled(get(data, `${name}_${end}`, row), factor)), digits);
  const unit = byteUnit(Math.max(0, ...distinct(data, "memory.total_bytes").filter(Number.isFinite)));
  const bytes = (name, label) => ({
    name, label: `${label}, ${unit.name}`, numeric: true, smallFirst: true,
    value: (row) => scaled(get(data, name, row), 1 / unit.bytes), write: (value) => number(value, unit.name === "GiB" ? 2 : 1),
  });
  return [
    { name: "strategy", label: "Strategy" },
    { name: "mesh", label: "Mesh" },
    { name: "options", label: "Options" },
    { name: "devices", label: "Devices", numeric: true },
    { name: "global_batch_sequences", label: "Batch", numeric: true },
    { name: "microbatches", label: "Microbatches", numeric: true },
    { name: "tokens_per_second", label: "Tokens/s", numeric: true, interval: between("page.throughput", 1, 0) },
    { name: "step_seconds_median", label: "Step, ms", numeric: true, smallFirst: true, value: seconds("step_seconds_median"),
      write: (value) => number(value, 1), interval: between("step_seconds", 1e3, 1) },
    { name: "relative_to_single", label: "Step / single", numeric: true, smallFirst: true, write: (value) => number(value, 2),
      interval: between("relative_to_single", 1, 2) },
    { name: "roofline.step_seconds", label: "Roofline, ms", numeric: true, smallFirst: true,
      value: seconds("roofline.step_seconds"), write: (value) => number(value, 1) },
    bytes("memory.total_bytes", "Memory"),
    bytes("page.predicted_total_bytes", "By formula"),
    bytes("compiled.sent_bytes", "Sent"),
    bytes("predicted.sent_bytes", "By formula"),
    { name: "noisy", label: "Noise", value: (row) => (get(data, "noisy", row) === true ? "noisy" : "") },
    { name: "page.check", label: "Check", long: true, bad: (row) => get(data, "page.bad", row) === true },
  ];
}

/** The columns of the table of candidates. */
function candidateColumns(data) {
  const unit = byteUnit(data.capacity_bytes);
  const bytes = (name, label) => ({
    name, label: `${label}, ${unit.name}`, numeric: true, smallFirst: true,
    value: (row) => scaled(get(data, name, row), 1 / unit.bytes), write: (value) => number(value, 1),
  });
  const time = (name, label) => ({ name, label: `${label}, ms`, numeric: true, smallFirst: true, write: (value) => number(value, 1) });
  return [
    { name: "strategy", label: "Strategy" },
    { name: "mesh", label: "Mesh" },
    { name: "rank", label: "Rank", numeric: true, smallFirst: true },
    { name: "microbatches", label: "Microbatches", numeric: true },
    { name: "remat", label: "Remat" },
    { name: "options", label: "Options" },
    time("page.least_ms", "Roofline"),
    time("page.predicted_ms", "Predicted"),
    time("page.compiled_ms", "Compiled"),
    time("page.measured_ms", "Measured"),
    bytes("needed_bytes", "Memory"),
    bytes("compiled.needed_bytes", "Compiled: memory"),
    bytes("sent_bytes", "Sent"),
    { name: "page.waits_for", label: "Bottleneck" },
    { name: "compiled.reason", label: "Compiler", long: true },
  ];
}

/** A number times a factor; null if it is unknown. */
function scaled(value, factor) {
  return typeof value === "number" ? value * factor : null;
}
