// Ctx: the calls of a program as methods, by the names of the library for Python.
//
// A method whose call has an answer gives a promise. Pages, embeddings and queues are numbers, which
// the methods that make them return. Optional parameters stand in an object at the end.

import { ask, emit } from "./turns.js";

const HANDLES = 1 << 20;
const FEW = 8; // numbers that are not packed
const TOP = 256;

/** Numbers below HANDLES. One that was given back is taken last. */
class HandleNumbers {
  #next = 0;
  #free = [];

  take(count) {
    const fresh = Math.min(count, HANDLES - this.#next);
    if (count - fresh > this.#free.length) {
      throw new RangeError(`${count} more handles would be more than ${HANDLES}; free some first`);
    }
    const found = Array.from({ length: fresh }, (_, i) => this.#next + i);
    this.#next += fresh;
    return found.concat(this.#free.splice(0, count - fresh));
  }

  /** The first of `count` numbers that follow each other. */
  run(count) {
    if (this.#next + count > HANDLES) {
      throw new RangeError(`${count} handles in a row would be more than ${HANDLES}`);
    }
    this.#next += count;
    return this.#next - count;
  }

  give(numbers) {
    for (const one of numbers) this.#free.push(one);
  }
}

/** A distribution of the next token: `ids`, `logprobs`, and `probe`, those of tokens asked for. */
export class Dist {
  constructor(answer) {
    this.logprobs = new Float32Array(raw(answer.logprobs).buffer);
    this.probe = new Float32Array(raw(answer.probe).buffer);
    const ids = new Int32Array(raw(answer.ids).buffer);
    this.whole = !ids.length; // all of the vocabulary, in order of ids
    this.ids = this.whole ? Int32Array.from(this.logprobs.keys()) : ids;
  }

  get length() {
    return this.ids.length;
  }

  /** The most likely token; of equal ones the first. */
  max_index() {
    return this.whole ? this.top(1)[0][0] : this.ids[0];
  }

  /** The `k` most likely as [token, log-probability], most likely first. */
  top(k) {
    const order = [...this.ids.keys()].sort((a, b) => this.logprobs[b] - this.logprobs[a]);
    return order.slice(0, k).map((i) => [this.ids[i], this.logprobs[i]]);
  }

  /** Probabilities in the order of `ids`. */
  probs() {
    return Array.from(this.logprobs, Math.exp);
  }
}

/** The argument of `main`: page_size, vocab_size, context_length and eos are those of the model. */
export class Ctx {
  #facts;
  #pages = new HandleNumbers();
  #embs = new HandleNumbers();
  #queues = new HandleNumbers();

  constructor(facts) {
    this.#facts = facts;
    this.page_size = facts.page_size;
    this.vocab_size = facts.vocab_size;
    this.context_length = facts.context_length;
    this.eos = facts.eos;
  }

  // Runtime.

  get_arg = () => [...this.#facts.arguments];
  instance_id = () => this.#facts.instance_id;
  version = () => this.#facts.version;
  available_models = () => [...this.#facts.models];
  available_traits = (model) => [...this.#facts.traits[model ?? this.#facts.models[0]]];
  send = (message) => void emit("send", { message });
  receive = () => ask("receive");
  send_blob = (blob) => void emit("send_blob", { blob: coded(blob) });
  receive_blob = async () => raw(await ask("receive_blob"));
  broadcast = (topic, message) => void emit("broadcast", { topic, message });
  /** The next message of a topic; the first time it subscribes. */
  subscribe = (topic) => ask("subscribe", { topic });
  unsubscribe = (topic) => void emit("unsubscribe", { topic });
  http_get = (url) => ask("http_get", { url });
  http_post = (url, body) => ask("http_post", { url, body });
  set_return = (value) => void emit("set_return", { value });
  store_set = (key, value) => void emit("store_set", { key, value: coded(value) });
  store_delete = (key) => void emit("store_delete", { key });
  store_list = (prefix = "") => ask("store_list", { prefix });
  synchronize = (queue) => ask("synchronize", { queue });
  set_queue_priority = (queue, priority) => void emit("set_queue_priority", { queue, priority });

  async store_get(key) {
    const value = await ask("store_get", { key });
    return value === null ? null : raw(value);
  }

  create_queue(model = "") {
    const [queue] = this.#queues.take(1);
    emit("create_queue", { queue, model });
    return queue;
  }

  // Pages.

  alloc_kvpage(queue, count) {
    const pages = this.#pages.take(count);
    emit("alloc_kvpage", { queue, pages });
    return pages;
  }

  dealloc_kvpage(queue, pages) {
    emit("dealloc_kvpage", { queue, pages: packed(pages) });
    this.#pages.give(pages);
  }

  copy_kvpage(queue, sources, targets) {
    emit("copy_kvpage", { queue, sources: packed(sources), targets: packed(targets) });
  }

  mask_kvpage = (queue, page, mask) => void emit("mask_kvpage", { queue, page, mask });

  export_kvpage(queue, pages, name) {
    emit("export_kvpage", { queue, pages: packed(pages), name });
  }

  /** The pages of an export, which has at most `most`. */
  async import_kvpage(queue, name, most = 1 << 12) {
    const first = this.#pages.run(most);
    return row(first, await ask("import_kvpage", { queue, name, first }));
  }

  list_exports = (prefix = "") => ask("list_exports", { prefix });
  release_export = (name) => void emit("release_export", { name });

  /** Read-only pages of the text's whole pages, from the prefix cache. */
  async prefix(queue, tokens) {
    const first = this.#pages.run(Math.floor(tokens.length / this.page_size));
    return row(first, await ask("prefix", { queue, tokens: packed(tokens), first }));
  }

  // Embeddings and forwards.

  alloc_emb(queue, count, states = false) {
    const embs = this.#embs.take(count);
    emit("alloc_emb", { queue, embs, states });
    return embs;
  }

  dealloc_emb(queue, embs) {
    emit("dealloc_emb", { queue, embs: packed(embs) });
    this.#embs.give(embs);
  }

  embed_txt(queue, tokens, positions, embs) {
    const sent = { tokens: packed(tokens), positions: packed(positions), embs: packed(embs) };
    emit("embed_txt", { queue, ...sent });
  }

  num_embs_needed = (width, height) => ask("num_embs_needed", { width, height });

  embed_img(queue, blob, embs) {
    emit("embed_img", { queue, blob: coded(blob), embs: packed(embs) });
  }

  /** `inputs`: ikv, iemb, okv, oemb, mask; what is missing is empty. */
  forward = (queue, inputs) => void emit("forward", { queue, ...inputs_of(inputs) });

  forward_with_adapter(queue, adapter, inputs) {
    emit("forward_with_adapter", { queue, adapter, ...inputs_of(inputs) });
  }

  /** The token sampled behind the last of `iemb`. `params`: as of /generate. `more`: uniform,
   * history, allowed. */
  forward_with_sampling(queue, params, inputs, more = {}) {
    return ask("forward_with_sampling", { queue, params, ...inputs_of(inputs), ...more });
  }

  /** The `k` most likely tokens behind an output embedding; -2: all of the vocabulary. */
  async get_next_dist(queue, emb, k = TOP, probe = []) {
    return new Dist(await ask("get_next_dist", { queue, emb, k, probe: packed(probe) }));
  }

  /** Token ids; `special`: with those that a prompt begins with. */
  tokenize = (text, special = false) => ask("tokenize", { text, special });
  detokenize = (tokens) => ask("detokenize", { tokens: packed(tokens) });
  get_vocab = async () => (await ask("get_vocab")).map(raw);

  // Beside the paper's.

  /** A completion that the server runs alone: text, tokens, finish. `params`: as of /generate. */
  generate = (prompt, params = {}) => ask("generate", { params, ...prompt_of(prompt) });
  /** The likeliest choice behind a prompt: index, text, logprobs. */
  select = (prompt, choices) => ask("select", { choices, ...prompt_of(prompt) });
  sleep = (seconds) => ask("sleep", { seconds });
  /** Seconds since the start of the run. */
  now = () => ask("now");
  log = (message) => void emit("log", { message });
}

/** Numbers as int32 in base64; few of them as a list. */
function packed(numbers) {
  if (numbers.length <= FEW) return Array.from(numbers);
  return new Uint8Array(Int32Array.from(numbers).buffer).toBase64();
}

const raw = (text) => Uint8Array.fromBase64(text);
const coded = (bytes) => new Uint8Array(bytes.buffer ?? bytes, bytes.byteOffset).toBase64();
const row = (first, count) => Array.from({ length: count }, (_, i) => first + i);

function inputs_of({ ikv = [], iemb = [], okv = [], oemb = [], mask = null }) {
  const found = { ikv: packed(ikv), iemb: packed(iemb) };
  if (okv.length) found.okv = packed(okv);
  if (oemb.length) found.oemb = packed(oemb);
  if (mask) found.mask = mask;
  return found;
}

function prompt_of(prompt) {
  return typeof prompt === "string" ? { text: prompt } : { tokens: packed(prompt) };
}
