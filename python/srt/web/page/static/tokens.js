// What the model wrote, token by token, shaded by how sure it was.

import { count, el, percent } from "./dom.js";

// [{text, sure}] of a reply: `sure` is the probability, null where it is not one token's.
// Tokens of half a character each are shown together, by the text they make.
export function pieces(text, triples) {
  const found = [];
  let at = 0;
  let pending = [];
  const flush = (end) => {
    if (end > at) found.push({ text: text.slice(at, end), sure: least(pending), ids: pending });
    pending = [];
    at = end;
  };
  for (const triple of triples) {
    const token = triple[2] ?? "";
    const whole = token && !token.includes("\ufffd");
    const start = whole ? text.indexOf(token, at) : -1;
    if (!whole || start < 0 || (start > at && !pending.length)) {
      pending.push(triple);
      continue;
    }
    flush(start);
    pending = [triple];
    flush(start + token.length);
  }
  flush(text.length);
  return found;
}

const least = (triples) =>
  triples.length ? Math.exp(Math.min(...triples.map(([value]) => value))) : null;

// A span of shaded tokens.
export function shaded(text, triples) {
  const spans = pieces(text, triples).map(({ text: piece, sure, ids }) => {
    const span = el("span", { className: "token" }, piece);
    if (sure !== null) {
      span.style.setProperty("--doubt", `${Math.round(100 * (1 - sure))}%`);
      span.title = ids.map(([value, id]) => `token ${id}: ${percent(Math.exp(value))}`).join("\n");
    }
    return span;
  });
  return el("span", { className: "written" }, ...spans);
}

// The same as a table, for those who cannot see shades.
export function table(triples) {
  const rows = triples.map(([value, id, text]) => el("tr", {},
    el("td", {}, el("code", {}, JSON.stringify(text ?? ""))), el("td", {}, String(id)),
    el("td", {}, percent(Math.exp(value))), el("td", {}, value.toFixed(3))));
  const heads = ["Token", "Id", "Probability", "Log-probability"];
  return el("details", {}, el("summary", {}, count(triples.length, "token")),
    el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", {}, head)))),
      el("tbody", {}, ...rows)));
}
