"use strict";
// The charts of runs. Each function takes the rows that are shown and returns a chart for `draw`.

const MEMORY = [
  { label: "parameters", name: "memory.parameter_bytes", colour: "--part-0" },
  { label: "optimizer state", name: "memory.optimizer_bytes", colour: "--part-1" },
  { label: "other arguments (batch)", name: "other_argument_bytes", colour: "--part-2" },
  { label: "temporaries (gradients, activations)", name: "memory.temp_bytes", colour: "--part-3" },
  { label: "other outputs", name: "new_output_bytes", colour: "--part-5" },
].map((part) => ({ ...part, name: part.name.includes(".") ? part.name : `page.${part.name}` }));
const TIME = [
  { label: "compute", name: "attribution.compute_seconds", colour: "--part-0" },
  { label: "recomputation", name: "attribution.recomputation_seconds", colour: "--part-1" },
  { label: "optimizer", name: "attribution.optimizer_seconds", colour: "--part-2" },
  { label: "exposed communication", name: "attribution.exposed_communication_seconds", colour: "--part-3" },
  { label: "schedule bubble", name: "attribution.schedule_bubble_seconds", colour: "--part-4" },
  { label: "lockstep bubble", name: "attribution.lockstep_bubble_seconds", colour: "--part-5" },
  { label: "dispatch", name: "attribution.dispatch_seconds", colour: "--part-6" },
];
const MOST_BARS = 40;
const DODGE = 0.06; // octaves between the points of two strategies, so that their intervals do not overlap

/** The most common value of a column, the largest if several are; the static figures choose their batch the same way. */
function commonest(data, name, rows) {
  const counted = new Map();
  for (const row of rows) counted.set(get(data, name, row), (counted.get(get(data, name, row)) ?? 0) + 1);
  return [...counted].sort(([a, m], [b, n]) => n - m || b - a)[0]?.[0];
}

/** Throughput with 95% intervals: a line through the fastest mesh of each strategy; the other meshes are pale. */
function curves(data, shown, across) {
  const counted = shown.filter((row) => get(data, "page.counts", row));
  if (!counted.length) return { missing: "None of the selected cases was both timed and equal to one device." };
  const fixed = across === "batch" ? "devices" : "global_batch_sequences";
  const value = across === "batch" ? Math.max(...distinct(data, fixed, counted)) : commonest(data, fixed, counted);
  const rows = counted.filter((row) => get(data, fixed, row) === value || (across === "batch" && get(data, "strategy", row) === "single"));
  const axes = { devices: "devices", batch: "global_batch_sequences", memory: "memory.total_bytes" };
  const unit = byteUnit(Math.max(...rows.map((row) => get(data, "memory.total_bytes", row))));
  const at = (row) => get(data, axes[across], row) / (across === "memory" ? unit.bytes : 1);
  const placed = rows.filter((row) => known(get(data, axes[across], row)));
  if (!placed.length) return { missing: "The memory of these cases is unknown." };
  const xaxis = across === "memory"
    ? { title: `memory per device, ${unit.name}`, rangemode: "tozero" }
    : doubling(distinctPlaces(placed, at), across === "devices" ? "devices" : "global batch, sequences");
  const virtual = placed.every((row) => get(data, "virtual_devices", row));
  const dodged = across === "memory" ? at : apart(data, placed, at);
  const traces = data.strategies.flatMap((strategy) => {
    const own = placed.filter((row) => get(data, "strategy", row) === strategy).sort((a, b) => at(a) - at(b));
    return strategyTraces(data, strategy, own, dodged, across);
  });
  return {
    traces: [...(across === "devices" ? idealTrace(data, placed, at) : []), ...traces],
    layout: layout({
      height: NARROW.matches ? 380 : 460, xaxis,
      yaxis: { rangemode: "tozero", ...(virtual ? {} : { type: "log" }), tickformat: "," }, annotations: [above("tokens/s")],
    }),
    caption: curvesCaption(data, across, value, virtual, placed),
  };
}

/** Positions along the axis, where points of several strategies at one position move apart so that intervals show. */
function apart(data, rows, at) {
  const sharing = new Map(distinctPlaces(rows, at).map((place) => [place, distinct(data, "strategy", rows.filter((row) => at(row) === place))]));
  return (row) => {
    const names = data.strategies.filter((name) => sharing.get(at(row)).includes(name));
    return at(row) * 2 ** (DODGE * (names.indexOf(get(data, "strategy", row)) - (names.length - 1) / 2));
  };
}

function distinctPlaces(rows, at) {
  return [...new Set(rows.map(at))].sort((a, b) => a - b);
}

function curvesCaption(data, across, value, virtual, rows) {
  const where = across === "batch" ? `${number(value)} devices` : `Global batch ${number(value)}`;
  const ideal = virtual ? "the throughput of one device, because virtual devices share one machine." : "a linear speed-up.";
  const noisy = rows.some((row) => get(data, "noisy", row)) ? " This run is noisy: see the summary." : "";
  return `${where}; change it with the filter above. Bars are 95% intervals. Lines connect the fastest mesh of each ` +
    `strategy; other meshes are pale.${across === "devices" ? ` The dashed line is the ideal: ${ideal}` : ""}${noisy}`;
}

function strategyTraces(data, strategy, rows, x, across) {
  const look = lookOf(strategy);
  const trace = (points, others) => ({
    type: "scatter", x: points.map(x), y: points.map((row) => get(data, "tokens_per_second", row)), customdata: points,
    text: points.map((row) => pointText(data, row)), hovertemplate: "%{text}<extra></extra>",
    marker: { color: colour(look.colour), symbol: look.symbol, size: 9 }, ...others,
  });
  const best = rows.filter((row) => get(data, "page.best", row));
  const pale = rows.filter((row) => !get(data, "page.best", row));
  const bars = { ...errorBars(data, best, "tokens_per_second"), color: colour(look.colour) };
  const line = { color: colour(look.colour), width: 1.5 };
  return [trace(pale, { mode: "markers", opacity: 0.4 }), trace(best, { mode: across === "memory" ? "markers" : "lines+markers", error_y: bars, line })];
}

function pointText(data, row) {
  const ends = interval(get(data, "page.tokens_per_second_low", row), get(data, "page.tokens_per_second_high", row));
  const lines = [
    `<b>${plain(caseName(data, row))}</b>`,
    `${number(get(data, "tokens_per_second", row))} tokens/s${ends && ` (95%: ${ends})`}`,
    `batch ${number(get(data, "global_batch_sequences", row))}, ${number(get(data, "microbatches", row))} microbatches`,
    known(get(data, "memory.total_bytes", row)) ? `${size(get(data, "memory.total_bytes", row))} per device` : "",
  ];
  return lines.filter(Boolean).join("<br>");
}

function idealTrace(data, rows, at) {
  const ideal = new Map(rows.map((row) => [at(row), get(data, "page.ideal_tokens_per_second", row)]));
  const points = [...ideal].filter(([, value]) => value !== null).sort(([a], [b]) => a - b);
  return [{
    type: "scatter", mode: "lines", x: points.map(([x]) => x), y: points.map(([, y]) => y), hoverinfo: "skip",
    line: { color: colour("--muted"), dash: "dash", width: 1.5 },
  }];
}

/** Memory per device by its parts: one bar for each case, the smallest first. */
function memory(data, shown) {
  const total = (row) => get(data, "memory.total_bytes", row);
  const unit = byteUnit(Math.max(0, ...shown.map(total)));
  return stacked(data, shown.filter((row) => known(total(row)) && get(data, "status", row) === "ok"), {
    parts: MEMORY, total, scale: 1 / unit.bytes, title: `memory per device, ${unit.name}`, write: size,
    marks: (row) => get(data, "page.predicted_total_bytes", row), marked: "predicted by formulas",
    missing: "The memory of these cases is unknown.",
  });
}

/** Step time by its parts: one bar for each case, the fastest first. */
function time(data, shown) {
  return stacked(data, shown.filter((row) => TIME.every((part) => known(get(data, part.name, row)))), {
    parts: TIME, total: (row) => get(data, "step_seconds_median", row), scale: 1e3, title: "time of a step, ms",
    write: milliseconds, note: " Parts are differences of measured times, so noise can make them negative.", marks: (row) => get(data, "step_seconds_median", row), marked: "measured step time",
    missing: "The parts of the step time were not measured in the selected cases. Run the benchmarks with --attribution to measure them.",
  });
}

/** Horizontal stacked bars of the rows at the most common batch, sorted by their total, with a mark across each bar. */
function stacked(data, rows, { parts, total, scale, title, write, marks, marked, missing, note = "" }) {
  const batch = commonest(data, "global_batch_sequences", rows);
  const atBatch = rows.filter((row) => get(data, "global_batch_sequences", row) === batch).sort((a, b) => total(a) - total(b));
  if (!atBatch.length) return { missing };
  const bars = atBatch.slice(0, MOST_BARS);
  const places = bars.map((_, place) => place);
  const traces = parts.map((part) => ({
    type: "bar", orientation: "h", y: places, x: bars.map((row) => scale * get(data, part.name, row)), customdata: bars,
    marker: { color: colour(part.colour) }, width: NARROW.matches ? 0.42 : 0.72, hovertemplate: "%{text}<extra></extra>", textposition: "none",
    text: bars.map((row) => `<b>${plain(caseName(data, row))}</b><br>${plain(part.label)}: ${write(get(data, part.name, row))} of ${write(total(row))}`),
  }));
  const mark = {
    type: "scatter", mode: "markers", y: places, x: bars.map((row) => (marks(row) === null ? null : scale * marks(row))), customdata: bars,
    marker: { symbol: "line-ns", size: NARROW.matches ? 12 : 16, line: { color: colour("--ink"), width: 2 } }, hovertemplate: "%{text}<extra></extra>",
    text: bars.map((row) => `<b>${plain(caseName(data, row))}</b><br>${marked}: ${marks(row) === null ? "unknown" : write(marks(row))}`),
  };
  const beyond = atBatch.length - bars.length;
  return {
    traces: [...traces, mark],
    layout: barLayout(bars.map((row) => barName(data, row)), title),
    caption: `Global batch ${number(batch)}; change it with the filter above.${beyond > 0 ? ` The chart shows the first ${MOST_BARS} of ${atBatch.length} cases.` : ""}${note}`,
  };
}

function barName(data, row) {
  const microbatches = get(data, "microbatches", row);
  return plain(caseName(data, row)) + (microbatches > 1 ? `, ${microbatches} microbatches` : "");
}

/** The layout of stacked bars: names beside the bars, or above them on a narrow page. */
function barLayout(names, title) {
  const narrow = NARROW.matches;
  const label = { x: 0, xref: "paper", xanchor: "left", yshift: 15, showarrow: false, font: { size: 12 } };
  const longest = Math.max(...names.map((name) => name.length));
  const base = layout({});
  return layout({
    barmode: "relative", height: 80 + names.length * (narrow ? 42 : 26),
    margin: { ...base.margin, l: narrow ? 8 : 16 + 6.6 * longest, t: narrow ? 16 : 8 },
    xaxis: { title, tickformat: "," },
    yaxis: {
      range: [names.length - 0.5, narrow ? -0.9 : -0.5], showgrid: false, zeroline: false, showticklabels: !narrow, fixedrange: true,
      tickvals: names.map((_, place) => place), ticktext: names, tickfont: { color: colour("--ink"), size: 12 },
    },
    annotations: narrow ? names.map((text, y) => ({ ...label, y, text })) : [],
  });
}
