// Beam search: the most likely texts of a fixed length, or up to an end token.
//
// Beams share the pages of their common beginning. Arguments: the prompt, beams, most tokens. As
// beam_search.py.

import { call, Context, decimal, finish, Json, start } from "sglang_inferlet";
export { alloc, failure, turn } from "sglang_inferlet";

class Beam {
  ids: Uint8Array = new Uint8Array(0);
  logprobs: Uint8Array = new Uint8Array(0);
  constructor(public score: f64, public line: Context) {}
}

class Candidate {
  constructor(public score: f64, public beam: Beam, public token: i32) {}
}

class Result {
  shown: string = "";
  constructor(public score: f64, public tokens: i32[]) {}
}

let beams: Beam[] = [];
let results: Result[] = [];
let eos: i32[] = [];
let width = 3, most = 10, first = 0, step = 0, missing = 0;

function byScore(a: Result, b: Result): i32 {
  return b.score > a.score ? 1 : b.score < a.score ? -1 : 0;
}

function shown(result: Result, text: Json): void {
  result.shown = text.raw;
  if (--missing) return;
  finish("[" + results.map<string>((one) => `[${decimal(one.score)},${one.shown}]`).join(",") + "]");
}

function showBest(): void {
  for (let i = 0; i < beams.length; i++) {
    const tokens = beams[i].line.tokens.slice(first);
    results.push(new Result(beams[i].score / tokens.length, tokens));
  }
  results = results.sort(byScore).slice(0, width);
  missing = results.length;
  for (let i = 0; i < results.length; i++) {
    call("detokenize").integers("tokens", results[i].tokens).about(results[i], shown);
  }
}

/** The best `2 * width` continuations of all beams, best first. */
function candidates(): Candidate[] {
  const found: Candidate[] = [];
  for (let i = 0; i < beams.length; i++) {
    const ids = beams[i].ids, logprobs = beams[i].logprobs;
    for (let at = 0; at < ids.length; at += 4) {
      const score = beams[i].score + <f64>load<f32>(logprobs.dataStart + at);
      found.push(new Candidate(score, beams[i], load<i32>(ids.dataStart + at)));
    }
  }
  found.sort((a, b) => b.score > a.score ? 1 : b.score < a.score ? -1 : 0);
  return found.slice(0, 2 * width);
}

function goOn(): void {
  const best = candidates(), grown: Beam[] = [];
  step++;
  for (let rank = 0; rank < best.length; rank++) {
    const one = best[rank];
    if (eos.includes(one.token)) {
      const tokens = one.beam.line.tokens.slice(first).concat([one.token]);
      if (rank < width) results.push(new Result(one.score / step, tokens));
    } else if (grown.length < width) {
      const line = one.beam.line.fork();
      line.tokens.push(one.token);
      grown.push(new Beam(one.score, line));
    }
  }
  beams = grown;
  if (step == most || !beams.length) showBest();
  else ask();
}

function readDist(beam: Beam, dist: Json): void {
  beam.ids = dist.get("ids").bytes();
  beam.logprobs = dist.get("logprobs").bytes();
  if (!--missing) goOn();
}

function ask(): void {
  missing = beams.length;
  for (let i = 0; i < beams.length; i++) beams[i].line.nextDist(2 * width).about(beams[i], readDist);
}

start((facts) => {
  const given = facts.get("arguments").items();
  const prompt = given.length ? given[0].text() : "The weather today";
  if (given.length) {
    width = <i32>parseInt(given[1].text());
    most = <i32>parseInt(given[2].text());
  }
  eos = facts.get("eos").integers();
  call("tokenize").text("text", prompt).field("special", "true").then((ids) => {
    beams = [new Beam(0, new Context(ids.integers()))];
    first = beams[0].line.tokens.length;
    if (most) ask();
    else showBest();
  });
});
