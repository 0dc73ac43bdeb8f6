"use strict";
// The chart of a search: roofline, predicted, compiled and measured time of a step, one line for each candidate.

const MOST_LINES = 24;

/** The roofline, predicted, compiled and measured time of a candidate, in ms. */
function timesOf(data, row) {
  return DATA.candidate.map(({ name }) => get(data, name, row));
}

/** The chart for `draw`: the candidates with a known time, in the order of their ranks. */
function searchChart(data, shown) {
  const timed = shown.filter((row) => timesOf(data, row).some(known));
  const rows = timed.slice(0, MOST_LINES);
  if (!rows.length) return { missing: "No candidate with a known time is selected." };
  const names = rows.map((row) => caseName(data, row));
  const largest = Math.max(...rows.flatMap((row) => timesOf(data, row).map((time) => time ?? 0)));
  const [compiled, measured] = [2, 3].map((which) => rows.filter((row) => known(timesOf(data, row)[which])).length);
  return {
    ...linesLayout(names), x: fromZero(1.05 * largest, "time of a step, ms"), y: linesAxis(names),
    marks: rows.flatMap((row, place) => candidateMarks(data, row, place)),
    caption: "A tick is the roofline; a circle is the predicted time; a filled mark is the time as compiled, of " +
      `${compiled} of the candidates drawn; a second tick, taller, is the measured time, of ${measured}.` +
      (timed.length > rows.length ? ` The chart shows the first ${rows.length} of ${timed.length} candidates.` : "") +
      (shown.length > timed.length ? ` Not drawn: ${shown.length - timed.length} without a known time.` : ""),
  };
}

/** The marks of a candidate: its times on a line. */
function candidateMarks(data, row, place) {
  const { colour, path } = lookOf(get(data, "strategy", row));
  const times = timesOf(data, row);
  const [roofline, predicted, compiled, measured] = times;
  const all = times.filter(known);
  const text = [caseName(data, row), ...DATA.candidate.map(({ label }, which) => known(times[which]) ? `${label}: ${number(times[which], 1)} ms` : "")];
  const common = { up: place, colour, row, text };
  return [
    { kind: "line", points: [[Math.min(...all), place], [Math.max(...all), place]], colour: "var(--muted)" },
    ...(known(roofline) ? [{ kind: "tick", at: roofline, tall: 14, ...common }] : []),
    ...(known(predicted) ? [{ kind: "point", at: predicted, path: lookOf("single").path, hollow: true, ...common }] : []),
    ...(known(compiled) ? [{ kind: "point", at: compiled, path, ...common }] : []),
    ...(known(measured) ? [{ kind: "tick", at: measured, tall: 24, ...common }] : []),
  ];
}
