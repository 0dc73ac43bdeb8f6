"use strict";
// Shared by all charts: the colours and symbols of strategies, the theme of the page, and drawing with Plotly.

/** Symbols, by Plotly's names, as paths in a square of 12 units, in the order of the markers of palette.py. */
const SYMBOLS = {
  circle: "M6 1.5a4.5 4.5 0 1 0 .01 0z",
  square: "M2 2h8v8H2z",
  diamond: "M6 .6 11.4 6 6 11.4.6 6z",
  "triangle-up": "M6 1.2 11.2 10.2H.8z",
  "triangle-down": "M6 10.8 11.2 1.8H.8z",
  cross: "M4.2 1h3.6v3.2H11v3.6H7.8V11H4.2V7.8H1V4.2h3.2z",
  x: "M3 1l3 3 3-3 2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z",
  "triangle-left": "M1.2 6 10.2.8v10.4z",
  "triangle-right": "M10.8 6 1.8.8v10.4z",
  pentagon: "M6 .8l5.2 3.8-2 6.2H2.8l-2-6.2z",
  hexagon: "M6 .7l4.6 2.6v5.4L6 11.3 1.4 8.7V3.3z",
  star: "M6 .4l1.6 3.6 4 .4-3 2.6.9 3.9L6 8.9l-3.5 2 .9-3.9-3-2.6 4-.4z",
};
const COLOURS = 11;
const PAPER_WIDTH = 680; // pixels that fit between the margins of A4 and of letter paper
const NARROW = matchMedia("(max-width: 40rem)");
const TOUCH = matchMedia("(pointer: coarse)");
const DARK = matchMedia("(prefers-color-scheme: dark)");

/** A strategy's colour, as a variable of the style sheet, and its symbol; both are the same in every chart. */
function lookOf(strategy) {
  const place = DATA.strategies.indexOf(strategy);
  const symbols = Object.keys(SYMBOLS);
  return { colour: `--mark-${place % COLOURS}`, symbol: symbols[place % symbols.length] };
}

/** The symbol of a strategy as a small SVG element. */
function symbol(strategy) {
  const look = lookOf(strategy);
  const make = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const picture = make("svg", { class: "symbol", viewBox: "0 0 12 12", "aria-hidden": "true" });
  picture.append(make("path", { d: SYMBOLS[look.symbol], style: `fill: var(${look.colour})` }));
  return picture;
}

/** The value of a colour variable of the style sheet in the current theme. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Plotly's layout in the theme of the page; `changes` override it, axes property by property. */
function layout(changes) {
  const axis = {
    gridcolor: colour("--grid"), linecolor: colour("--line"), zerolinecolor: colour("--line"), automargin: false,
    tickfont: { color: colour("--muted") }, title: { font: { color: colour("--muted"), size: 13 } }, fixedrange: TOUCH.matches,
  };
  const { xaxis, yaxis, ...others } = changes;
  const merged = (own) => ({ ...axis, ...own, title: { ...axis.title, text: own?.title ?? "" } });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    dragmode: TOUCH.matches ? false : "zoom",
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--ink") },
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--muted"), align: "left", font: { color: colour("--ink"), size: 13 } },
    margin: { l: 56, r: 12, t: 30, b: 52 },
    xaxis: merged(xaxis), yaxis: merged(yaxis), ...others,
  };
}

/** The title of the vertical axis as a horizontal annotation above it. */
function above(text) {
  return {
    text, x: 0, xref: "paper", xanchor: "left", xshift: -50, y: 1, yref: "paper", yanchor: "bottom", yshift: 8, showarrow: false,
    font: { color: colour("--muted"), size: 13 },
  };
}

/** Draw a chart, or the sentence `chart.missing` if there is nothing to draw. A click on a point calls `open(row)`. */
async function draw(figure, chart, open) {
  const place = figure.querySelector(".chart");
  figure.querySelector("figcaption").textContent = chart.caption ?? "";
  place.classList.toggle("empty", Boolean(chart.missing));
  if (chart.missing) {
    globalThis.Plotly?.purge(place);
    place.removeAttribute("role");
    place.style.height = "";
    place.textContent = chart.missing;
    return;
  }
  if (!place.querySelector(".plot-container")) place.textContent = "";
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", `${figure.querySelector("h2, h3").textContent}. ${chart.caption} The table has the same numbers.`);
  place.style.height = `${chart.layout.height}px`;
  const width = document.documentElement.classList.contains("paper") ? PAPER_WIDTH : undefined;
  await Plotly.react(place, chart.traces, { ...chart.layout, width }, { displayModeBar: false, responsive: true });
  place.removeAllListeners?.("plotly_click");
  place.on?.("plotly_click", (event) => {
    const row = event.points[0].customdata;
    if (typeof row === "number") open(row);
  });
}

/** A logarithmic axis with a tick at each value that occurs. */
function doubling(values, title) {
  const ends = [Math.min(...values) / 1.3, Math.max(...values) * 1.3].map(Math.log10);
  return { type: "log", range: ends, tickvals: values, ticktext: values.map((value) => number(value)), title };
}

/** The 95% intervals of points as Plotly's error bars. */
function errorBars(data, rows, name) {
  const off = (end, sign) => rows.map((row) => {
    const value = get(data, `page.${name}_${end}`, row);
    return value === null ? 0 : sign * (value - get(data, name, row));
  });
  return { type: "data", symmetric: false, array: off("high", 1), arrayminus: off("low", -1), thickness: 1.2, width: 3 };
}

/** Show the legend of a stacked chart; `marker` labels the tick across each bar. */
function showLegend(figure, parts, marker) {
  const entry = (label, swatch) => element("span", {}, swatch, label);
  const swatches = parts.map((part) => {
    const swatch = element("i");
    swatch.style.background = `var(${part.colour})`;
    return entry(part.label, swatch);
  });
  figure.querySelector(".legend").replaceChildren(...swatches, ...(marker ? [entry(marker, element("i", { className: "tick" }))] : []));
}
