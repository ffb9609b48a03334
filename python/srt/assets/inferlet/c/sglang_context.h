/* Texts whose KV a program in C holds, page by page. `open_queue` stands before all else. */
#ifndef SGLANG_CONTEXT_H
#define SGLANG_CONTEXT_H

#include "sglang_inferlet.h"

enum { QUEUE = 1 };
static int page_size, page_count, emb_count;

static void open_queue(text facts) {
  page_size = (int)integer(member(facts, "page_size"));
  call("create_queue"), put_number("queue", QUEUE);
}

typedef struct { int *tokens, *pages; int count, computed, page_total, room; } context;

static context *new_context(int most) { /* of at most so many tokens */
  context *one = take(sizeof *one);
  one->tokens = take((unsigned)most * sizeof(int));
  one->pages = take((unsigned)most * sizeof(int));
  return one;
}

static void append(context *one, text ids) {
  for (const char *at = next(ids.at + 1); *at != ']'; at = next(behind(at)))
    one->tokens[one->count++] = (int)integer(value_at(at));
}

static context *forked(const context *from, int most) { /* shares the pages so far */
  context *one = new_context(most);
  copy(one->tokens, from->tokens, (unsigned)from->count * sizeof(int));
  copy(one->pages, from->pages, (unsigned)from->page_total * sizeof(int));
  one->count = from->count, one->computed = from->computed, one->page_total = from->page_total;
  return one; /* no room in a page that another text writes to */
}

/* Computes the tokens whose KV is missing, by `forward` or `forward_with_sampling`; returns the
 * embedding of the last one, whose distribution may be read. */
static int forward(context *one, const char *name) {
  int size = one->count - one->computed, *embs = take((unsigned)size * 2 * sizeof(int));
  int *places = embs + size, begun = one->page_total, seen = begun, first = begun - (one->room > 0);
  for (int i = 0; i < size; i++) embs[i] = ++emb_count, places[i] = one->computed + i;
  for (; one->room < size; one->room += page_size) one->pages[one->page_total++] = ++page_count;
  one->room -= size;
  if (one->page_total > begun) {
    call("alloc_kvpage"), put_number("queue", QUEUE);
    put_numbers("pages", one->pages + begun, (unsigned)(one->page_total - begun));
  }
  call("alloc_emb"), put_number("queue", QUEUE), put_numbers("embs", embs, (unsigned)size);
  call("embed_txt"), put_number("queue", QUEUE), put_numbers("embs", embs, (unsigned)size);
  put_numbers("tokens", one->tokens + one->computed, (unsigned)size);
  put_numbers("positions", places, (unsigned)size);
  call(name), put_number("queue", QUEUE), put_numbers("iemb", embs, (unsigned)size);
  put_numbers("ikv", one->pages, (unsigned)seen);
  put_numbers("okv", one->pages + first, (unsigned)(one->page_total - first));
  one->computed = one->count;
  return embs[size - 1];
}

#endif
