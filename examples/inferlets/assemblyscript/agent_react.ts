// ReACT agent: thoughts and calls of web APIs in turn, all in one text whose KV stays.
//
// A line "Act: word" calls the API, the line "See: ..." behind it is its answer; only that line is
// computed anew. Arguments: the URL of the API, the question, most turns, most tokens of a turn. The
// program needs the right to reach the URL. As agent_react.py.

import { call, Context, finish, Json, start } from "sglang_inferlet";
export { alloc, failure, turn } from "sglang_inferlet";

const TASK = "Question: How many legs has a cow?\nAct: cow\nSee: A cow has four legs.\nAnswer: four\n";
const PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-~/";

let line = new Context([]);
let eos: i32[] = [];
let url = "", seen = "", before = "Act:"; // of the line that a turn goes on with
let first = 0, turnFirst = 0, turns = 0, most = 0, made = 0;

function firstLine(text: string): string { return text.split("\n")[0]; }

function urlQuoted(text: string): string {
  const bytes = Uint8Array.wrap(String.UTF8.encode(text));
  let found = "";
  for (let i = 0; i < bytes.length; i++) {
    const c = String.fromCharCode(bytes[i]);
    found += PLAIN.includes(c) ? c : "%" + bytes[i].toString(16).toUpperCase().padStart(2, "0");
  }
  return found;
}

function done(text: Json): void {
  finish(`{"text":${text.raw},"calls":${made},"tokens":${line.tokens.length}}`);
}

function nextToken(): void { line.sample('{"temperature":0}').then(sampled); }

function beginTurn(ids: Json): void {
  line.tokens = line.tokens.concat(ids.integers());
  if (!turnFirst) first = line.tokens.length;
  turnFirst = line.tokens.length;
  if (turns-- > 0) nextToken();
  else line.text(first).then(done);
}

function goOn(text: Json): void { // behind the observation; the text so far
  const end = text.text().endsWith("\n") ? "" : "\n";
  made++;
  before = "";
  call("tokenize").text("text", `${end}See: ${seen}\n`).then(beginTurn);
}

function observed(answer: Json): void {
  seen = firstLine(answer.text());
  line.text(first).then(goOn);
}

function refused(error: Json): void {
  seen = "error " + error.get("code").text();
  line.text(first).then(goOn);
}

function endTurn(text: Json): void {
  const all = before + firstLine(text.text());
  if (!all.startsWith("Act:") || all.length == 4) {
    line.text(first).then(done);
    return;
  }
  const query = urlQuoted(all.substring(4).trim());
  call("http_get").text("url", `${url}?q=${query}`).then(observed).otherwise(refused);
}

function look(text: Json): void { // ends the turn behind a line
  if (text.text().includes("\n") || line.tokens.length - turnFirst >= most) endTurn(text);
  else nextToken();
}

function sampled(token: Json): void {
  const end = eos.includes(<i32>token.integer());
  if (!end) line.tokens.push(<i32>token.integer());
  line.text(turnFirst).then(end ? endTurn : look);
}

start((facts) => {
  const given = facts.get("arguments").items();
  if (given.length != 4) throw new Error("4 arguments: URL, question, turns, tokens");
  url = given[0].text();
  turns = <i32>parseInt(given[2].text());
  most = <i32>parseInt(given[3].text());
  eos = facts.get("eos").integers();
  const task = `${TASK}Question: ${given[1].text()}\nAct:`;
  call("tokenize").text("text", task).field("special", "true").then(beginTurn);
});
