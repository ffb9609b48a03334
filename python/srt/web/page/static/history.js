// The list of conversations: search, names, removal, and files with them.

import { $, el, iconButton } from "./dom.js";
import { complain } from "./composer.js";
import * as store from "./store.js";
import { asMarkdown, exported, imported } from "./transfer.js";

const DAY = 86_400_000;
const MOST = 200; // rows; a search finds the others
let shownId = "";
let actions = null; // open(id), begin(), removed(id), current(id): the conversation that is shown

export function startHistory(given) {
  actions = given;
  $("new").addEventListener("click", () => (fold(), actions.begin()));
  $("search").addEventListener("input", () => refresh());
  $("export-all").addEventListener("click", exportAll);
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", importFile);
  $("open-history").addEventListener("click", () => toggle());
  $("shade").addEventListener("click", fold);
  $("history").addEventListener("keydown", (event) => event.key === "Escape" && fold());
  addEventListener("keydown", shortcuts);
  store.onChange(() => refresh());
  if (matchMedia("(min-width: 900px)").matches) toggle(true);
}

function shortcuts(event) {
  if (!(event.ctrlKey || event.metaKey) || $("chat").hidden) return;
  if (event.key === "k") {
    event.preventDefault();
    toggle(true);
    $("search").focus();
  } else if (event.key.toLowerCase() === "o" && event.shiftKey) {
    event.preventDefault();
    actions.begin();
  }
}

function toggle(open = !$("chat").classList.contains("with-history")) {
  $("chat").classList.toggle("with-history", open);
  $("open-history").ariaExpanded = String(open);
}

// On a narrow screen the list lies above the conversation.
function fold() {
  if (matchMedia("(max-width: 899px)").matches) toggle(false);
}

export async function refresh(current = shownId) {
  shownId = current;
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const all = await store.summaries();
  const found = all.filter(({ text }) => words.every((word) => text.includes(word)));
  const rows = [];
  let day = "";
  for (const summary of found.slice(0, MOST)) {
    const name = words.length ? "" : dayOf(summary.updated);
    if (name !== day) rows.push(el("li", { className: "day" }, el("h3", {}, (day = name))));
    rows.push(row(summary, words));
  }
  $("conversations").replaceChildren(...rows);
  const rest = found.length - MOST;
  $("found").textContent = rest > 0 ? `and ${rest} more; search for them`
    : words.length ? `${found.length} found` : all.length ? "" : "No conversations yet.";
}

function dayOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY) return "Yesterday";
  return time >= midnight - 7 * DAY ? "Last seven days" : "Earlier";
}

function row({ id, title, text }, words) {
  const link = el("a", { href: `#chat/${id}`, onclick: fold, title }, title || "Untitled");
  if (id === shownId) link.ariaCurrent = "true";
  const hit = words.length && !words.every((word) => title.toLowerCase().includes(word))
    ? el("span", { className: "quiet hit" }, around(text, words[0])) : null;
  const item = el("li", {}, el("div", { className: "row" }, link,
    iconButton("pencil", `Rename ${title}`, () => rename(item, id, title)),
    iconButton("download", `Export ${title}`, () => exportOne(item, id, title)),
    iconButton("trash-2", `Delete ${title}`, () => removal(item, id, title))), hit);
  return item;
}

function around(text, word) {
  const at = text.indexOf(word);
  return `…${text.slice(Math.max(0, at - 20), at + 60).replace(/\s+/g, " ")}…`;
}

function rename(item, id, title) {
  const input = el("input", { value: title, ariaLabel: "Name of the conversation", maxLength: 200 });
  let over = false;
  const done = async (keep) => {
    if (over) return;
    over = true;
    if (keep && input.value.trim()) {
      const conversation = actions.current(id) ?? (await store.load(id));
      Object.assign(conversation, { title: input.value.trim(), named: true });
      await store.save(conversation);
    }
    await refresh();
  };
  item.replaceChildren(el("form", { onsubmit: (event) => (event.preventDefault(), done(true)) }, input));
  input.addEventListener("blur", () => done(true));
  input.addEventListener("keydown", (event) => event.key === "Escape" && (event.stopPropagation(), done(false)));
  input.select();
}

// Asks in a row of the list: `answers` are [text, class, what to do].
function question(item, text, answers) {
  const buttons = answers.map(([name, className, act]) =>
    el("button", { type: "button", className, onclick: act }, name));
  const keep = el("button", { type: "button", onclick: () => refresh() }, "Cancel");
  item.replaceChildren(el("div", { className: "question", role: "group", ariaLabel: text },
    el("span", {}, text), ...buttons, keep));
  keep.focus();
}

function removal(item, id, title) {
  question(item, `Delete “${title || "Untitled"}”?`, [["Delete", "bad", async () => {
    await store.remove(id);
    actions.removed(id);
    await refresh();
  }]]);
}

function exportOne(item, id, title) {
  const give = (kind, type, written) => async () => {
    const conversation = actions.current(id) ?? (await store.load(id));
    offer(`${fileName(title)}.${kind}`, type, written(conversation));
    await refresh();
  };
  question(item, "Export as", [
    ["Markdown", "", give("md", "text/markdown", asMarkdown)],
    ["JSON", "", give("json", "application/json", (one) => exported([one]))],
  ]);
}

function offer(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "chat";

async function exportAll() {
  const all = await store.summaries();
  const conversations = await Promise.all(all.map(({ id }) => store.load(id)));
  offer("sglang-conversations.json", "application/json", exported(conversations));
}

async function importFile() {
  complain(null);
  try {
    for (const file of $("import-file").files) {
      for (const conversation of await imported(file)) {
        await store.save(conversation);
        shownId = conversation.id;
      }
    }
    location.hash = `#chat/${shownId}`;
  } catch (error) {
    complain(error);
  }
  $("import-file").value = "";
  await refresh();
}
