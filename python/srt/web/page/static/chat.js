// The chat: a conversation, its settings, and one request at a time.

import { $, problem } from "./dom.js";
import { ask, events } from "./http.js";
import { messageView } from "./message.js";
import { bodyOf, fresh, goesOn, grow } from "./reply.js";

const FIELDS = ["system", "temperature", "max_tokens", "top_p", "seed", "constraint", "pattern",
  "tools"];

let conversation = []; // [{message, view}]
let running = null; // the AbortController of the reply under way

export function startChat() {
  const wide = matchMedia("(min-width: 900px)");
  const fold = () => ($("settings").open = wide.matches);
  wide.addEventListener("change", fold);
  fold();
  $("constraint").addEventListener("change", () => {
    $("pattern-label").hidden = !$("constraint").value;
  });
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  $("say").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    say();
  });
  $("stop").addEventListener("click", stop);
  addEventListener("keydown", (event) => event.key === "Escape" && stop());
  $("clear").addEventListener("click", () => cutAt(0));
}

function say() {
  if (running) return;
  const text = $("say").value;
  if (text) add(fresh($("role").value, text));
  if (!conversation.length) return;
  $("say").value = "";
  if ($("role").value !== "system" || !text) reply();
}

function stop() {
  running?.abort();
}

function add(message) {
  const view = messageView(message, actions);
  conversation.push({ message, view });
  $("log").append(view.node);
  view.node.scrollIntoView({ block: "end" });
  return view;
}

function cutAt(index) {
  stop();
  for (const { view } of conversation.splice(index)) view.node.remove();
}

const placeOf = (message) => conversation.findIndex((entry) => entry.message === message);

const actions = {
  cut: (message) => cutAt(placeOf(message)),
  again(message) {
    if (running) return;
    cutAt(placeOf(message));
    if (message.begun) add(fresh("assistant", message.begun));
    reply();
  },
  // The result of a call; the model goes on once every call of the message has one.
  answer(message, call, text) {
    if (running) return;
    add({ ...fresh("tool", text), call: call.id });
    const given = new Set(conversation.map((entry) => entry.message.call));
    if (message.calls.every(({ id }) => given.has(id))) reply();
  },
};

// Asks for the next message and shows it as it comes. What the user began is gone on with.
async function reply() {
  const last = conversation.at(-1)?.message;
  const begun = goesOn(last) ? last.content : "";
  const control = new AbortController();
  const began = performance.now();
  const elapsed = () => (performance.now() - began) / 1000;
  let message;
  let view;
  $("problem").replaceChildren();
  try {
    const settings = Object.fromEntries(FIELDS.map((name) => [name, $(name).value]));
    const body = bodyOf(conversation.map((entry) => entry.message), settings);
    setRunning(control);
    if (begun) cutLast();
    message = Object.assign(fresh("assistant", begun), { begun });
    view = add(message);
    const stream = await ask("v1/chat/completions", { body, signal: control.signal });
    for await (const chunk of events(stream)) {
      const before = message.content + message.reasoning;
      grow(message, chunk);
      if (!message.first && before !== message.content + message.reasoning) message.first = elapsed();
      view.update();
      follow(view.node);
    }
  } catch (error) {
    if (!message) return $("problem").replaceChildren(problem(error));
    message.error = error.name === "AbortError" ? "" : error.message;
    message.finish = error.name === "AbortError" ? "stopped" : "failed";
  } finally {
    setRunning(null);
  }
  message.finish ||= "stop";
  message.seconds = elapsed();
  view.end();
  follow(view.node);
}

function cutLast() {
  conversation.pop().view.node.remove();
}

function setRunning(control) {
  running = control;
  $("send").disabled = Boolean(control);
  $("stop").disabled = !control;
  $("log").ariaBusy = String(Boolean(control));
}

// Keeps the end in sight, unless the reader has scrolled up.
function follow(node) {
  const { bottom } = node.getBoundingClientRect();
  const edge = $("composer").getBoundingClientRect().top;
  if (bottom > edge - 8 && bottom - edge < 200) scrollBy(0, bottom - edge + 16);
}
