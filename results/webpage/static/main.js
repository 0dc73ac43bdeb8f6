"use strict";
// Starts the page. The summary is in the HTML. Tables are built first; Plotly and each chart when it comes into view.

const DATA = JSON.parse(document.getElementById("data").textContent);

/** Run Plotly once, when the first chart is drawn: it takes longer than everything else on the page. */
const loadPlotly = (() => {
  let loaded = false;
  return () => {
    if (loaded) return;
    loaded = true;
    document.head.append(element("script", { textContent: document.getElementById("plotly").textContent }));
  };
})();

/** Draws each chart when it comes near the visible part of the page, and again when its rows change. */
class Charts {
  constructor() {
    this.makers = new Map();
    this.near = new Set();
    this.watch = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        this.watch.unobserve(target);
        this.near.add(target);
        this.redraw(target);
      }
    }, { rootMargin: "300px" });
  }

  /** Register a figure: `make()` returns a chart for `draw`, and a click on a point calls `open(row)`. */
  add(figure, make, open) {
    this.makers.set(figure, { make, open });
    this.watch.observe(figure);
  }

  redraw(figure) {
    const { make, open } = this.makers.get(figure);
    loadPlotly();
    return draw(figure, make(), open);
  }

  /** Redraw the charts that have been drawn. */
  redrawAll() {
    for (const figure of this.near) this.redraw(figure);
  }

  /** Draw all charts, for printing. */
  drawAll() {
    for (const figure of this.makers.keys()) this.near.add(figure);
    this.redrawAll();
  }
}

/** Fill a select with values. `all`, if given, labels a first option that selects every value. */
function fillSelect(select, values, all, write = (value) => number(value)) {
  const options = values.map((value) => element("option", { value: String(value), textContent: write(value) }));
  select.replaceChildren(...(all ? [element("option", { value: "", textContent: all })] : []), ...options);
  select.closest("label").hidden = values.length < 2;
}

/** Whether a text contains each of some words. */
function matches(text, words) {
  return words.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
}

/** Start the section about runs, where one filter applies to the table and the charts; returns the table. */
function startRun(section, data, charts) {
  const form = section.querySelector("form");
  const open = (row) => openFacts(data, row);
  const table = new SortableTable(data, caseColumns(data), "Cases; each column can be sorted", open);
  section.querySelector(".table").append(table.element);
  section.querySelector(".table").after(table.more);
  form.querySelector(".chips").append(...data.strategies.map((strategy) => chip(strategy)));
  fillSelect(form.elements.workload, data.workloads.map((_, place) => place), "", (place) => data.workloads[place]);
  fillSelect(form.elements.devices, distinct(data, "devices"), "all");
  fillSelect(form.elements.batch, distinct(data, "global_batch_sequences"), "all");
  fillSelect(form.elements.status, distinct(data, "status"), "all");

  let shown = [];
  const apply = () => {
    shown = filtered(data, form);
    table.show(shown);
    form.querySelector("output").textContent = `${shown.length} of ${data.count} cases are shown`;
    charts.redrawAll();
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply)); // after the form has been reset

  const across = () => section.querySelector("[name=across]:checked").value;
  const makers = { curves: () => curves(data, shown, across()), memory: () => memory(data, shown), time: () => time(data, shown) };
  apply();
  for (const figure of section.querySelectorAll("figure")) charts.add(figure, makers[figure.dataset.chart], open);
  section.querySelector(".tabs").addEventListener("change", () => charts.redraw(section.querySelector("[data-chart=curves]")));
  showLegend(section.querySelector("[data-chart=memory]"), MEMORY, "predicted by formulas");
  showLegend(section.querySelector("[data-chart=time]"), TIME, "measured step time");
  return table;
}

/** The rows that match the filter of the section about runs. */
function filtered(data, form) {
  const strategies = new Set([...form.querySelectorAll(".chips input:checked")].map((box) => box.value));
  const { workload, devices, batch, status, text } = form.elements;
  const same = (name, chosen, row) => chosen === "" || String(get(data, name, row)) === chosen;
  return allRows(data).filter((row) =>
    strategies.has(get(data, "strategy", row)) && same("page.workload", workload.value, row) && same("devices", devices.value, row) &&
    same("global_batch_sequences", batch.value, row) && same("status", status.value, row) && matches(caseName(data, row), text.value));
}

/** A checkbox that shows or hides a strategy. The checkboxes are also the legend of the throughput chart. */
function chip(strategy) {
  const box = element("input", { type: "checkbox", defaultChecked: true, value: strategy });
  return element("label", {}, box, symbol(strategy), strategy);
}

/** Start the section about a search; returns its table. */
function startSearch(section, data, charts) {
  const form = section.querySelector("form");
  const open = (row) => openFacts(data, row);
  const table = new SortableTable(data, candidateColumns(data), "Candidates; each column can be sorted", open);
  section.querySelector(".table").append(table.element);
  section.querySelector(".table").after(table.more);
  const apply = () => {
    const shown = allRows(data).filter((row) => matches(caseName(data, row), form.elements.text.value));
    table.show(shown);
    form.querySelector("output").textContent = `${shown.length} of ${data.count} candidates are shown`;
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  apply();
  charts.add(section.querySelector("figure"), () => densityChart(data), open);
  return table;
}

/** Print in the light theme, with all charts and all rows. */
function preparePrinting(charts, tables) {
  matchMedia("print").addEventListener("change", ({ matches: printing }) => {
    document.documentElement.classList.toggle("paper", printing);
    if (!printing) return charts.redrawAll();
    tables.forEach((table) => table.showAll());
    return charts.drawAll();
  });
}

function start() {
  const charts = new Charts();
  prepareFacts();
  const tables = [...document.querySelectorAll("[data-part]")].map((section) => {
    const startPart = section.classList.contains("run") ? startRun : startSearch;
    return startPart(section, DATA.parts[Number(section.dataset.part)], charts);
  });
  preparePrinting(charts, tables);
  for (const query of [NARROW, DARK]) query.addEventListener("change", () => charts.redrawAll());
}

start();
