"use strict";
// Draws charts as SVG. A chart is {height, margin, x, y, marks, caption}, or {missing} with the sentence that says why
// there is none. An axis is {low, high, ticks: [[value, label]], title, log}. Marks are drawn in their order.

const PAPER_WIDTH = 680; // pixels that fit between the margins of A4 and of letter paper
const NARROW = matchMedia("(max-width: 40rem)");
const LETTER = 7.4; // pixels of a letter of a chart, at most on average

/** A strategy's colour and path; both are the same in every chart. */
function lookOf(strategy) {
  return DATA.looks[strategy];
}

/** A new SVG element with attributes and children. */
function shape(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** The symbol of a strategy as a small SVG element. */
function symbol(strategy) {
  const { colour, path } = lookOf(strategy);
  return shape("svg", { class: "symbol", viewBox: "0 0 12 12", "aria-hidden": "true" }, shape("path", { d: path, fill: colour }));
}

/** An axis from zero with round ticks; `write` makes their labels. */
function fromZero(largest, title, write = (value) => number(value), count = 6) {
  const rough = Math.max(largest, 1e-9) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const ticks = Array.from({ length: Math.floor(largest / step) + 1 }, (_, place) => [place * step, write(place * step)]);
  return { low: 0, high: largest, ticks, title };
}

/** A logarithmic axis with a tick at each value that occurs. */
function doubling(values, title) {
  return { low: Math.min(...values) / 1.3, high: Math.max(...values) * 1.3, ticks: values.map((value) => [value, number(value)]), title, log: true };
}

/** A function from the values of an axis to pixels. */
function scaleOf({ low, high, log }, from, to) {
  const of = log ? Math.log : (value) => value;
  return (value) => from + ((of(value) - of(low)) / (of(high) - of(low))) * (to - from);
}

/** Draw a chart, or the sentence that says why there is none. A click on a mark calls `open(row)`. */
function draw(figure, chart, open) {
  const place = figure.querySelector(".chart");
  figure.querySelector("figcaption").textContent = chart.caption ?? "";
  place.classList.toggle("empty", Boolean(chart.missing));
  if (chart.missing) {
    place.textContent = chart.missing;
    return;
  }
  const width = document.documentElement.classList.contains("paper") ? PAPER_WIDTH : place.clientWidth;
  const { height, margin } = chart;
  const x = scaleOf(chart.x, margin.left, width - margin.right);
  const y = scaleOf(chart.y, height - margin.bottom, margin.top);
  const label = `${figure.querySelector("h2, h3").textContent}. ${chart.caption} The table has the same numbers.`;
  const tip = element("div", { className: "tip", hidden: true });
  const picture = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ...axesOf(chart, x, y, width), ...chart.marks.map((mark) => markOf(mark, x, y, tip, open)));
  place.replaceChildren(picture, tip);
}

/** The grid, the labels of ticks and the titles of both axes. */
function axesOf({ x, y, margin, height }, acrossOf, upOf, width) {
  const [left, right, bottom] = [margin.left, width - margin.right, height - margin.bottom];
  const text = (at, up, words, anchor, kind) => shape("text", { x: at, y: up, "text-anchor": anchor, class: kind }, words);
  const columns = x.ticks.flatMap(([value, words]) => [
    shape("line", { class: "grid", x1: acrossOf(value), x2: acrossOf(value), y1: margin.top, y2: bottom }),
    text(acrossOf(value), bottom + 18, words, "middle", "xtick"),
  ]);
  const rows = y.ticks.flatMap(([value, words]) => [
    shape("line", { class: "grid", x1: left, x2: right, y1: upOf(value), y2: upOf(value) }),
    y.above ? text(left, upOf(value) - 12, words, "start", "ytick") : text(left - 8, upOf(value) + 4, words, "end", "ytick"),
  ]);
  return [...columns, ...rows, text((left + right) / 2, bottom + 38, x.title, "middle", "title"), text(8, 16, y.title ?? "", "start", "title")];
}

/** The element of a mark. Its text is shown while the pointer is on it. */
function markOf(mark, x, y, tip, open) {
  const made = MARKS[mark.kind](mark, x, y);
  if (!mark.text) return made;
  made.classList.add("mark");
  made.addEventListener("pointerenter", () => {
    tip.replaceChildren(...mark.text.filter(Boolean).map((line) => element("p", { textContent: line })));
    tip.hidden = false;
    const [box, whole] = [made.getBoundingClientRect(), tip.parentElement.getBoundingClientRect()];
    tip.style.left = `${Math.max(0, Math.min(box.left - whole.left + box.width / 2 + 10, whole.width - tip.offsetWidth))}px`;
    tip.style.top = `${Math.max(0, box.top - whole.top - tip.offsetHeight - 6)}px`;
  });
  made.addEventListener("pointerleave", () => { tip.hidden = true; });
  made.addEventListener("click", () => open(mark.row));
  return made;
}

const MARKS = {
  line: ({ points, colour, dash }, x, y) => shape("polyline", {
    points: points.map(([at, up]) => `${x(at)},${y(up)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 1.5, "stroke-dasharray": dash ?? "",
  }),
  interval: ({ at, low, high, colour }, x, y) => shape("path", {
    d: `M${x(at)} ${y(low)}V${y(high)}m-3.5 0h7M${x(at) - 3.5} ${y(low)}h7`, fill: "none", stroke: colour, "stroke-width": 1.6,
  }),
  point: ({ at, up, path, colour, pale, hollow }, x, y) => shape("path", {
    d: path, transform: `translate(${x(at) - 6} ${y(up) - 6})`, opacity: pale ? 0.4 : 1, fill: hollow ? "var(--ground)" : colour,
    stroke: hollow ? colour : "var(--ground)", "stroke-width": hollow ? 1.5 : 0.6,
  }),
  bar: ({ from, to, up, thick, colour }, x, y) => shape("rect", {
    x: Math.min(x(from), x(to)), width: Math.abs(x(to) - x(from)), y: y(up) - thick / 2, height: thick, fill: colour,
  }),
  tick: ({ at, up, tall, colour }, x, y) => shape("path", { d: `M${x(at)} ${y(up) - tall / 2}v${tall}`, stroke: colour ?? "var(--ink)", "stroke-width": 2 }),
};

/** The vertical axis of named lines, the first on top: names are beside the lines, or above them on a narrow page. */
function linesAxis(names) {
  return { low: names.length - 0.5, high: NARROW.matches ? -0.9 : -0.5, ticks: names.map((name, place) => [place, short(name, NARROW.matches ? 46 : LONGEST)]), above: NARROW.matches };
}

/** Height and margins of a chart of named lines. */
function linesLayout(names) {
  const narrow = NARROW.matches;
  const longest = Math.max(...names.map((name) => short(name).length));
  return {
    height: 80 + names.length * (narrow ? 44 : 26),
    margin: { left: narrow ? 12 : 16 + LETTER * longest, right: 16, top: narrow ? 16 : 8, bottom: 48 },
  };
}

/** Show the legend of a stacked chart; `marker` labels the tick across each bar. */
function showLegend(figure, parts, marker) {
  const entry = (label, swatch) => element("span", {}, swatch, label);
  const swatches = parts.map((part) => {
    const swatch = element("i");
    swatch.style.background = part.colour;
    return entry(part.label, swatch);
  });
  figure.querySelector(".legend").replaceChildren(...swatches, entry(marker, element("i", { className: "tick" })));
}
