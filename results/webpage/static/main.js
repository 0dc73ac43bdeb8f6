"use strict";
// Puts the page together: words are there already; tables come first, then Plotly, then each chart as it comes near.

const DATA = JSON.parse(document.getElementById("data").textContent);

/** Run Plotly, once; it takes longer than all the rest of the page. */
const loadPlotly = (() => {
  let loaded = false;
  return () => {
    if (loaded) return;
    loaded = true;
    document.head.append(element("script", { textContent: document.getElementById("plotly").textContent }));
  };
})();

/** Charts that are drawn when they come near the window, and again when what they show changes. */
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

  /** Register a figure: `make()` returns what `draw` takes, `open(row)` is called for a point that is chosen. */
  add(figure, make, open) {
    this.makers.set(figure, { make, open });
    this.watch.observe(figure);
  }

  redraw(figure) {
    const { make, open } = this.makers.get(figure);
    loadPlotly();
    return draw(figure, make(), open);
  }

  /** Draw those again that have been near. */
  redrawAll() {
    for (const figure of this.near) this.redraw(figure);
  }

  /** Draw all, as before printing. */
  drawAll() {
    for (const figure of this.makers.keys()) this.near.add(figure);
    this.redrawAll();
  }
}

/** Fill a select with the values of a column; the first option, whose value is empty, takes all of them. */
function fillSelect(select, values, all, write = (value) => number(value)) {
  const options = values.map((value) => element("option", { value: String(value), textContent: write(value) }));
  select.replaceChildren(...(all ? [element("option", { value: "", textContent: all })] : []), ...options);
  select.closest("label").hidden = values.length < 2;
}

/** Whether a text has each word of another somewhere. */
function matches(text, words) {
  return words.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
}

/** The section about a run, whose table it returns: one filter for its table and its charts. */
function startRun(section, data, charts) {
  const form = section.querySelector("form");
  const open = (row) => openFacts(data, row);
  const table = new SortableTable(data, caseColumns(data), "Cases, sortable by each column", open);
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
  showLegend(section.querySelector("[data-chart=time]"), TIME, "the step, measured");
  return table;
}

/** The rows that the filter of a run lets through. */
function filtered(data, form) {
  const strategies = new Set([...form.querySelectorAll(".chips input:checked")].map((box) => box.value));
  const { workload, devices, batch, status, text } = form.elements;
  const same = (name, chosen, row) => chosen === "" || String(get(data, name, row)) === chosen;
  return allRows(data).filter((row) =>
    strategies.has(get(data, "strategy", row)) && same("page.workload", workload.value, row) && same("devices", devices.value, row) &&
    same("global_batch_sequences", batch.value, row) && same("status", status.value, row) && matches(caseName(data, row), text.value));
}

/** A strategy to be shown or not; it is the legend of all charts, too. */
function chip(strategy) {
  const box = element("input", { type: "checkbox", defaultChecked: true, value: strategy });
  return element("label", {}, box, symbol(strategy), strategy);
}

/** The section about a search, whose table it returns. */
function startSearch(section, data, charts) {
  const form = section.querySelector("form");
  const open = (row) => openFacts(data, row);
  const table = new SortableTable(data, candidateColumns(data), "Candidates, sortable by each column", open);
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

/** Paper is white, whatever the screen is, and has all charts and rows. */
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
