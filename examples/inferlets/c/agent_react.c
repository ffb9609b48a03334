/* ReACT agent: thoughts and calls of web APIs in turn, all in one text whose KV stays. Arguments: the
 * URL of the API, the question, most turns, most tokens of a turn. As agent_react.py. */
#include "sglang_context.h"

static const char *TASK =
    "Question: How many legs has a cow?\nAct: cow\nSee: A cow has four legs.\nAnswer: four\n";
static context *line;
static text eos, url, seen;
static const char *before = "Act:"; /* of the line that a turn goes on with */
static int start, turn_start, turns, most, made;

static void sampled(void *data, text token);

static void detokenize(int first, answer function) {
  call("detokenize"), then(function, 0);
  put_numbers("tokens", line->tokens + first, (unsigned)(line->count - first));
}

static void done(void *data, text value) {
  writer to = {0, 0, 0};
  put_word(&to, "{\"text\":"), put(&to, value);
  put_word(&to, ",\"calls\":"), put_integer(&to, made);
  put_word(&to, ",\"tokens\":"), put_integer(&to, line->count), put_word(&to, "}");
  finish((text){to.at, to.size});
}

static void next_token(void) {
  forward(line, "forward_with_sampling");
  put_json("params", word("{\"temperature\":0}")), then(sampled, 0);
}

static void begin_turn(void *data, text ids) {
  append(line, ids);
  if (!turn_start) start = line->count;
  turn_start = line->count;
  if (turns-- > 0) next_token();
  else detokenize(start, done);
}

static void go_on(void *data, text value) { /* behind the observation; the value: the text so far */
  text all = unquoted(value);
  writer to = {0, 0, 0};
  if (!all.size || all.at[all.size - 1] != '\n') put_word(&to, "\n");
  put_word(&to, "See: "), put(&to, seen), put_word(&to, "\n");
  made++, before = "";
  call("tokenize"), put_string("text", (text){to.at, to.size}), then(begin_turn, 0);
}

static void observed(void *data, text value) {
  seen = unquoted(value);
  if (place(seen, '\n') >= 0) seen.size = (unsigned)place(seen, '\n');
  detokenize(start, go_on);
}

static void refused(void *data, text error) {
  writer to = {0, 0, 0};
  put_word(&to, "error "), put(&to, unquoted(member(error, "code")));
  seen = (text){to.at, to.size};
  detokenize(start, go_on);
}

static void act(text query) {
  writer to = {0, 0, 0};
  put(&to, url), put_word(&to, "?q=");
  while (query.size && *query.at == ' ') query.at++, query.size--;
  while (query.size && query.at[query.size - 1] == ' ') query.size--;
  for (unsigned i = 0; i < query.size; i++) {
    unsigned char c = (unsigned char)query.at[i];
    int plain = (c | 32) - 'a' < 26u || c - '0' < 10u || place(word("_.-~/"), (char)c) >= 0;
    if (plain) put(&to, (text){query.at + i, 1});
    else put_word(&to, "%"), put(&to, (text){&"0123456789ABCDEF"[c >> 4], 1}),
         put(&to, (text){&"0123456789ABCDEF"[c & 15], 1});
  }
  call("http_get"), put_string("url", (text){to.at, to.size}), then(observed, 0), otherwise(refused);
}

static void end_turn(void *data, text value) {
  text new = unquoted(value);
  writer to = {0, 0, 0};
  if (place(new, '\n') >= 0) new.size = (unsigned)place(new, '\n');
  put_word(&to, before), put(&to, new);
  if (to.size > 4 && same((text){to.at, 4}, "Act:")) act((text){to.at + 4, to.size - 4});
  else detokenize(start, done);
}

static void look(void *data, text value) { /* ends the turn behind a line */
  if (place(unquoted(value), '\n') >= 0 || line->count - turn_start >= most) end_turn(data, value);
  else next_token();
}

static void sampled(void *data, text token) {
  int end = among(eos, integer(token));
  if (!end) line->tokens[line->count++] = (int)integer(token);
  detokenize(turn_start, end ? end_turn : look);
}

void begin(text facts) {
  open_queue(facts);
  text given = member(facts, "arguments");
  writer to = {0, 0, 0};
  eos = kept(member(facts, "eos")), url = unquoted(element(given, 0));
  turns = (int)integer(unquoted(element(given, 2))), most = (int)integer(unquoted(element(given, 3)));
  line = new_context((int)integer(member(facts, "context_length")));
  put_word(&to, TASK), put_word(&to, "Question: "), put(&to, unquoted(element(given, 1)));
  put_word(&to, "\nAct:");
  call("tokenize"), put_string("text", (text){to.at, to.size}), put_json("special", word("true"));
  then(begin_turn, 0);
}
