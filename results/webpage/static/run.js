"use strict";
// The charts of runs. Each function takes the rows that are shown and returns a chart for `draw`.

const MOST_BARS = 40;

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
  const virtual = placed.every((row) => get(data, "virtual_devices", row));
  const dodged = across === "memory" ? at : apart(data, placed, at, virtual || across === "batch");
  const ideal = across === "devices" ? idealMarks(data, placed, at) : [];
  const marks = data.strategies.map((strategy) => {
    const own = placed.filter((row) => get(data, "strategy", row) === strategy).sort((a, b) => at(a) - at(b));
    return strategyMarks(data, own, dodged, lookOf(strategy), across !== "memory");
  });
  return {
    height: NARROW.matches ? 380 : 460, margin: { left: 56, right: 12, top: 30, bottom: 48 },
    x: across === "memory"
      ? fromZero(1.1 * Math.max(...placed.map(at)), `memory per device, ${unit.name}`, number, NARROW.matches ? 4 : 8)
      : doubling(distinctPlaces(placed, at), across === "devices" ? "devices" : "global batch, sequences"),
    y: speedAxis(data, placed, virtual),
    // Lines lie under all intervals, and intervals under all points.
    marks: [...ideal, ...["line", "interval", "point"].flatMap((kind) => marks.flat().filter((mark) => mark.kind === kind))],
    caption: curvesCaption(data, across, value, virtual, placed, ideal.length > 0),
  };
}

/** The axis of throughput, by the rule of figures: by doublings where the ideal grows and values differ much, else from zero. */
function speedAxis(data, rows, virtual) {
  const names = ["tokens_per_second", "page.throughput_low", "page.throughput_high", "page.throughput_ideal"];
  const values = rows.flatMap((row) => names.map((name) => get(data, name, row)).filter(known));
  const [lowest, largest] = [Math.min(...values), Math.max(...values)];
  if (virtual || largest < DATA.log_span * lowest) return fromZero(1.08 * largest, "tokens/s");
  const first = Math.floor(Math.log2(lowest));
  const ticks = Array.from({ length: Math.ceil(Math.log2(largest)) - first + 1 }, (_, place) => 2 ** (first + place));
  return { low: ticks[0], high: ticks.at(-1), ticks: ticks.map((value) => [value, number(value)]), title: "tokens/s", log: true };
}

/** Positions along the axis: strategies stand side by side, so that intervals show; not where the ideal is a slope. */
function apart(data, rows, at, flat) {
  const names = data.strategies.filter((name) => rows.some((row) => get(data, "strategy", row) === name));
  const places = distinctPlaces(rows, at).map(Math.log2);
  const gap = Math.min(1, ...places.slice(1).map((place, before) => place - places[before]));
  const step = flat && names.length > 1 ? (gap * DATA.dodge) / (names.length - 1) : 0;
  return (row) => at(row) * 2 ** (step * (names.indexOf(get(data, "strategy", row)) - (names.length - 1) / 2));
}

function distinctPlaces(rows, at) {
  return [...new Set(rows.map(at))].sort((a, b) => a - b);
}

function curvesCaption(data, across, value, virtual, rows, dashed) {
  const where = across === "batch" ? `${number(value)} devices` : `Global batch ${number(value)}`;
  const ideal = virtual ? "the throughput of one device, because virtual devices share one machine." : "a linear speed-up.";
  const noisy = rows.some((row) => get(data, "noisy", row)) ? " This run is noisy: see the summary." : "";
  return `${where}; change it with the filter above. Bars are 95% intervals. Lines connect the fastest mesh of each ` +
    `strategy; other meshes are pale.${dashed ? ` The dashed line is the ideal: ${ideal}` : ""}${noisy}`;
}

/** The marks of a strategy: points with intervals, and a line through its fastest ones. */
function strategyMarks(data, rows, x, { colour, path }, connected) {
  const best = rows.filter((row) => get(data, "page.best", row));
  const up = (row) => get(data, "tokens_per_second", row);
  const ends = (row) => ["low", "high"].map((end) => get(data, `page.throughput_${end}`, row));
  return [
    ...(connected ? [{ kind: "line", points: best.map((row) => [x(row), up(row)]), colour }] : []),
    ...best.filter((row) => ends(row).every(known)).map((row) => ({ kind: "interval", at: x(row), low: ends(row)[0], high: ends(row)[1], colour })),
    ...rows.map((row) => ({ kind: "point", at: x(row), up: up(row), path, colour, pale: !get(data, "page.best", row), row, text: pointText(data, row) })),
  ];
}

function pointText(data, row) {
  const ends = interval(get(data, "page.throughput_low", row), get(data, "page.throughput_high", row));
  return [
    short(caseName(data, row)),
    `${number(get(data, "tokens_per_second", row))} tokens/s${ends && ` (95%: ${ends})`}`,
    `batch ${number(get(data, "global_batch_sequences", row))}, ${number(get(data, "microbatches", row))} microbatches`,
    known(get(data, "memory.total_bytes", row)) ? `${size(get(data, "memory.total_bytes", row))} per device` : "",
  ];
}

function idealMarks(data, rows, at) {
  const ideal = new Map(rows.map((row) => [at(row), get(data, "page.throughput_ideal", row)]));
  const points = [...ideal].filter(([, value]) => value !== null).sort(([a], [b]) => a - b);
  return points.length ? [{ kind: "line", points, colour: "var(--muted)", dash: "5 4" }] : [];
}

/** Memory per device by its parts: one bar for each case, the smallest first. */
function memory(data, shown) {
  const total = (row) => get(data, "memory.total_bytes", row);
  const unit = byteUnit(Math.max(0, ...shown.map(total)));
  return stacked(data, shown.filter((row) => known(total(row)) && get(data, "status", row) === "ok"), {
    parts: DATA.memory, total, scale: 1 / unit.bytes, title: `memory per device, ${unit.name}`, write: size,
    marks: (row) => get(data, "page.predicted_total_bytes", row), marked: "predicted by formulas",
    missing: "The memory of these cases is unknown.",
  });
}

/** Step time by its parts: one bar for each case, the fastest first. */
function time(data, shown) {
  return stacked(data, shown.filter((row) => DATA.time.every((part) => known(get(data, part.name, row)))), {
    parts: DATA.time, total: (row) => get(data, "step_seconds_median", row), scale: 1e3, title: "time of a step, ms",
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
  const names = bars.map((row) => barName(data, row));
  const beyond = atBatch.length - bars.length;
  const largest = scale * Math.max(...bars.flatMap((row) => [total(row), marks(row) ?? 0]));
  const lowest = Math.min(0, ...bars.map((row) => scale * parts.reduce((sum, part) => sum + Math.min(0, get(data, part.name, row)), 0)));
  return {
    ...linesLayout(names), x: { ...fromZero(1.05 * largest, title), low: lowest }, y: linesAxis(names),
    marks: bars.flatMap((row, place) => barMarks(data, row, place, { parts, total, scale, write, marks, marked })),
    caption: `Global batch ${number(batch)}; change it with the filter above.${beyond > 0 ? ` The chart shows the first ${MOST_BARS} of ${atBatch.length} cases.` : ""}${note}`,
  };
}

/** The parts of a bar end to end, negative ones to the left of zero, and the mark across it. */
function barMarks(data, row, place, { parts, total, scale, write, marks, marked }) {
  const [thick, name] = [NARROW.matches ? 16 : 18, barName(data, row)];
  const ends = { right: 0, left: 0 };
  const stack = parts.map((part) => {
    const value = get(data, part.name, row);
    const side = value < 0 ? "left" : "right";
    const from = scale * ends[side];
    ends[side] += value;
    const text = [short(name), `${part.label}: ${write(value)} of ${write(total(row))}`];
    return { kind: "bar", from, to: scale * ends[side], up: place, thick, colour: part.colour, row, text };
  });
  const mark = marks(row);
  const text = [short(name), `${marked}: ${known(mark) ? write(mark) : "unknown"}`];
  return known(mark) ? [...stack, { kind: "tick", at: scale * mark, up: place, tall: thick + 4, row, text }] : stack;
}

function barName(data, row) {
  const microbatches = get(data, "microbatches", row);
  return caseName(data, row) + (microbatches > 1 ? `, ${microbatches} microbatches` : "");
}
