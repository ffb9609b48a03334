// Figures over the last two minutes: what the counters grew by, drawn as sparklines.

import { $, el, percent, short } from "./dom.js";

const SAMPLES = 120;
const FROM_CACHE = "Prompt tokens from the cache";
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 120;
const HEIGHT = 28;

let before = null; // the last snapshot
let series = {};
const shown = {}; // by title: its parts on the page

// Each figure: title, its value now from (rate of a counter, statistics, what a counter grew by).
const FIGURES = [
  ["Generated tokens/s", ({ rate }) => rate("generated_tokens"), short],
  ["Computed tokens/s", ({ rate }) => rate("computed_tokens"), short],
  [FROM_CACHE, ({ grown }) => grown("cached_tokens") / grown("prompt_tokens"),
    percent],
  ["KV cache in use", ({ stats }) => used(stats) / stats.total_tokens, percent],
  ["Running", ({ stats }) => stats.running, short],
  ["Waiting", ({ stats }) => stats.waiting, short],
  ["Evicted tokens/s", ({ rate }) => rate("evicted_tokens"), short],
  ["Retractions/s", ({ rate }) => rate("retractions"), short],
];

const used = (stats) => stats.total_tokens - stats.free_tokens - stats.evictable_tokens;

export function showMeters(snapshot) {
  const { stats, time } = snapshot;
  if (before && restarted(before, snapshot)) {
    before = null;
    series = {};
  }
  const seconds = before ? Math.max(time - before.time, 0.001) : NaN;
  const grown = (name) => (before ? stats[name] - before.stats[name] : NaN);
  const rate = (name) => grown(name) / seconds;
  for (const [title, value, written] of FIGURES) {
    const line = (series[title] ??= []);
    line.push(value({ stats, rate, grown }));
    if (line.length > SAMPLES) line.shift();
    tile(title, line, written);
  }
  const whole = percent(stats.cached_tokens / stats.prompt_tokens);
  shown[FROM_CACHE].top.textContent = `${whole} since the start`;
  showMemory(stats);
  before = snapshot;
}

// Counters never shrink: those of another engine may.
function restarted(old, { stats, uptime }) {
  return uptime < old.uptime || stats.passes < old.stats.passes ||
    stats.prompt_tokens < old.stats.prompt_tokens;
}

function tile(title, line, written) {
  if (!shown[title]) {
    const value = el("strong");
    const path = document.createElementNS(SVG, "polyline");
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(path);
    const top = el("small", { className: "quiet" });
    shown[title] = { value, path, top };
    $("tiles").append(el("div", { className: "tile" }, el("span", {}, title), value, svg, top));
  }
  const { value, path, top } = shown[title];
  const known = line.filter(Number.isFinite);
  const most = Math.max(...known, 0);
  // A share that nothing was asked for in the last second is the last one known.
  const latest = written === percent ? known.at(-1) : line.at(-1);
  value.textContent = written(latest);
  top.textContent = known.length ? `most ${written(most)}` : "";
  path.setAttribute("points", points(line, written === percent ? 1 : most));
}

function points(line, most) {
  const step = WIDTH / (SAMPLES - 1);
  const from = SAMPLES - line.length;
  return line
    .map((value, i) => [value, (from + i) * step])
    .filter(([value]) => Number.isFinite(value))
    .map(([value, x]) => `${x.toFixed(1)},${(HEIGHT - 2 - (HEIGHT - 4) * share(value, most)).toFixed(1)}`)
    .join(" ");
}

const share = (value, most) => (most > 0 ? value / most : 0);

function showMemory(stats) {
  const total = stats.total_tokens;
  const parts = [["used", used(stats), "held by requests"],
    ["kept", stats.evictable_tokens, "cached, may be evicted"], ["free", stats.free_tokens, "free"]];
  if (!$("kv").children.length) {
    $("kv").append(...parts.map(([kind]) => el("span", { className: kind })));
  }
  parts.forEach(([, tokens], i) => {
    $("kv").children[i].style.width = `${(100 * tokens) / total}%`;
  });
  const words = parts.map(([, tokens, what]) => `${short(tokens)} ${what}`).join(", ");
  $("kv-text").textContent = `${words}, of ${short(total)} tokens`;
  $("kv").ariaLabel = words;
}
