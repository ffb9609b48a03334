// The runner: one program in a sandbox, text in and text out (program.wit).
//
// A turn takes answers, lets the program run until all of it waits, and returns the calls that were
// made. Between turns no stack is alive. Random numbers come from the run's seed; clocks stand still.

import { Context, at_text, at_tokens } from "./context.js";
import { Ctx, Dist } from "./ctx.js";
import { CallError, ask, calls, emit, open, take } from "./turns.js";

const FILE = "program.js"; // as errors name the source
const FRAME = /^(?:async\*)?(.*)@program\.js:(\d+):(\d+)$/;
const STREAMS = /Stream|^Blob$|^File$|^FormData$|^fetch$|^Re(quest|sponse)$|Interval$|^Performance$/;
const FULL = "out of memory"; // what the engine throws
const MOST_FRAMES = 20;
const MOST_TEXT = 200; // characters of a line
const Moment = globalThis.Date;
const stream = Blob.prototype.stream;
const empty = new Blob([" "]);
const { stringify, parse } = JSON;
const timers = new Set();
let timer = 0;
let lines = []; // of the source
let ended = null; // what the program has returned, or its error
let over = false;

export async function start(source, facts) {
  lines = source.split("\n");
  try {
    const main = compiled(source);
    const ctx = new Ctx(parse(facts));
    (async () => main(ctx))().then(
      (value) => (ended = { value }),
      (error) => (ended = { error: told(error) }),
    );
  } catch (error) {
    ended = { error: told(error) };
  }
  await quiet();
  return made();
}

export async function turn(answers) {
  take(parse(answers));
  await quiet();
  return made();
}

/** Resolves once the program waits: the engine looks at streams when no other work is left. */
async function quiet() {
  const { value } = await stream.call(empty).getReader().read();
  value.buffer.transfer(0); // frees 8 KB, of which the collector counts one byte
}

/** The calls of a turn as JSON; the last one ends a program that has ended. */
function made() {
  try {
    if (!ended && !open.size) ended = { error: "the program waits, but for no call's answer" };
    if (ended && !over) {
      if (ended.value !== undefined && ended.value !== null) {
        emit("set_return", { value: ended.value });
      }
      over = true;
      emit("exit", ended.error === undefined ? {} : { error: ended.error });
    }
    return stringify(calls());
  } catch (error) {
    over = true;
    calls();
    emit("exit", { error: told(error) });
    return stringify(calls());
  }
}

function compiled(source) {
  const found = "typeof main === 'undefined' ? undefined : main";
  const main = (0, eval)(`${source}\n;${found}\n//# sourceURL=${FILE}`);
  if (typeof main !== "function") {
    throw new TypeError("the program has no main; begin it with `async function main(ctx) {`");
  }
  return main;
}

/** An error with the lines of the source that it has passed, the innermost first. */
function told(error) {
  if (error === FULL) return `${FULL}; the run's limit \`memory\` gives it more`;
  const frames = [];
  for (const line of `${error?.stack ?? ""}`.split("\n")) {
    const found = line.match(FRAME);
    if (found) frames.push(placed(found[1], Number(found[2]), `:${found[3]}`));
  }
  const more = frames.splice(MOST_FRAMES).length;
  if (more) frames.push(`... ${more} more`);
  if (!frames.length && error instanceof SyntaxError) frames.push(placed("", error.lineNumber));
  return [`${error}`, ...frames].join("\n    at ");
}

function placed(name, line, column = "") {
  const text = (lines[line - 1] ?? "").trim().slice(0, MOST_TEXT);
  return `${name || "the top"} (${FILE}:${line}${column}): ${text}`;
}

function shown(value) {
  if (value instanceof Error) return told(value);
  try {
    return stringify(value) ?? String(value);
  } catch {
    return String(value);
  }
}

// What a sandbox has not is replaced: standard output, timers, clocks. Streams and requests are
// removed: they would go on after a turn's end.

function write(...parts) {
  const text = parts.map((part) => (typeof part === "string" ? part : shown(part))).join(" ");
  for (const message of text.split("\n")) emit("log", { message });
}

function setTimeout(work, milliseconds = 0, ...values) {
  const id = ++timer;
  timers.add(id);
  const slept = ask("sleep", { seconds: Math.max(0, milliseconds) / 1000 });
  slept.then(() => timers.delete(id) && work(...values)).catch((error) => write(told(error)));
  return id;
}

function clearTimeout(id) {
  timers.delete(id);
}

function Date(...values) {
  if (!new.target) return new Moment(0).toString();
  return Reflect.construct(Moment, values.length ? values : [0], new.target);
}
Date.prototype = Moment.prototype;
Date.prototype.constructor = Date;
Object.assign(Date, { now: () => 0, parse: Moment.parse, UTC: Moment.UTC });

for (const name of ["log", "info", "warn", "error", "debug", "trace"]) console[name] = write;
for (const name of Object.getOwnPropertyNames(globalThis)) {
  if (STREAMS.test(name)) delete globalThis[name];
}
Uint8Array.prototype.toJSON = function () {
  return this.toBase64();
};
Object.assign(globalThis, {
  Date, setTimeout, clearTimeout, performance: { now: () => 0 },
  Context, CallError, Dist, at_text, at_tokens,
});
