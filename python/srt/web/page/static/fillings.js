// Code and formulas in a message. The libraries for them are loaded with the first one.

import { el, iconButton } from "./dom.js";
import { sanitized } from "./sanitizer.js";

const MAX_CODE = 50_000; // characters that are highlighted
const MAX_FORMULAS = 1000; // of a block of a message
const PAUSE = 20; // formulas between two pauses, in which the page answers its reader
const KATEX = { throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: 500 };

function once(load) {
  let loading = null;
  return () => (loading ??= load());
}

const highlighter = once(async () => (await import("./vendor/highlight/highlight.min.js")).default);

const katex = once(async () => {
  document.head.append(el("link", { rel: "stylesheet", href: "page/vendor/katex/katex.min.css" }));
  await import("./vendor/katex/katex.min.js");
  return globalThis.katex;
});

// The formulas of a block. One that a growing answer has replaced meanwhile is left out.
export async function fillFormulas(codes) {
  for (const code of codes.slice(MAX_FORMULAS)) {
    code.title = `Only the first ${MAX_FORMULAS} formulas of a paragraph, list or table are set.`;
  }
  await katex().catch(() => null);
  for (const [at, code] of codes.slice(0, MAX_FORMULAS).entries()) {
    if (at && at % PAUSE === 0) await new Promise((go) => setTimeout(go));
    if (code.isConnected) await fillMath(code);
  }
}

// Both leave the source where the library cannot be loaded or does not understand it.
async function fillMath(code) {
  const display = code.classList.contains("display");
  const source = code.textContent;
  try {
    const box = el("span", { className: display ? "formula display" : "formula" });
    if (display) Object.assign(box, { tabIndex: 0, role: "group", ariaLabel: "Formula" });
    (await katex()).render(source, box, { ...KATEX, displayMode: display });
    code.replaceWith(box);
  } catch (error) {
    code.title = error.message;
  }
}

export function fillCode(code) {
  const language = /\blanguage-(\S+)/.exec(code.className)?.[1] ?? "";
  const pre = code.parentElement;
  const frame = el("div", { className: "code" });
  pre.replaceWith(frame);
  const copy = iconButton("copy", "Copy code", () => copied(copy, code.textContent), "Copy");
  frame.append(el("div", { className: "code-bar" }, el("span", {}, language || "text"), copy), pre);
  Object.assign(pre, { tabIndex: 0, role: "group", ariaLabel: `${language} code`.trim() });
  if (language && code.textContent.length <= MAX_CODE) highlight(code, language);
}

async function highlight(code, language) {
  const hljs = await highlighter();
  if (!hljs.getLanguage(language)) return;
  const { value } = hljs.highlight(code.textContent, { language, ignoreIllegals: true });
  code.replaceChildren(sanitized(value));
}

// Says on the button whether it was copied.
export async function copied(button, text) {
  const done = await copyText(text);
  const icon = button.querySelector(".icon");
  const before = icon.className;
  icon.className = `icon icon-${done ? "check" : "x"}`;
  setTimeout(() => (icon.className = before), 1500);
  document.getElementById("said").textContent = done ? "Copied." : "This browser does not copy.";
}

// The clipboard of a page that came without TLS from another machine is reached the old way.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = el("textarea", { value: text, className: "out" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
