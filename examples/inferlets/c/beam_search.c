/* Beam search: the most likely texts of a fixed length, or up to an end token. Beams share the pages
 * of their common beginning. Arguments: the prompt, beams, most tokens. As beam_search.py. */
#include "sglang_context.h"

typedef struct { double score; context *line; int *ids; float *logprobs; int known; } beam;
typedef struct { double score; beam *from; int token; } candidate;
typedef struct { double score; int *tokens, count; text shown; } result;

static beam *beams;
static result *results;
static text eos;
static int width = 3, most = 10, start, step, beam_count, result_count, missing;

static void ask(beam *one);

static void add_result(double score, const context *line, int token) {
  result *one = &results[result_count++];
  *one = (result){0, take((unsigned)(line->count - start + 1) * sizeof(int)), line->count - start, {0, 0}};
  copy(one->tokens, line->tokens + start, (unsigned)one->count * sizeof(int));
  if (token >= 0) one->tokens[one->count++] = token;
  one->score = score / one->count;
}

static void shown(void *data, text value) {
  ((result *)data)->shown = kept(value);
  if (--missing) return;
  writer to = {0, 0, 0};
  put_word(&to, "[");
  for (int i = 0; i < result_count; i++) {
    put_word(&to, i ? ",[" : "["), put_decimal(&to, results[i].score);
    put_word(&to, ","), put(&to, results[i].shown), put_word(&to, "]");
  }
  put_word(&to, "]");
  finish((text){to.at, to.size});
}

static void show_best(void) {
  for (int i = 0; i < beam_count; i++) add_result(beams[i].score, beams[i].line, -1);
  for (int i = 1; i < result_count; i++) /* the first of equal ones stays first */
    for (int j = i; j && results[j].score > results[j - 1].score; j--) {
      result other = results[j];
      results[j] = results[j - 1], results[j - 1] = other;
    }
  missing = result_count = result_count < width ? result_count : width;
  for (int i = 0; i < result_count; i++) {
    call("detokenize"), put_numbers("tokens", results[i].tokens, (unsigned)results[i].count);
    then(shown, &results[i]);
  }
}

/* The best 2 * width continuations of all beams, best first. */
static int candidates(candidate *found) {
  int total = 0;
  for (int b = 0; b < beam_count; b++)
    for (int k = 0; k < beams[b].known; k++) {
      candidate one = {beams[b].score + (double)beams[b].logprobs[k], &beams[b], beams[b].ids[k]};
      int at = total;
      while (at && found[at - 1].score < one.score) at--;
      if (at >= 2 * width) continue;
      total += total < 2 * width;
      for (int i = total - 1; i > at; i--) found[i] = found[i - 1];
      found[at] = one;
    }
  return total;
}

static void go_on(void) {
  candidate *best = take(2 * (unsigned)width * sizeof *best);
  beam *grown = take((unsigned)width * sizeof *grown);
  int total = candidates(best), grown_count = 0;
  for (int rank = 0; rank < total; rank++) {
    candidate *one = &best[rank];
    if (among(eos, one->token)) {
      if (rank < width) add_result(one->score, one->from->line, one->token);
    } else if (grown_count < width) {
      context *line = forked(one->from->line, start + most + 1);
      line->tokens[line->count++] = one->token;
      grown[grown_count++] = (beam){one->score, line, 0, 0, 0};
    }
  }
  beams = grown, beam_count = grown_count;
  if (++step == most || !beam_count) { show_best(); return; }
  for (int i = 0; i < beam_count; i++) ask(&beams[i]);
}

static void read_dist(void *data, text dist) {
  beam *one = data;
  one->ids = unpacked(member(dist, "ids"));
  one->logprobs = unpacked(member(dist, "logprobs"));
  one->known = 2 * width;
  if (!--missing) go_on();
}

static void ask(beam *one) {
  int emb = forward(one->line, "forward");
  put_numbers("oemb", &emb, 1);
  call("get_next_dist"), put_number("queue", QUEUE), put_number("emb", emb);
  put_number("k", 2 * width), then(read_dist, one);
  missing++;
}

static void tokenized(void *data, text ids) {
  start = (int)count(ids);
  results = take((unsigned)(width * (most + 1)) * sizeof *results);
  beams = take(sizeof *beams);
  beams->line = new_context(start + most + 1);
  beam_count = 1;
  append(beams->line, ids);
  if (most) ask(beams);
  else show_best();
}

void begin(text facts) {
  open_queue(facts);
  text given = member(facts, "arguments");
  eos = kept(member(facts, "eos"));
  if (count(given)) {
    width = (int)integer(unquoted(element(given, 1)));
    most = (int)integer(unquoted(element(given, 2)));
  }
  call("tokenize"), put_json("special", word("true")), then(tokenized, 0);
  put_string("text", count(given) ? unquoted(element(given, 0)) : word("The weather today"));
}
