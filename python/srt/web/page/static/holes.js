// A program's text, read: what stands in it, what the model writes, where it forks.

const MAX_BRANCHES = 64;

// [{kind: "text", text} | {kind: "gen", name, params} | {kind: "fork", texts}].
// Throws SyntaxError that names the hole.
export function parse(source) {
  const parts = [];
  let at = 0;
  let gens = 0;
  for (;;) {
    const open = source.indexOf("{{", at);
    const text = source.slice(at, open < 0 ? source.length : open);
    if (text) parts.push({ kind: "text", text });
    if (open < 0) break;
    const close = closing(source, open);
    const hole = read(source.slice(open + 2, close).trim());
    if (hole.kind === "gen") hole.name ||= `gen ${(gens += 1)}`;
    parts.push(hole);
    at = close + 2;
  }
  const branches = parts.reduce((product, part) => product * width(part), 1);
  if (branches > MAX_BRANCHES) {
    throw new SyntaxError(`This makes ${branches} branches; at most ${MAX_BRANCHES}.`);
  }
  return parts;
}

function width(part) {
  if (part.kind === "fork") return part.texts.length;
  return part.kind === "gen" ? Math.max(1, Number(part.params.n) || 1) : 1;
}

// Where the hole's }} stands; one inside a quoted text does not count.
function closing(source, open) {
  let quoted = false;
  for (let i = open + 2; i < source.length; i += 1) {
    if (quoted && source[i] === "\\") i += 1;
    else if (source[i] === '"') quoted = !quoted;
    else if (!quoted && source.startsWith("}}", i)) return i;
  }
  throw new SyntaxError(`${source.slice(open, open + 30)} ... has no }} at its end.`);
}

function read(hole) {
  const [, kind, rest] = /^(\w*)([^]*)$/.exec(hole);
  if (kind === "gen") return gen(rest, hole);
  if (kind === "fork") return { kind, texts: texts(rest, hole) };
  throw new SyntaxError(`{{${hole}}} is neither gen nor fork.`);
}

const QUOTED = String.raw`"(?:[^"\\]|\\[^])*"`;
const LIST = String.raw`\[(?:${QUOTED}|[^"\]])*\]`;
const SETTING = new RegExp(String.raw`\s+(\w+)=(${QUOTED}|${LIST}|[^\s"\[]+)`, "y");
const TEXT = new RegExp(String.raw`\s*(${QUOTED})`, "y");

function gen(rest, hole) {
  const { name = "", ...params } = Object.fromEntries(
    every(SETTING, rest, hole).map(([, key, value]) => [key, valueOf(value, hole)]),
  );
  if ("max_tokens" in params) {
    params.max_new_tokens = params.max_tokens;
    delete params.max_tokens;
  }
  return { kind: "gen", name: String(name), params };
}

function texts(rest, hole) {
  const found = every(TEXT, rest, hole).map(([, value]) => valueOf(value, hole));
  if (!found.length) throw new SyntaxError(`{{${hole}}} has no texts; write {{fork "a" "b"}}.`);
  return found;
}

// All matches of a sticky pattern, which together must be the whole text.
function every(pattern, text, hole) {
  const found = [];
  pattern.lastIndex = 0;
  let at = 0;
  for (let match; (match = pattern.exec(text)); at = pattern.lastIndex) found.push(match);
  if (text.slice(at).trim()) {
    throw new SyntaxError(`{{${hole}}} cannot be read from ${text.slice(at).trim()} on.`);
  }
  return found;
}

// JSON, or a bare word.
function valueOf(text, hole) {
  try {
    return JSON.parse(text);
  } catch {
    if (!/^["[]/.test(text)) return text;
    throw new SyntaxError(`In {{${hole}}}, ${text} is not JSON.`);
  }
}
