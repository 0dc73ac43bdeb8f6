"use strict";
// All facts of one case, in a dialog.

const NOT_FACTS = /^page\./; // what the page derived for itself
const OTHERS = "The case, its speed and its checks";
const GROUPS = {
  memory: "Memory of one device", attribution: "Where the time goes", compiled: "The compiled program",
  predicted: "Predicted by formulas", overlap: "Communication beside other work", rewrites: "What the compiler changed",
  between_processes: "Between processes", chip: "The chip", roofline: "Least times by the chip's figures",
  formula: "By formula",
};

/** Open the dialog about a case. */
function openFacts(data, row) {
  const dialog = document.getElementById("facts");
  dialog.querySelector("h2").textContent = caseName(data, row);
  dialog.querySelector(".body").replaceChildren(...factGroups(data, row));
  dialog.showModal();
  dialog.querySelector(".body").scrollTop = 0;
}

/** The facts by the first word of their names; zeros, and what is not known, are left out. */
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
  const note = "Names are those of the record. Facts that are zero or not known are left out.";
  const order = (title) => (title === OTHERS ? 1 : 0); // the table has most of these already
  const sorted = [...groups].sort(([a], [b]) => order(a) - order(b));
  return [element("p", { className: "note", textContent: note }),
    ...sorted.flatMap(([title, list]) => [element("h3", { textContent: title }), list])];
}

/** Have the dialog close by its button and by a press beside it; the browser closes it by Escape. */
function prepareFacts() {
  const dialog = document.getElementById("facts");
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}
