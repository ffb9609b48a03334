// Tables of the requests that run and that wait.

import { $, el, span } from "./dom.js";

const HEADS = ["Request", "Asks for", "Prompt", "From the cache", "Still to compute", "Written",
  "Time"];
const MOST = 100; // rows of one table

export function showRequests({ running, waiting, compiling }) {
  fill($("running"), running, "Nothing runs.");
  const compile = compiling ? `${compiling} wait for their grammar.` : "";
  fill($("waiting"), waiting, compile || "Nobody waits.");
  if (waiting.length && compile) $("waiting").append(el("p", { className: "quiet" }, compile));
}

function fill(box, requests, none) {
  if (!requests.length) {
    box.replaceChildren(el("p", { className: "quiet" }, none));
    return;
  }
  const head = el("tr", {}, ...HEADS.map((name) => el("th", { scope: "col" }, name)));
  const rows = requests.slice(0, MOST).map(row);
  const more = requests.length - rows.length;
  box.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)),
    more > 0 ? el("p", { className: "quiet" }, `and ${more} more`) : "");
}

function row(request) {
  const { goal, prompt, cached, work, drawn, max_new_tokens: most } = request;
  const cells = [request.request, goal, prompt, cached, work].map((text) => el("td", {}, String(text)));
  const written = most
    ? [el("progress", { max: most, value: drawn, ariaLabel: "written" }), ` ${drawn} of ${most}`]
    : ["–"];
  return el("tr", {}, ...cells, el("td", {}, ...written), el("td", {}, span(request.seconds)));
}
