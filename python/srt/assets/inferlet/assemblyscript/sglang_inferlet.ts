// Inferlets in AssemblyScript (docs/inferlet-sandbox.md). A program makes calls, each answered by a
// function of the program in a later turn; between turns nothing of it runs:
//
//     import { call, finish, start } from "sglang_inferlet";
//     export { alloc, failure, turn } from "sglang_inferlet";
//
//     start((facts) => {
//       call("generate").text("text", "Hello").then((answer) => finish(answer.get("text").raw));
//     });
//
// Functions capture nothing: what they share are the variables of the module, and what a call is
// about is given to `about`. A refused call ends the program with its error, unless `otherwise` has
// a function for that. An error that is thrown ends it too; both name the line.
// Build with `sglang inferlet build FILE.ts` (AssemblyScript 0.27 or later).

let reason: ArrayBuffer | null = null;

/** Called where an error is thrown, and where a check fails. */
export function abort(message: string | null, file: string | null, line: u32, column: u32): void {
  reason = String.UTF8.encode(`${file ? file : ""}:${line}:${column}: ${message ? message : "abort"}`);
  unreachable();
}

// -- JSON, which is known to be valid --------------------------------------------------------------

/** A value, as its JSON text; empty where there is none. */
export class Json {
  constructor(public raw: string) {}

  get exists(): bool { return this.raw.length > 0; }

  /** The values of a list, or the names and values of an object in turn. */
  items(): Json[] {
    const found: Json[] = [], first = this.raw.length ? this.raw.charCodeAt(0) : 0;
    if (first != 0x5b && first != 0x7b) return found;
    let at = 1;
    while (true) {
      while (isBetween(this.raw.charCodeAt(at))) at++;
      const end = behind(this.raw, at);
      if (end == at) return found;
      found.push(new Json(this.raw.substring(at, end)));
      at = end;
    }
  }

  get(name: string): Json {
    if (!this.raw.startsWith("{")) return new Json("");
    const items = this.items();
    for (let i = 0; i < items.length; i += 2) if (items[i].text() == name) return items[i + 1];
    return new Json("");
  }

  integer(): i64 { return I64.parseInt(this.raw); }

  number(): f64 { return parseFloat(this.raw); }

  integers(): i32[] { return this.items().map<i32>((one) => <i32>one.integer()); }

  text(): string {
    let found = "", from = 1;
    for (let at = 1; at < this.raw.length - 1; at++) {
      if (this.raw.charCodeAt(at) != 0x5c) continue;
      found += this.raw.substring(from, at);
      const c = this.raw.charAt(++at), known = "bfnrt".indexOf(c);
      if (c == "u") found += String.fromCharCode(<i32>parseInt(this.raw.substr(at + 1, 4), 16)), at += 4;
      else found += known < 0 ? c : "\b\f\n\r\t".charAt(known);
      from = at + 1;
    }
    return found + this.raw.substring(from, this.raw.length - 1);
  }

  /** The bytes of a base64 text. */
  bytes(): Uint8Array {
    const found = new Uint8Array((this.raw.length - 2) * 3 / 4);
    let held = 0, bits = 0, size = 0;
    for (let at = 1; at < this.raw.length - 1; at++) {
      const digit = BASE64.indexOf(this.raw.charAt(at));
      if (digit < 0) break;
      held = held << 6 | digit;
      bits += 6;
      if (bits >= 8) bits -= 8, found[size++] = <u8>(held >> bits);
    }
    return found.subarray(0, size);
  }
}

const BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

function isBetween(c: i32): bool {
  return c == 0x20 || c == 0x0a || c == 0x0d || c == 0x09 || c == 0x2c || c == 0x3a; // and , :
}

/** The index behind the value that begins at `at`; `at` at the end of a list. */
function behind(raw: string, at: i32): i32 {
  for (let depth = 0; at < raw.length; ) {
    const c = raw.charCodeAt(at);
    if (c == 0x22) {
      while (raw.charCodeAt(++at) != 0x22) if (raw.charCodeAt(at) == 0x5c) at++;
    } else if (c == 0x5b || c == 0x7b) depth++;
    else if (c == 0x5d || c == 0x7d) {
      if (!depth) return at;
      depth--;
    } else if (!depth) {
      while (at < raw.length && !isBetween(raw.charCodeAt(at)) && (raw.charCodeAt(at) | 0x20) != 0x7d) at++;
      return at;
    }
    at++;
    if (!depth) return at;
  }
  return at;
}

/** A text as JSON. */
export function quoted(text: string): string {
  let json = "\"", from = 0;
  for (let at = 0; at < text.length; at++) {
    const c = text.charCodeAt(at);
    if (c >= 0x20 && c != 0x22 && c != 0x5c) continue;
    json += text.substring(from, at);
    json += c < 0x20 ? "\\u00" + (c < 16 ? "0" : "1") + "0123456789abcdef".charAt(c & 15) : "\\" + text.charAt(at);
    from = at + 1;
  }
  return json + text.substring(from) + "\"";
}

/** A list of integers as JSON. */
export function listed(values: i32[]): string { return "[" + values.join(",") + "]"; }

/** A number as the digits that give it again. */
export function decimal(value: f64): string { return isFinite(value) ? value.toString() : "null"; }

// -- calls -----------------------------------------------------------------------------------------

abstract class Waiting { abstract take(value: Json): void; }

class Plain extends Waiting {
  constructor(private work: (value: Json) => void) { super(); }
  take(value: Json): void { this.work(value); }
}

class About<T> extends Waiting {
  constructor(private data: T, private work: (data: T, value: Json) => void) { super(); }
  take(value: Json): void { this.work(this.data, value); }
}

/** A call that was made. Fields are added to it, and the function that gets its answer. */
export class Call {
  json: string;
  private done: Waiting | null = null;
  private refused: Waiting | null = null;

  constructor(name: string, public id: i32) { this.json = `{"call":"${name}","id":${id}`; }

  field(name: string, json: string): Call { this.json += `,"${name}":${json}`; return this; }
  text(name: string, value: string): Call { return this.field(name, quoted(value)); }
  integer(name: string, value: i64): Call { return this.field(name, value.toString()); }
  integers(name: string, values: i32[]): Call { return this.field(name, listed(values)); }

  then(work: (value: Json) => void): Call { this.done = new Plain(work); return this; }

  /** As `then`; the function gets `data` too. */
  about<T>(data: T, work: (data: T, value: Json) => void): Call { this.done = new About<T>(data, work); return this; }

  /** The function that gets {"code", "message"} where the call is refused. */
  otherwise(work: (error: Json) => void): Call { this.refused = new Plain(work); return this; }

  take(value: Json, error: Json): void {
    const done = this.done, refused = this.refused;
    if (!error.exists) { if (done) done.take(value); }
    else if (refused) refused.take(error);
    else fail(error.get("code").text() + ": " + error.get("message").text());
  }

  get isOpen(): bool { return this.done != null || this.refused != null; }
}

const made: Call[] = [];
const open = new Map<i32, Call>();
let count = 0;

/** Make a call. It leaves at the end of the turn. */
export function call(name: string): Call {
  made.push(new Call(name, ++count));
  return made[made.length - 1];
}

/** End the program with an error. */
export function fail(reason: string): void { call("exit").text("error", reason); }

/** End the program with a result, as JSON. */
export function finish(json: string): void { call("set_return").field("value", json), call("exit"); }

// -- texts whose KV a program holds ----------------------------------------------------------------

const QUEUES: i32 = 64; // texts of different queues are computed in one pass
let pageSize = 0, handles = 0, texts = 0;

function take(name: string, field: string, held: i32[], count: i32, queue: i32): void {
  if (count < 1) return;
  const added: i32[] = [];
  for (let i = 0; i < count; i++) added.push(++handles), held.push(handles);
  call(name).integer("queue", queue).integers(field, added);
}

/** A text with pages of its own, some of which forks of it share, up to the end of the run. */
export class Context {
  private pages: i32[] = [];
  private embs: i32[] = [];
  private computed: i32 = 0;
  private room: i32 = 0;
  private last: i32 = 0; // index of the last token's embedding

  private queue: i32 = texts++ % QUEUES;

  constructor(public tokens: i32[]) { if (texts <= QUEUES) call("create_queue").integer("queue", this.queue); }

  /** A text that begins with this one. Neither writes to a page of the other. */
  fork(): Context {
    const one = new Context(this.tokens.slice());
    one.pages = this.pages.slice();
    one.computed = this.computed;
    this.room = 0;
    return one;
  }

  /** Asks for the text of the tokens from `start` on. */
  text(start: i32): Call { return call("detokenize").integers("tokens", this.tokens.slice(start)); }

  /** Asks for the `k` most likely tokens behind the text, whose last one is not computed yet. */
  nextDist(k: i32): Call {
    const forward = this.forward("forward"), emb = this.embs[this.last];
    forward.integers("oemb", [emb]);
    return call("get_next_dist").integer("queue", this.queue).integer("emb", emb).integer("k", k);
  }

  /** Asks for a token behind the text that the engine samples by `params`, a JSON object. */
  sample(params: string): Call { return this.forward("forward_with_sampling").field("params", params); }

  private forward(name: string): Call {
    const size = this.tokens.length - this.computed, seen = this.pages.length;
    if (size < 1) throw new Error("all tokens of the text are computed; append one first");
    const first = seen - <i32>(this.room > 0), missing = max(0, size - this.room) + pageSize - 1;
    const positions = new Array<i32>(size), fresh = missing / pageSize;
    for (let i = 0; i < size; i++) positions[i] = this.computed + i;
    this.room += fresh * pageSize - size;
    take("alloc_kvpage", "pages", this.pages, fresh, this.queue);
    take("alloc_emb", "embs", this.embs, size - this.embs.length, this.queue);
    const embs = this.embs.slice(0, size), one = call("embed_txt").integer("queue", this.queue);
    one.integers("embs", embs).integers("positions", positions);
    one.integers("tokens", this.tokens.slice(this.computed));
    this.computed = this.tokens.length;
    this.last = size - 1;
    const forward = call(name).integer("queue", this.queue).integers("iemb", embs);
    return forward.integers("ikv", this.pages.slice(0, seen)).integers("okv", this.pages.slice(first));
  }
}

// -- turns -----------------------------------------------------------------------------------------

let begin: ((facts: Json) => void) | null = null;
let input = new ArrayBuffer(0);
let output = new ArrayBuffer(0);

/** Have `main` begin the program with its facts: arguments, eos, page_size and others. */
export function start(main: (facts: Json) => void): void { begin = main; }

function packed(text: ArrayBuffer): u64 { return <u64>changetype<usize>(text) << 32 | <u64>text.byteLength; }

export function alloc(size: i32): usize { return changetype<usize>(input = new ArrayBuffer(size)); }

export function turn(at: usize, size: i32): u64 {
  const text = new Json(String.UTF8.decodeUnsafe(at, size)), main = begin;
  if (main) {
    begin = null;
    pageSize = <i32>text.get("page_size").integer();
    main(text);
  } else {
    const answers = text.items();
    for (let i = 0; i < answers.length; i++) {
      const id = <i32>answers[i].get("id").integer();
      if (!open.has(id)) continue;
      const one = open.get(id);
      open.delete(id);
      one.take(answers[i].get("value"), answers[i].get("error"));
    }
  }
  const texts = new Array<string>(made.length);
  for (let i = 0; i < made.length; i++) {
    texts[i] = made[i].json + "}";
    if (made[i].isOpen) open.set(made[i].id, made[i]);
  }
  made.length = 0;
  output = String.UTF8.encode("[" + texts.join(",") + "]");
  __collect(); // between turns no stack refers to anything
  return packed(output);
}

/** The text of the error that has ended a turn. */
export function failure(): u64 { return reason ? packed(reason!) : 0; }
