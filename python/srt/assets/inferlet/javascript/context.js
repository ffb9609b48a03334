// Context: a text whose KV a program holds page by page. The KV of its last token is computed when
// what follows is needed, so a fork can go on at once.

const SPARE = 16; // pages that are allocated at a time
const TOP = 256;
const WHOLE = -2; // tokens of a distribution: all

/** A text with pages of its own, some shared with forks of it. `tokens`: all of it; `computed`: how
 * many of them have KV. */
export class Context {
  #blocks = new Map(); // page of each block of page_size tokens
  #holders = new Map(); // number of contexts that use a page, of this and its forks
  #spare = [];
  #embs = [];
  #dist = null; // behind the last token, where that is computed

  /** `queue`: of its calls; without it a new one. `start`: position of its first token. */
  constructor(ctx, { queue = null, start = 0 } = {}) {
    this.ctx = ctx;
    this.queue = queue ?? ctx.create_queue();
    this.start = start;
    this.tokens = [];
    this.computed = 0;
  }

  // Text.

  /** Append a text; the first one gets the tokens that a prompt begins with. */
  async fill(text) {
    this.extend(await this.ctx.tokenize(text, !this.tokens.length));
    return this;
  }

  /** Append tokens. */
  extend(tokens) {
    const total = this.start + this.tokens.length + tokens.length;
    if (total > this.ctx.context_length) {
      throw new RangeError(
        `the text would have ${total} tokens; at most ${this.ctx.context_length}`,
      );
    }
    for (const one of tokens) this.tokens.push(one);
    if (tokens.length) this.#dist = null;
  }

  /** The text of the tokens from `start` on. */
  text(start = 0) {
    return this.ctx.detokenize(this.tokens.slice(start));
  }

  // Generation.

  /** The distribution behind the text. */
  async next_dist(k = TOP, probe = []) {
    const wanted = k === WHOLE ? this.ctx.vocab_size : k;
    if (!this.#dist || this.#dist.length < wanted || probe.length) {
      if (this.computed === this.tokens.length) this.forget(this.computed - 1);
      [this.#dist] = await this.next_dists([], k, probe);
    }
    return this.#dist;
  }

  /** The distributions behind the text, and behind it with each more of `drafts`, in one pass. The
   * drafts belong to the text from now on; `cut` removes those that are wrong. */
  next_dists(drafts, k = 1, probe = []) {
    this.extend(drafts);
    const iemb = this.#inputs(this.tokens.length - this.computed);
    const oemb = iemb.slice(iemb.length - drafts.length - 1);
    this.ctx.forward(this.queue, { ...this.#places(iemb.length), iemb, oemb });
    return Promise.all(oemb.map((emb) => this.ctx.get_next_dist(this.queue, emb, k, probe)));
  }

  /** A token behind the text, which the engine samples; it is not appended. `params`: as of
   * /generate. */
  sample(params, history = []) {
    if (this.computed === this.tokens.length) this.forget(this.computed - 1);
    const iemb = this.#inputs(this.tokens.length - this.computed);
    const inputs = { ...this.#places(iemb.length), iemb };
    const more = { uniform: Math.random(), ...(history.length && { history }) };
    return this.ctx.forward_with_sampling(this.queue, params, inputs, more);
  }

  /** Append tokens until an end token, `stop` or `max_tokens`; their text.
   *
   * `sampler(dist)` takes each token in the program; without one the engine samples at
   * `temperature`. `stop(context, start)` is awaited with the index of the first new token. */
  async generate_until({ max_tokens = 128, stop = null, sampler = null, temperature = 0 } = {}) {
    const start = this.tokens.length;
    for (let step = 0; step < max_tokens; step++) {
      const token = sampler
        ? sampler(await this.next_dist())
        : await this.sample({ temperature });
      if (this.ctx.eos.includes(token)) break;
      this.extend([token]);
      if (stop && (await stop(this, start))) break;
    }
    return this.text(start);
  }

  /** Compute the KV of all tokens but the last, or of that too, without waiting for it. */
  flush(last = false) {
    const count = this.tokens.length - this.computed - !last;
    if (count <= 0) return;
    const iemb = this.#inputs(count);
    this.ctx.forward(this.queue, { ...this.#places(count), iemb });
  }

  // Pages.

  /** Texts that begin with this one, whose pages they share. */
  async fork(count = 1) {
    this.flush();
    return Array.from({ length: count }, () => this.#child());
  }

  #child() {
    const child = new Context(this.ctx, { start: this.start });
    child.tokens = [...this.tokens];
    child.computed = this.computed;
    child.#holders = this.#holders;
    child.#dist = this.#dist;
    child.#blocks = new Map(this.#blocks);
    for (const page of child.pages) this.#holders.set(page, this.#holders.get(page) + 1);
    return child;
  }

  /** Append what the forks have generated behind token `since`, in order, and free them. */
  async join(others, since) {
    for (const other of others) {
      this.extend(other.tokens.slice(since));
      await other.free();
    }
  }

  /** Remove the tokens from `length` on. */
  cut(length) {
    this.forget(length);
    this.tokens.length = Math.min(length, this.tokens.length);
  }

  /** Give up the KV of the tokens from `length` on; they are computed again. */
  forget(length) {
    const size = this.ctx.page_size;
    for (const [block, page] of [...this.#blocks]) {
      if ((block + 1) * size <= length) continue;
      const kept = Math.max(0, length - block * size);
      if (!kept) {
        this.#blocks.delete(block);
        this.#release([page], true);
      } else if (this.#holders.get(page) === 1) {
        this.ctx.mask_kvpage(this.queue, page, range(size).map((i) => i < kept));
      } else {
        this.#blocks.set(block, this.#copy(page, kept));
        this.#release([page]);
      }
    }
    this.computed = Math.min(this.computed, length);
    this.#dist = null;
  }

  /** Give all pages back. */
  async free() {
    this.#release(this.pages);
    this.#blocks.clear();
    if (this.#spare.length) this.ctx.dealloc_kvpage(this.queue, this.#spare);
    this.ctx.dealloc_emb(this.queue, this.#embs);
    this.#spare = [];
    this.#embs = [];
    this.computed = 0;
  }

  /** The pages that the next forward sees, in order. */
  get pages() {
    return [...this.#blocks.values()];
  }

  /** Embeddings with the next `count` tokens that are to be computed. */
  #inputs(count) {
    const missing = count - this.#embs.length;
    if (missing > 0) this.#embs.push(...this.ctx.alloc_emb(this.queue, missing));
    const tokens = this.tokens.slice(this.computed, this.computed + count);
    const positions = range(count).map((i) => this.start + this.computed + i);
    const embs = this.#embs.slice(0, count);
    this.ctx.embed_txt(this.queue, tokens, positions, embs);
    return embs;
  }

  /** Pages that the next `count` tokens see, and those that their KV is written to. */
  #places(count) {
    const size = this.ctx.page_size;
    const offset = this.computed % size;
    let block = Math.floor(this.computed / size);
    const old = this.#blocks.get(block);
    if (offset && this.#holders.get(old) > 1) {
      this.#blocks.set(block, this.#copy(old, offset));
      this.#release([old]);
    }
    const ikv = this.pages;
    const okv = offset ? [this.#blocks.get(block++)] : [];
    const last = Math.floor((this.computed + count - 1) / size);
    const missing = last - block + 1 - this.#spare.length;
    if (missing > 0) {
      const wanted = missing + Math.floor(SPARE / size);
      this.#spare.push(...this.ctx.alloc_kvpage(this.queue, wanted));
    }
    for (; block <= last; block++) {
      const page = this.#spare.shift();
      this.#blocks.set(block, page);
      this.#holders.set(page, 1);
      okv.push(page);
    }
    this.computed += count;
    return { ikv, okv };
  }

  /** A page of this text alone with the first slots of another. */
  #copy(page, count) {
    const [own] = this.ctx.alloc_kvpage(this.queue, 1);
    const size = this.ctx.page_size;
    const slots = (one) => range(count).map((i) => one * size + i);
    this.ctx.copy_kvpage(this.queue, slots(page), slots(own));
    this.#holders.set(own, 1);
    return own;
  }

  /** Use pages no more; those that no fork uses are freed, or kept as `spare`. */
  #release(pages, spare = false) {
    const gone = [];
    for (const page of pages) {
      const left = this.#holders.get(page) - 1;
      if (left) {
        this.#holders.set(page, left);
        continue;
      }
      this.#holders.delete(page);
      if (spare) {
        this.ctx.mask_kvpage(this.queue, page, Array(this.ctx.page_size).fill(false));
        this.#spare.unshift(page);
      } else {
        gone.push(page);
      }
    }
    if (gone.length) this.ctx.dealloc_kvpage(this.queue, gone);
  }
}

/** Stop once the new text has any of these. */
export function at_text(...stops) {
  return async (context, start) => {
    const text = await context.text(start);
    return stops.some((one) => text.includes(one));
  };
}

/** Stop behind any of these tokens. */
export function at_tokens(ids) {
  const ends = new Set(ids);
  return async (context) => ends.has(context.tokens.at(-1));
}

const range = (count) => [...Array(count).keys()];
