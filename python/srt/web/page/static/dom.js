// Elements made without markup: strings become text nodes, so no text is ever read as HTML.

export const $ = (id) => document.getElementById(id);

// el("a", {href: "#x", onclick: f}, "text", child): properties, listeners, else attributes.
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function button(text, onclick, props = {}) {
  return el("button", { type: "button", onclick, ...props }, text);
}

export function icon(name) {
  return el("span", { className: `icon icon-${name}`, ariaHidden: "true" });
}

// A button with an icon; `label` is its name, and its text where `text` is not given.
export function iconButton(name, label, onclick, text = "") {
  const props = text ? { className: "tool" } : { className: "tool bare", title: label };
  return el("button", { type: "button", ariaLabel: label, onclick, ...props }, icon(name),
    text ? el("span", {}, text) : null);
}

export function problem(error) {
  return el("p", { className: "error", role: "alert" }, error.message || String(error));
}

// 1234567 -> "1.23 M": three digits are enough for what changes every second.
export function short(number) {
  if (number === undefined || number === null || Number.isNaN(number)) return "–";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(number) >= size) return `${Number((number / size).toPrecision(3))} ${unit}`;
  }
  return String(Number(number.toPrecision(3)));
}

export function span(seconds) {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

export function percent(share) {
  return Number.isFinite(share) ? `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %` : "–";
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
