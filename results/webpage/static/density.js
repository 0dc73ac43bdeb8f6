"use strict";
// The chart of a search: the density of candidates by memory and throughput, the frontier, the compiled candidates.

const SPEED = "tokens_per_second_per_device";
const BYTES = "needed_bytes";
const LABEL_HEIGHT = 17; // pixels

/** The chart for `draw`. Labels at its right name the compiled candidates, by rank if the page is narrow. */
function densityChart(data) {
  const unit = byteUnit(data.capacity_bytes);
  const rows = allRows(data);
  const { bytes, speed, count } = data.density;
  const frontier = rows.filter((row) => get(data, "frontier", row)).sort((a, b) => get(data, `formula.${BYTES}`, a) - get(data, `formula.${BYTES}`, b));
  const compiled = rows.filter((row) => known(get(data, `compiled.${BYTES}`, row)) && known(get(data, `formula.${SPEED}`, row)));
  const most = speed.at(-1);
  const base = layout({});
  const height = NARROW.matches ? 420 : 520;
  const right = NARROW.matches ? 34 : 16 + 6.4 * Math.max(10, ...compiled.map((row) => labelOf(data, row).length));
  const named = labels(data, compiled, height - base.margin.t - base.margin.b, most);
  return {
    traces: [heat(bytes, speed, count, unit), line(data, frontier, unit), points(data, compiled, unit)],
    layout: layout({
      height, margin: { ...base.margin, r: right },
      xaxis: { title: `memory per device, ${unit.name}`, range: [0, data.largest_bytes / unit.bytes], showgrid: false },
      yaxis: { range: [0, most], tickformat: ",", showgrid: false },
      shapes: [capacityLine(data, unit), ...named.map((label) => leader(data, label, unit))],
      annotations: [above("tokens/s per device, at most"), capacityLabel(data, unit), ...named.map((label) => nameOf(data, label))],
    }),
    caption: densityCaption(data, compiled),
  };
}

function densityCaption(data, compiled) {
  const hidden = NARROW.matches ? " Numbers at the right are ranks in the table." : "";
  const marks = `Marks show the memory and throughput of the ${compiled.length} compiled candidates.${hidden}`;
  return "Darker cells hold more candidates, by formula. The line is the frontier: no other candidate that fits is both smaller " +
    "and faster than one on it. The dashed line is the memory of a device. " + (compiled.length ? marks : "No candidate was compiled.");
}

/** The density as a heat map of log counts; empty cells show the background of the page. */
function heat(bytes, speed, count, unit) {
  const text = count.map((cells) => cells.map((cell) => `${number(cell)} ${cell === 1 ? "candidate" : "candidates"}`));
  return {
    type: "heatmap", x: bytes.map((edge) => edge / unit.bytes), y: speed, showscale: false, text, hoverongaps: false,
    z: count.map((cells) => cells.map((cell) => (cell ? Math.log1p(cell) : null))),
    colorscale: [[0, colour("--scale-low")], [1, colour("--scale-high")]],
    hovertemplate: `%{text}<br>about %{x:.1f} ${unit.name}, %{y:,.0f} tokens/s<extra></extra>`,
  };
}

function line(data, rows, unit) {
  return {
    type: "scatter", mode: "lines+markers", x: rows.map((row) => get(data, `formula.${BYTES}`, row) / unit.bytes),
    y: rows.map((row) => get(data, `formula.${SPEED}`, row)), customdata: rows,
    line: { shape: "hv", color: colour("--part-3"), width: 2 }, marker: { size: 5, color: colour("--part-3") },
    text: rows.map((row) => candidateText(data, row, "formula")), hovertemplate: "%{text}<br>on the frontier<extra></extra>",
  };
}

/** The compiled throughput. A program that the compiler rejected has memory only and keeps the formula's throughput. */
function compiledSpeed(data, row) {
  return get(data, `compiled.${SPEED}`, row) ?? get(data, `formula.${SPEED}`, row);
}

function points(data, rows, unit) {
  const looks = rows.map((row) => lookOf(get(data, "strategy", row)));
  return {
    type: "scatter", mode: "markers", x: rows.map((row) => get(data, `compiled.${BYTES}`, row) / unit.bytes),
    y: rows.map((row) => compiledSpeed(data, row)), customdata: rows, cliponaxis: false,
    marker: { size: 11, color: looks.map((look) => colour(look.colour)), symbol: looks.map((look) => look.symbol), line: { color: colour("--ground"), width: 1.5 } },
    text: rows.map((row) => candidateText(data, row, "compiled")), hovertemplate: "%{text}<extra></extra>",
  };
}

function candidateText(data, row, source) {
  return `<b>${plain(caseName(data, row))}</b><br>${source}: ${number(get(data, `${source}.${SPEED}`, row) ?? "no throughput")} tokens/s per device, ` +
    size(get(data, `${source}.${BYTES}`, row));
}

function labelOf(data, row) {
  return NARROW.matches ? number(get(data, "rank", row)) : `${get(data, "strategy", row)} ${get(data, "mesh", row)}`;
}

/** Places the labels of compiled candidates one below the other, as near to the heights of their marks as they fit. */
function labels(data, rows, plotHeight, most) {
  const pixel = (row) => plotHeight * (1 - Math.min(1, compiledSpeed(data, row) / most));
  let free = 0; // the next height at which a label fits
  const wanted = [...rows].sort((a, b) => pixel(a) - pixel(b)).map((row) => {
    const at = Math.max(free, pixel(row));
    free = at + LABEL_HEIGHT;
    return { row, at };
  });
  const shift = Math.max(0, free - plotHeight); // labels that would end below the chart move all labels up
  return wanted.map(({ row, at }, place) => ({ row, y: most * (1 - Math.max(place * LABEL_HEIGHT, at - shift) / plotHeight) }));
}

function nameOf(data, { row, y }) {
  return {
    text: plain(labelOf(data, row)), xref: "paper", x: 1, xanchor: "left", xshift: 4, yref: "y", y, yanchor: "middle", showarrow: false,
    font: { size: 12 },
  };
}

/** A line from a mark to its label. */
function leader(data, { row, y }, unit) {
  return {
    type: "line", x0: get(data, `compiled.${BYTES}`, row) / unit.bytes, y0: compiledSpeed(data, row), x1: data.largest_bytes / unit.bytes, y1: y,
    line: { color: colour("--muted"), width: 0.75 },
  };
}

function capacityLine(data, unit) {
  const x = data.capacity_bytes / unit.bytes;
  return { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: colour("--ink"), dash: "dash", width: 1.5 } };
}

function capacityLabel(data, unit) {
  return {
    text: size(data.capacity_bytes), x: data.capacity_bytes / unit.bytes, y: 1, yref: "paper",
    yanchor: "bottom", showarrow: false, font: { size: 12, color: colour("--muted") },
  };
}
