// A conversation: a tree of messages, since an edited question and a second answer stand beside the
// first. Plain data, as it is stored and exported.

// {id, title, named, created, updated, leaf, settings, nodes: {id: node}}; a node is a message of
// reply.js with {id, parent, created}. The path from `leaf` to the root is what is shown and sent.

const TITLE_CHARS = 60;

export const newId = () => [...crypto.getRandomValues(new Uint8Array(12))]
  .map((byte) => byte.toString(16).padStart(2, "0")).join("");

export function newConversation(settings = {}) {
  const now = Date.now();
  return { id: newId(), title: "", named: false, created: now, updated: now, leaf: "", settings,
    nodes: {} };
}

// Puts a message behind another one ("" for the first) and shows it.
export function addMessage(conversation, parent, message) {
  const node = Object.assign(message, { id: newId(), parent, created: Date.now() });
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  if (!conversation.named && !conversation.title && node.role === "user") {
    conversation.title = titleOf(node);
  }
  return touched(conversation) && node;
}

export function touched(conversation) {
  conversation.updated = Math.max(Date.now(), conversation.updated);
  return conversation;
}

export function titleOf({ content, files = [] }) {
  const line = content.trim().split("\n")[0] || files[0]?.name || "";
  return line.length > TITLE_CHARS ? `${line.slice(0, TITLE_CHARS - 1).trimEnd()}…` : line;
}

// The messages from the first one to `leaf`.
export function pathOf({ nodes, leaf }, end = leaf) {
  const path = [];
  for (let node = nodes[end]; node; node = nodes[node.parent]) path.push(node);
  return path.reverse();
}

// Messages that stand beside one, itself among them, oldest first.
export function siblingsOf({ nodes }, { parent, role }) {
  return Object.values(nodes).filter((node) => node.parent === parent && node.role === role)
    .sort(oldest);
}

// Shows a message, and below it what was written last.
export function show(conversation, node) {
  const children = Map.groupBy(Object.values(conversation.nodes), ({ parent }) => parent);
  let leaf = node;
  for (let below; (below = children.get(leaf.id)); ) leaf = below.sort(oldest).at(-1);
  conversation.leaf = leaf.id;
}

// A conversation of its own with the messages up to one.
export function branchOf(conversation, node) {
  const copy = newConversation(structuredClone(conversation.settings));
  for (const kept of pathOf(conversation, node.id)) copy.nodes[kept.id] = structuredClone(kept);
  return Object.assign(copy, { title: conversation.title, named: conversation.named, leaf: node.id });
}

const oldest = (a, b) => a.created - b.created || (a.id < b.id ? -1 : 1);

// What a search looks through, in lower case.
export function searchText({ title, nodes }) {
  const texts = Object.values(nodes).map(({ content, files = [] }) =>
    [content, ...files.map(({ name }) => name)].join("\n"));
  return [title, ...texts].join("\n").toLowerCase().slice(0, 50_000);
}
