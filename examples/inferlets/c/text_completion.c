/* Text completion by forward passes of the program's own: one token a pass, sampled by the engine.
 * Arguments: the prompt, most tokens. As text_completion.py. */
#include "sglang_context.h"

static context *line;
static text eos;
static int start, most = 16;

static void done(void *data, text value) { finish(value); }

static void sampled(void *data, text token);

static void next_token(int wanted) {
  if (wanted) {
    forward(line, "forward_with_sampling");
    put_json("params", word("{\"temperature\":0}")), then(sampled, 0);
  } else {
    call("detokenize"), then(done, 0);
    put_numbers("tokens", line->tokens + start, (unsigned)(line->count - start));
  }
}

static void sampled(void *data, text token) {
  int end = among(eos, integer(token));
  if (!end) line->tokens[line->count++] = (int)integer(token);
  next_token(!end && line->count < start + most);
}

static void tokenized(void *data, text ids) {
  start = (int)count(ids);
  line = new_context(start + most);
  append(line, ids);
  next_token(most > 0);
}

void begin(text facts) {
  open_queue(facts);
  text given = member(facts, "arguments");
  eos = kept(member(facts, "eos"));
  if (count(given)) most = (int)integer(unquoted(element(given, 1)));
  call("tokenize"), put_json("special", word("true")), then(tokenized, 0);
  put_string("text", count(given) ? unquoted(element(given, 0)) : word("The weather today"));
}
