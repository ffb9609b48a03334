// Formulas in Markdown: $x$, $$x$$, \(x\) and \[x\] become <code class="math">, which KaTeX fills.

const MAX_CHARS = 4000; // of a formula in a line; how far an unclosed one is looked for
const MAX_LINES = 200; // of a formula that stands alone

export function mathRules(md) {
  md.inline.ruler.before("escape", "math", inline);
  md.block.ruler.before("fence", "math", block, { alt: ["paragraph", "reference", "blockquote", "list"] });
  md.renderer.rules.math = (tokens, at) => {
    const { content, block: alone, markup } = tokens[at];
    const shown = md.utils.escapeHtml(content);
    const kind = alone || markup === "$$" || markup === "\\[" ? "math display" : "math";
    const code = `<code class="${kind}">${shown}</code>`;
    return alone ? `<p>${code}</p>\n` : code;
  };
}

const CLOSING = { "$$": "$$", $: "$", "\\[": "\\]", "\\(": "\\)" };

function opening(text, at) {
  return ["$$", "$", "\\[", "\\("].find((mark) => text.startsWith(mark, at)) ?? "";
}

function inline(state, silent) {
  const open = opening(state.src, state.pos);
  if (!open) return false;
  const start = state.pos + open.length;
  const end = closing(state.src.slice(start, Math.min(state.posMax, start + MAX_CHARS)), open);
  if (end < 0) return false;
  if (!silent) {
    const token = state.push("math", "code", 0);
    token.markup = open;
    token.content = state.src.slice(start, start + end);
  }
  state.pos = start + end + CLOSING[open].length;
  return true;
}

// Where the formula at the beginning of a text ends, or -1. "$5 and $6" is no formula: a single
// dollar stands before and behind its formula without a space, and before no digit.
function closing(text, open) {
  const close = CLOSING[open];
  if (open !== "$") {
    const end = text.indexOf(close);
    return end > 0 && text.slice(0, end).trim() ? end : -1;
  }
  if (/^\s/.test(text)) return -1;
  for (let end = text.indexOf("$", 1); end > 0; end = text.indexOf("$", end + 1)) {
    if (text[end - 1] === "\\") continue;
    return /\s/.test(text[end - 1]) || /\d/.test(text[end + 1] ?? "") ? -1 : end;
  }
  return -1;
}

// A formula of whole lines, which Markdown would read as lists or headings.
function block(state, first, last, silent) {
  const start = state.bMarks[first] + state.tShift[first];
  const open = opening(state.src, start);
  if (open.length < 2 || open === "\\(" || state.sCount[first] - state.blkIndent >= 4) return false;
  const limit = Math.min(last, first + MAX_LINES);
  const known = (state.env.unclosed ??= {}); // by opening: a line before which none closes
  const lineAt = (line) => (line === first ? state.src.slice(start + 2, state.eMarks[first])
    : state.getLines(line, line + 1, state.blkIndent, false));
  for (let line = Math.max(first, known[open] ?? 0); line < limit; line += 1) {
    const text = lineAt(line);
    const end = text.indexOf(CLOSING[open]);
    if (end < 0) continue;
    if (text.slice(end + 2).trim()) return false;
    if (silent) return true;
    const token = state.push("math", "code", 0);
    Object.assign(token, { block: true, markup: open, map: [first, line + 1] });
    const lines = Array.from({ length: line - first }, (_, i) => lineAt(first + i));
    token.content = [...lines, text.slice(0, end)].join("\n").trim();
    state.line = line + 1;
    return true;
  }
  known[open] = Math.max(limit, known[open] ?? 0);
  return false;
}
