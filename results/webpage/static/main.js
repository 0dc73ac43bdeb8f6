"use strict";
// Starts the page. The summary is in the HTML; tables are built first, then charts.

const DATA = JSON.parse(document.getElementById("data").textContent);

/** The charts of the page: they are drawn when the page is started, and again when their rows or the width change. */
class Charts {
  constructor() {
    this.makers = new Map();
    this.width = 0;
    new ResizeObserver(() => {
      if (this.width === document.body.clientWidth) return;
      this.width = document.body.clientWidth;
      this.redrawIn(document);
    }).observe(document.body);
  }

  /** Register a figure: `make()` returns a chart for `draw`, and a click on a mark calls `open(row)`. */
  add(figure, make, open) {
    this.makers.set(figure, { make, open });
  }

  redraw(figure) {
    const { make, open } = this.makers.get(figure);
    draw(figure, make(), open);
  }

  /** Redraw the figures in an element. */
  redrawIn(element) {
    for (const figure of this.makers.keys()) if (element.contains(figure)) this.redraw(figure);
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
    charts.redrawIn(section);
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply)); // after the form has been reset

  const across = () => section.querySelector("[name=across]:checked").value;
  const makers = { curves: () => curves(data, shown, across()), memory: () => memory(data, shown), time: () => time(data, shown) };
  apply();
  for (const figure of section.querySelectorAll("figure")) charts.add(figure, makers[figure.dataset.chart], open);
  section.querySelector(".tabs").addEventListener("change", () => charts.redraw(section.querySelector("[data-chart=curves]")));
  showLegend(section.querySelector("[data-chart=memory]"), DATA.memory, "predicted by formulas");
  showLegend(section.querySelector("[data-chart=time]"), DATA.time, "measured step time");
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
  const figure = section.querySelector("figure");
  let shown = [];
  const apply = () => {
    shown = allRows(data).filter((row) => matches(caseName(data, row), form.elements.text.value));
    table.show(shown);
    charts.redrawIn(section);
    form.querySelector("output").textContent = `${shown.length} of ${data.count} candidates are shown`;
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  apply();
  charts.add(figure, () => searchChart(data, shown), open);
  return table;
}

/** Print in the light theme, with all rows, and charts as wide as the paper. */
function preparePrinting(charts, tables) {
  matchMedia("print").addEventListener("change", ({ matches: printing }) => {
    document.documentElement.classList.toggle("paper", printing);
    if (printing) tables.forEach((table) => table.showAll());
    charts.redrawIn(document);
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
}

start();
