// The program playground: a text with holes is run against /generate, its forks side by side.

import { $, count, el, percent, problem } from "./dom.js";
import { askJson } from "./http.js";
import { EXAMPLES } from "./examples.js";
import { parse } from "./holes.js";
import { why } from "./why.js";
import { shaded, table } from "./tokens.js";

let running = null; // the AbortController of the run under way

export function startProgram() {
  for (const name of Object.keys(EXAMPLES)) $("example").append(el("option", {}, name));
  const show = () => ($("source").value = EXAMPLES[$("example").value]);
  $("example").addEventListener("change", show);
  show();
  $("editor").addEventListener("submit", (event) => {
    event.preventDefault();
    start();
  });
  $("source").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
  });
  $("halt").addEventListener("click", () => running?.abort());
}

async function start() {
  if (running) return;
  const began = performance.now();
  const summary = el("p", { className: "quiet" }, "Running ...");
  const root = branchOf("");
  const run = { control: new AbortController(), calls: 0, prompt: 0, cached: 0, fresh: 0 };
  $("result").replaceChildren(summary, root.node);
  setRunning(run.control);
  let ending = "";
  try {
    await follow(run, parse($("source").value), root);
  } catch (error) {
    run.control.abort(); // the other branches
    if (error.name !== "AbortError") root.node.before(problem(error));
    ending = error.name === "AbortError" ? "Stopped. " : "Failed. ";
  }
  setRunning(null);
  const seconds = ((performance.now() - began) / 1000).toFixed(2);
  summary.textContent = `${ending}${count(run.calls, "call")} in ${seconds} s: ` +
    `${count(run.prompt, "prompt token")}, ${run.cached} of them ` +
    `(${percent(run.cached / run.prompt)}) from the cache, ${run.fresh} new.`;
}

// A branch: all its text so far, and its place on the page for words and for facts about them.
function branchOf(text) {
  const words = el("div", { className: "text" });
  const notes = el("div", { className: "notes" });
  return { text, words, notes, node: el("div", { className: "branch" }, words, notes) };
}

// Does the parts in one branch; a fork has the rest done in each of its own.
async function follow(run, parts, branch) {
  for (const [i, part] of parts.entries()) {
    const rest = parts.slice(i + 1);
    if (part.kind === "text") {
      branch.text += part.text;
      branch.words.append(part.text);
    } else if (part.kind === "fork") {
      const children = part.texts.map((text) => [{ kind: "text", text }, ...rest]);
      return split(run, branch, children, []);
    } else {
      const replies = await generate(run, part, branch);
      if (replies.length > 1) return split(run, branch, replies.map(() => rest), replies, part);
      write(part, branch, replies[0]);
    }
  }
}

// One branch for each list of parts, side by side; the i-th begins with the i-th reply.
async function split(run, branch, lists, replies, part) {
  const fork = el("div", { className: "fork" });
  branch.node.append(fork);
  await Promise.all(lists.map((parts, i) => {
    const child = branchOf(branch.text);
    fork.append(child.node);
    if (replies[i]) write(part, child, replies[i]);
    return follow(run, parts, child);
  }));
}

async function generate(run, part, branch) {
  const mark = el("span", { className: "quiet" }, ` ${part.name} ...`);
  branch.words.append(mark);
  const whole = "choices" in part.params && !("choices_scoring" in part.params);
  const body = {
    text: branch.text,
    sampling_params: { ...part.params, ...(whole ? { choices_scoring: "whole" } : {}) },
    return_logprob: true,
    return_text_in_logprobs: true,
  };
  try {
    const found = await askJson("generate", { body, signal: run.control.signal });
    const replies = Array.isArray(found) ? found : [found];
    const { prompt_tokens, cached_tokens } = replies[0].meta_info;
    run.calls += 1;
    run.prompt += prompt_tokens;
    run.cached += cached_tokens;
    for (const { meta_info } of replies) run.fresh += meta_info.completion_tokens;
    return replies;
  } catch (error) {
    if (error.name !== "AbortError") error.message = `${part.name}: ${error.message}`;
    throw error;
  } finally {
    mark.remove();
  }
}

function write(part, branch, { text, meta_info: meta }) {
  const triples = meta.output_token_logprobs;
  branch.text += text;
  const facts = [
    count(meta.prompt_tokens, "prompt token"), `${meta.cached_tokens} from the cache`,
    `${meta.completion_tokens} new`, meta.finish_reason.message ?? meta.finish_reason.type,
    `${meta.e2e_latency.toFixed(2)} s`,
  ];
  branch.words.append(shaded(text, triples));
  branch.notes.append(el("div", {},
    el("strong", {}, part.name), ` ${facts.join(" · ")} `,
    scores(part.params.choices, meta.choice_logprobs), table(triples), why(meta.id)));
}

// How the choices compare: their probabilities, if the text had to be one of them.
function scores(choices, logprobs) {
  if (!logprobs) return null;
  const best = Math.max(...logprobs);
  const weights = logprobs.map((value) => Math.exp(value - best));
  const total = weights.reduce((sum, weight) => sum + weight);
  return el("ul", { className: "choices" }, ...weights.map((weight, i) =>
    el("li", {}, el("meter", { value: weight / total, ariaLabel: choices[i] }),
      ` ${percent(weight / total)} ${choices[i]} (${logprobs[i].toFixed(2)})`)));
}

function setRunning(control) {
  running = control;
  $("run").disabled = Boolean(control);
  $("halt").disabled = !control;
}
