// Programs that were sent whole and run: the calls of each, in an order in which each stands behind
// those that it reads.

import { $, el } from "./dom.js";

const HEADS = ["Step", "Call", "State", "Reads", "Served for", "Stage", "Group", "Line"];

export function showPrograms({ programs = [], more_programs: more = 0 }) {
  const box = $("programs");
  if (!programs.length) {
    box.replaceChildren(el("p", { className: "quiet" }, "None runs."));
    return;
  }
  const left = more ? el("p", { className: "quiet" }, `and ${more} more programs`) : "";
  box.replaceChildren(...programs.map(program), left);
}

function program({ name, id, calls, more }) {
  const head = el("tr", {}, ...HEADS.map((word) => el("th", { scope: "col" }, word)));
  const table = el("table", {}, el("caption", {}, `${name || "program"} ${id.slice(0, 8)}`),
    el("thead", {}, head), el("tbody", {}, ...calls.map(row)));
  return el("div", {}, table, more ? el("p", { className: "quiet" }, `and ${more} more calls`) : "");
}

function row(call) {
  const cells = [
    call.critical ? `${call.step} ★` : call.step, `${call.op} ${call.name}`, call.state,
    call.reads.join(", "), call.criteria, shown(call.stage), shown(call.group), call.at,
  ];
  return el("tr", {}, ...cells.map((text) => el("td", {}, String(text))));
}

function shown(number) {
  return number < 0 ? "" : number;
}
