"use strict";
// The dialog with all facts of one case.

const NOT_FACTS = /^page\./; // columns that are derived for the page
const OTHERS = "The case, its speed and its checks";
const GROUPS = {
  memory: "Memory of one device", attribution: "Where the time goes", compiled: "The compiled program",
  predicted: "Predicted by formulas", overlap: "Overlap of communication", rewrites: "Communication rewritten by the compiler",
  between_processes: "Communication between processes", chip: "The chip", roofline: "Roofline: least times from the chip's published figures",
  measured: "Measured",
};

/** Open the dialog with the facts of a case. */
function openFacts(data, row) {
  const dialog = document.getElementById("facts");
  dialog.querySelector("h2").textContent = caseName(data, row);
  dialog.querySelector(".body").replaceChildren(...factGroups(data, row));
  dialog.showModal();
  dialog.querySelector(".body").scrollTop = 0;
}

/** The facts, grouped by the first word of their names; zeros and unknown values are left out. */
function factGroups(data, row) {
  const groups = new Map();
  for (const name of Object.keys(data.columns)) {
    const value = get(data, name, row);
    if (NOT_FACTS.test(name) || !known(value) || value === 0) continue;
    const [first, ...others] = name.split(".");
    const title = others.length ? (GROUPS[first] ?? first) : OTHERS;
    const list = groups.get(title) ?? element("dl");
    list.append(element("dt", { textContent: others.length ? others.join(".") : name }), element("dd", { textContent: fact(name, value) }));
    groups.set(title, list);
  }
  const note = "Names are the columns of the record. Facts that are zero or unknown are left out.";
  const order = (title) => (title === OTHERS ? 1 : 0); // the table has most of these already
  const sorted = [...groups].sort(([a], [b]) => order(a) - order(b));
  return [element("p", { className: "note", textContent: note }),
    ...sorted.flatMap(([title, list]) => [element("h3", { textContent: title }), list])];
}

/** Close the dialog on its button and on a click outside it; the browser closes it on Escape. */
function prepareFacts() {
  const dialog = document.getElementById("facts");
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}
