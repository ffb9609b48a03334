// The chat: the conversation that is shown, and the answers that are being written. An answer goes on
// while another conversation is read.

import { $, el } from "./dom.js";
import { complain, setBusy, setDraft, startComposer } from "./composer.js";
import { addMessage, branchOf, newConversation, pathOf, show, siblingsOf, touched }
  from "./conversation.js";
import { refresh, startHistory } from "./history.js";
import { MessageView } from "./message.js";
import { model } from "./model.js";
import { fresh, openCalls } from "./reply.js";
import { lastSettings, readSettings, showSettings, startSettings } from "./settings.js";
import { showStatus } from "./status.js";
import { follow, startScroll, toEnd } from "./scroll.js";
import * as store from "./store.js";
import { answer } from "./answer.js";

let shown = newConversation(); // the conversation on the page
let views = new Map(); // by the id of its message
const SOME = 200; // messages that are drawn at once: thousands would block the page
let limit = SOME; // how many of the last messages are drawn
let opened = 0; // how often a conversation was chosen
const running = new Map(); // by conversation id: {conversation, control} of its answer

export function startChat() {
  startComposer({ send, stop, editLast });
  startSettings(() => {
    shown.settings = readSettings();
    if (shown.leaf) save(shown);
  });
  startHistory({ begin, removed, current: (id) => (id === shown.id ? shown : running.get(id)?.conversation) });
  startScroll();
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && !$("chat").hidden) stop();
  });
  addEventListener("view", ({ detail }) => detail.view === "chat" && open(detail.rest));
  addEventListener("model", () => {
    showSettings(shown.settings);
    showStatus(pathOf(shown));
    $("empty-model").textContent = model.name;
  });
  store.trouble().then((error) => error &&
    complain(new Error(`This browser keeps no conversations (${error.message}); they end with this page.`)));
  shown.settings = lastSettings();
  draw();
}

// -- which conversation ---------------------------------------------------------------------------

async function open(id) {
  if (id === undefined && shown.leaf) history.replaceState(null, "", `#chat/${shown.id}`);
  if (id === undefined || id === shown.id || (!id && !shown.leaf)) return refresh(shown.id);
  const turn = (opened += 1);
  const found = running.get(id)?.conversation ?? (id ? await store.load(id) : null);
  if (turn !== opened) return; // another one was chosen meanwhile
  if (id && !found) complain(new Error("This conversation is not in this browser."));
  for (const node of Object.values(found?.nodes ?? {})) {
    // The page was closed while the model wrote it.
    if (node.role === "assistant" && !node.finish && !running.has(id)) node.finish = "interrupted";
  }
  shown = found ?? newConversation(lastSettings());
  views = new Map();
  limit = SOME;
  draw();
  toEnd();
  await refresh(shown.id);
}

function begin() {
  location.hash = "#chat/";
  opened += 1;
  shown = newConversation(lastSettings());
  views = new Map();
  limit = SOME;
  draw();
  refresh(shown.id);
  $("say").focus();
}

function removed(id) {
  running.get(id)?.control.abort();
  running.delete(id);
  if (id === shown.id) begin();
}

// A conversation that cannot be stored (the disk is full, say) goes on without.
async function save(conversation) {
  try {
    await store.save(conversation);
  } catch (error) {
    complain(new Error(`This conversation was not saved: ${error?.message ?? error}. Export or delete others.`));
  }
}

// Keeps the address in step, so that a reload shows the same conversation.
async function keep(conversation) {
  await save(touched(conversation));
  if (conversation === shown && location.hash !== `#chat/${shown.id}`) {
    history.replaceState(null, "", `#chat/${shown.id}`);
  }
  await refresh(shown.id);
}

// -- what is shown --------------------------------------------------------------------------------

function draw() {
  const path = pathOf(shown);
  const results = new Map(path.filter(({ call }) => call).map((node) => [node.call, node]));
  const messages = path.filter(({ role }) => role !== "tool");
  const hidden = Math.max(messages.length - limit, 0);
  const nodes = messages.slice(hidden).map((node) => {
    if (!views.has(node.id)) views.set(node.id, new MessageView(node, actions));
    const view = views.get(node.id);
    view.end(siblingsOf(shown, node), results);
    return view.node;
  });
  if (hidden) nodes.unshift(earlier);
  earlier.textContent = `Show earlier messages (${hidden})`;
  const log = $("log");
  if (nodes.length !== log.children.length || nodes.some((node, i) => node !== log.children[i])) {
    log.replaceChildren(...nodes);
  }
  $("empty").hidden = nodes.length > 0;
  document.title = shown.title ? `${shown.title} - sglang` : "sglang";
  showSettings(shown.settings);
  showRun();
}

const earlier = el("button", { type: "button", className: "earlier", onclick: showEarlier });

// What the reader sees stays where it is.
function showEarlier() {
  const below = $("scroll").scrollHeight - $("scroll").scrollTop;
  limit += SOME;
  draw();
  $("scroll").scrollTop = $("scroll").scrollHeight - below;
}

function showRun() {
  const busy = running.has(shown.id);
  setBusy(busy);
  $("log").ariaBusy = String(busy);
  showStatus(pathOf(shown));
}

// -- what the reader does -------------------------------------------------------------------------

function send(text, files) {
  complain(null);
  shown.settings = readSettings();
  addMessage(shown, shown.leaf, Object.assign(fresh("user", text, files), { finish: "stop" }));
  reply(shown, shown.leaf);
  toEnd();
}

function stop() {
  running.get(shown.id)?.control.abort();
}

function editLast() {
  const last = pathOf(shown).findLast(({ role }) => role === "user");
  if (last) views.get(last.id)?.edit(); // it may be one of those that are not drawn
}

const actions = {
  retry(node) {
    if (running.has(shown.id)) return;
    if (node.begun) actions.resume({ ...node, content: node.begun });
    else reply(shown, node.parent);
  },
  resume(node) {
    if (!running.has(shown.id)) reply(shown, node.parent, node.content);
  },
  // An edited question is answered; an edited answer stands, and may be continued.
  edit(node, text) {
    if (running.has(shown.id) || text === node.content) return;
    if (node.role === "user") {
      addMessage(shown, node.parent, Object.assign(fresh("user", text, node.files), { finish: "stop" }));
      reply(shown, shown.leaf);
      return;
    }
    const calls = structuredClone(node.calls);
    addMessage(shown, node.parent, Object.assign(fresh("assistant", text), { finish: "stopped", note: "edited", calls }));
    draw();
    keep(shown);
  },
  async branch(node) {
    const copy = branchOf(shown, node);
    await save(copy);
    location.hash = `#chat/${copy.id}`;
    $("say").focus();
  },
  turn(node) {
    if (running.has(shown.id)) return;
    show(shown, node);
    draw();
    keep(shown);
  },
  // The model goes on once every call of its turn has a result.
  give(node, call, text) {
    if (running.has(shown.id)) return;
    addMessage(shown, shown.leaf, Object.assign(fresh("tool", text), { call: call.id, finish: "stop" }));
    if (openCalls(pathOf(shown)).length) {
      draw();
      keep(shown);
    } else reply(shown, shown.leaf);
  },
};

// -- the answer -----------------------------------------------------------------------------------

// Has the message behind `parent` written; it begins with `begun`.
async function reply(conversation, parent, begun = "") {
  const control = new AbortController();
  const path = pathOf(conversation, parent);
  const message = Object.assign(fresh("assistant", begun), { begun, model: conversation.settings.model ?? model.name });
  const node = addMessage(conversation, parent, message);
  running.set(conversation.id, { conversation, control });
  setDraft($("say").value);
  draw();
  await keep(conversation);
  let saved = performance.now();
  await answer(path, node, conversation.settings, control.signal, () => {
    if (conversation === shown) {
      views.get(node.id)?.grow();
      showStatus(pathOf(shown));
      follow();
    }
    if (performance.now() - saved > 2000) {
      saved = performance.now();
      save(conversation);
    }
  });
  if (!running.delete(conversation.id)) return; // it was deleted
  if (conversation === shown) {
    draw();
    follow();
    $("said").textContent = node.error || `Answer: ${node.content.slice(0, 300)}`;
  }
  await keep(conversation);
}
