// Conversations in this browser's IndexedDB; in memory where it has none (a private window, say).

import { searchText } from "./conversation.js";

const NAME = "sglang";
const VERSION = 1;
const WHOLE = "conversations"; // by id
const SUMMARIES = "summaries"; // {id, title, updated, text}: the list and what a search needs

const others = new BroadcastChannel("sglang.conversations");
const memory = new Map();
let opening = null;

function open() {
  return (opening ??= new Promise((done, failed) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      for (const name of [WHOLE, SUMMARIES]) request.result.createObjectStore(name, { keyPath: "id" });
    };
    request.onsuccess = () => done(request.result);
    request.onerror = () => failed(request.error);
    request.onblocked = () => failed(new Error("Another tab holds an older version of this page."));
  }));
}

// Runs `work` with both object stores in one transaction; resolves to its request's result.
async function within(mode, work) {
  const transaction = (await open()).transaction([WHOLE, SUMMARIES], mode);
  const request = work(transaction.objectStore(WHOLE), transaction.objectStore(SUMMARIES));
  return new Promise((done, failed) => {
    transaction.oncomplete = () => done(request?.result);
    transaction.onabort = () => failed(transaction.error);
  });
}

// Whether conversations outlive this page; the error if not.
export async function trouble() {
  try {
    await open();
    return null;
  } catch (error) {
    return error;
  }
}

export async function summaries() {
  if (await trouble()) return [...memory.values()].map(summaryOf).sort(latest);
  const found = await within("readonly", (whole, some) => some.getAll());
  return found.sort(latest);
}

export async function load(id) {
  if (await trouble()) return structuredClone(memory.get(id));
  return within("readonly", (whole) => whole.get(id));
}

// Messages that another tab has added to the conversation meanwhile stay in it.
export async function save(conversation) {
  if (await trouble()) {
    memory.set(conversation.id, structuredClone(conversation));
  } else {
    await merge(conversation);
  }
  others.postMessage("changed");
}

async function merge(conversation) {
  let wrong = null;
  const work = (whole, some) => {
    const stored = whole.get(conversation.id);
    stored.onsuccess = () => {
      try {
        const nodes = { ...stored.result?.nodes, ...conversation.nodes };
        const merged = { ...conversation, nodes };
        whole.put(merged);
        some.put(summaryOf(merged));
      } catch (error) {
        wrong = error;
        stored.transaction.abort();
      }
    };
  };
  await within("readwrite", work).catch((error) => {
    throw wrong ?? error;
  });
}

export async function remove(id) {
  if (await trouble()) memory.delete(id);
  else await within("readwrite", (whole, some) => void (whole.delete(id), some.delete(id)));
  others.postMessage("changed");
}

// Calls back where another tab has changed something.
export function onChange(call) {
  others.addEventListener("message", call);
}

const latest = (a, b) => b.updated - a.updated;

function summaryOf(conversation) {
  const { id, title, updated } = conversation;
  return { id, title, updated, text: searchText(conversation) };
}
