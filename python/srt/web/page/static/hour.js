// The last hour, minute by minute, and what its requests waited.

import { $, el, short } from "./dom.js";

const MINUTES = 60;
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 64;
const SHARES = ["p50", "p95", "p99"];
const ROWS = [["First token", "first"], ["Token to token", "token"], ["Whole answer", "whole"]];

// Title, what a minute adds up to, how the number is written.
const CHARTS = [
  ["Generated tokens", ({ generated_tokens: tokens }) => tokens, short],
  ["Completions", ({ completions }) => completions, short],
  ["Cached prompt tokens", ({ cached_tokens: cached, prompt_tokens: all }) =>
    (all ? cached / all : 0), (share) => `${Math.round(100 * share)} %`],
  ["First token, p95", ({ first_p95: seconds = 0 }) => seconds, duration],
];

export function duration(seconds) {
  if (seconds === undefined) return "–";
  if (seconds < 0.1) return `${Number((1000 * seconds).toPrecision(2))} ms`;
  return seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${Number(seconds.toPrecision(3))} s`;
}

export function showHour({ latency, hour }) {
  showLatency(latency);
  const key = JSON.stringify(hour);
  if ($("hour").dataset.key === key) return; // as long as nothing ends
  $("hour").dataset.key = key;
  $("hour").replaceChildren(...CHARTS.map(([title, value, written]) => chart(title, value, written, hour)));
}

function showLatency(latency) {
  const head = el("tr", {}, el("th"), ...SHARES.map((name) => el("th", { scope: "col" }, name)));
  const rows = ROWS.map(([title, name]) => el("tr", {}, el("th", { scope: "row" }, title),
    ...SHARES.map((share) => el("td", {}, duration(latency[name][share])))));
  $("latency").replaceChildren(el("thead", {}, head), el("tbody", {}, ...rows));
}

function chart(title, value, written, hour) {
  const bars = hour.map((minute) => [minute.ago, value(minute)]);
  const most = Math.max(0, ...bars.map(([, number]) => number));
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${MINUTES} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${title}: at most ${written(most)} in a minute of the last hour`);
  for (const [ago, number] of bars) {
    const height = most ? (HEIGHT * number) / most : 0;
    const bar = document.createElementNS(SVG, "rect");
    for (const [name, at] of Object.entries({ x: MINUTES - 1 - ago + 0.1, y: HEIGHT - height, width: 0.8, height })) {
      bar.setAttribute(name, at);
    }
    const tip = document.createElementNS(SVG, "title");
    tip.textContent = `${ago ? `${ago} min ago` : "this minute"}: ${written(number)}`;
    bar.append(tip);
    svg.append(bar);
  }
  return el("figure", { className: "chart" }, el("figcaption", {}, el("span", {}, title),
    el("strong", {}, most ? `most ${written(most)}` : "–")), svg,
  el("div", { className: "axis quiet" }, el("span", {}, "60 min ago"), el("span", {}, "now")));
}
