// Text completion by forward passes of the program's own: one token a pass, sampled by the engine.
//
// Arguments: the prompt, most tokens. As text_completion.py.

import { call, Context, finish, Json, start } from "sglang_inferlet";
export { alloc, failure, turn } from "sglang_inferlet";

let line = new Context([]);
let eos: i32[] = [];
let first = 0, most = 16;

function nextToken(wanted: bool): void {
  if (wanted) line.sample('{"temperature":0}').then(sampled);
  else line.text(first).then((text) => finish(text.raw));
}

function sampled(token: Json): void {
  const end = eos.includes(<i32>token.integer());
  if (!end) line.tokens.push(<i32>token.integer());
  nextToken(!end && line.tokens.length < first + most);
}

start((facts) => {
  const given = facts.get("arguments").items();
  const prompt = given.length ? given[0].text() : "The weather today";
  if (given.length) most = <i32>parseInt(given[1].text());
  eos = facts.get("eos").integers();
  call("tokenize").text("text", prompt).field("special", "true").then((ids) => {
    line = new Context(ids.integers());
    first = line.tokens.length;
    nextToken(most > 0);
  });
});
