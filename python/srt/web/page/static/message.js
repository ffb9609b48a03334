// One message of the conversation on the page.

import { button, count, el, problem } from "./dom.js";
import { askJson } from "./http.js";

// Returns {node, update}. `actions` has answer(message, call, text), again(message), cut(message).
export function messageView(message, actions) {
  const text = el("div", { className: "text" });
  const thoughts = el("div", { className: "text" });
  const reasoning = el("details", { className: "reasoning", hidden: true },
    el("summary", {}, "Reasoning"), thoughts);
  const calls = el("div", { className: "calls" });
  const foot = el("footer");
  const node = el("article", { className: `message ${message.role}` },
    el("h3", {}, message.call ? `tool result of ${message.call}` : message.role),
    reasoning, text, calls, foot);

  function update() {
    text.textContent = message.content;
    thoughts.textContent = message.reasoning;
    reasoning.hidden = !message.reasoning;
    if (!message.content && message.reasoning && !message.finish) reasoning.open = true;
    showCalls(calls, message, actions);
  }

  function end() {
    update();
    foot.replaceChildren(...footer(message, actions));
  }

  update();
  if (message.role !== "assistant" || message.finish) end();
  return { node, update, end };
}

function showCalls(box, message, actions) {
  message.calls.forEach((call, index) => {
    let shown = box.children[index];
    if (!shown) {
      shown = el("div", { className: "call" }, el("strong"), el("pre"));
      box.append(shown);
    }
    shown.children[0].textContent = `calls ${call.name}`;
    shown.children[1].textContent = call.text;
    if (message.finish && !shown.children[2]) shown.append(answerForm(message, call, actions));
  });
}

function answerForm(message, call, actions) {
  const input = el("input", { autocomplete: "off" });
  return el("form", {
    className: "bar",
    onsubmit: (event) => {
      event.preventDefault();
      actions.answer(message, call, input.value);
      event.target.remove();
    },
  }, el("label", {}, `Result of ${call.name} `, input), el("button", {}, "Give"));
}

function footer(message, actions) {
  const parts = [];
  if (message.error) parts.push(problem(new Error(message.error)));
  const line = facts(message);
  if (line) parts.push(el("span", { className: "quiet facts" }, line));
  if (message.role === "assistant" && message.id && message.usage) parts.push(why(message.id));
  if (message.role === "assistant") parts.push(button("Try again", () => actions.again(message)));
  parts.push(button("Remove from here", () => actions.cut(message)));
  return parts;
}

function facts({ usage, finish, note, seconds, first }) {
  const found = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    found.push(`${count(usage.prompt_tokens, "prompt token")}, ${cached} from the cache`);
    const thought = usage.completion_tokens_details?.reasoning_tokens;
    found.push(`${usage.completion_tokens} new${thought ? `, ${thought} of them reasoning` : ""}`);
  }
  if (first !== undefined) found.push(`first after ${first.toFixed(2)} s`);
  if (seconds !== undefined) found.push(`${seconds.toFixed(2)} s in all`);
  if (finish && finish !== "stop") found.push(note ? `${finish}: ${note}` : finish);
  return found.join(" · ");
}

// "Why was this not cached?": what /explain/ID says of the answer's prompt.
export function why(id) {
  const box = el("details", { className: "why" }, el("summary", {}, "Why not cached?"));
  box.addEventListener("toggle", async () => {
    if (!box.open || box.children.length > 1) return;
    try {
      box.append(explanation(await askJson(`explain/${encodeURIComponent(id)}`)));
    } catch (error) {
      box.append(problem(error));
    }
  });
  return box;
}

function explanation({ prompts }) {
  return el("div", {}, ...prompts.map(({ text }) => el("pre", {}, text)));
}
