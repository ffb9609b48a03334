// Conversations as files: JSON that can be imported again, and Markdown for reading.

import { newId, pathOf } from "./conversation.js";
import { fresh } from "./reply.js";

const FORMAT = "sglang.conversations";
const VERSION = 1;
const MAX_BYTES = 256 * 1024 * 1024;
const MAX_NODES = 10_000; // of one conversation
const ROLES = ["user", "assistant", "tool", "system"];
const SAFE_IMAGE = /^data:image\/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]*$/;

export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

// The path that is shown, as a document.
export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  for (const { role, content, reasoning, calls, files = [] } of pathOf(conversation)) {
    parts.push(`## ${role[0].toUpperCase()}${role.slice(1)}`);
    if (files.length) parts.push(files.map(({ name }) => `- attached: ${name}`).join("\n"));
    if (reasoning) parts.push(`> ${reasoning.trim().replaceAll("\n", "\n> ")}`);
    if (content.trim()) parts.push(content.trim());
    for (const { name, text } of calls) parts.push(`Calls \`${name}\` with \`${text}\`.`);
  }
  return `${parts.join("\n\n")}\n`;
}

// The conversations of a file that this page has written, with new ids. Throws Error that says what
// is wrong with it.
export async function imported(file) {
  if (file.size > MAX_BYTES) {
    throw new Error(`${file.name} has ${file.size} bytes; at most ${MAX_BYTES} can be imported.`);
  }
  let found;
  try {
    found = JSON.parse(await file.text());
  } catch (error) {
    throw new Error(`${file.name} is not JSON: ${error.message}`);
  }
  if (found?.format !== FORMAT || !Array.isArray(found.conversations)) {
    throw new Error(`${file.name} holds no exported conversations ("format": "${FORMAT}").`);
  }
  if (found.version !== VERSION) {
    throw new Error(`${file.name} has version ${found.version}; this page reads ${VERSION}.`);
  }
  return found.conversations.map((item, i) => conversationOf(item, `${file.name}, conversation ${i + 1}`));
}

function conversationOf(item, where) {
  const source = Object.entries(objectOf(item?.nodes, `${where}: nodes`));
  if (source.length > MAX_NODES) throw new Error(`${where} has ${source.length} messages; at most ${MAX_NODES}.`);
  const ids = new Map(source.map(([id]) => [id, newId()]));
  const nodes = {};
  for (const [id, given] of source) {
    const node = nodeOf(objectOf(given, `${where}: ${id}`), `${where}, message ${id}`);
    nodes[ids.get(id)] = Object.assign(node, { id: ids.get(id), parent: ids.get(given.parent) ?? "" });
  }
  if (hasCircle(nodes)) throw new Error(`${where}: a message stands behind itself.`);
  return {
    id: newId(), title: textOf(item.title), named: item.named === true,
    created: numberOf(item.created), updated: numberOf(item.updated),
    leaf: ids.get(item.leaf) ?? Object.keys(nodes).at(-1) ?? "",
    settings: Object.fromEntries(Object.entries(objectOf(item.settings ?? {}, `${where}: settings`))
      .filter(([, value]) => typeof value === "string")),
    nodes,
  };
}

function nodeOf(given, where) {
  if (!ROLES.includes(given.role)) {
    throw new Error(`${where} has the role ${JSON.stringify(given.role)}; use ${ROLES.join(", ")}.`);
  }
  const node = fresh(given.role, textOf(given.content));
  for (const name of ["reasoning", "finish", "note", "error", "model", "call", "begun"]) {
    if (typeof given[name] === "string") node[name] = given[name];
  }
  for (const name of ["first", "seconds", "thought", "created"]) {
    if (Number.isFinite(given[name])) node[name] = given[name];
  }
  if (given.usage && Number.isFinite(given.usage.prompt_tokens)) node.usage = given.usage;
  node.calls = listOf(given.calls).map(({ id, name, text }) =>
    ({ id: textOf(id), name: textOf(name), text: textOf(text) }));
  node.files = listOf(given.files).map((file) => fileOf(file, where));
  node.finish ||= "stop";
  return node;
}

function fileOf({ kind, name, type, data, text }, where) {
  if (kind === "text") return { kind, name: textOf(name), type: textOf(type), text: textOf(text) };
  if (kind === "image" && SAFE_IMAGE.test(data)) return { kind, name: textOf(name), type: textOf(type), data };
  throw new Error(`${where} has an attachment that is neither a text nor an image.`);
}

// Whether following parents does not end; each message is walked through once.
function hasCircle(nodes) {
  const ended = new Set([""]);
  for (const start of Object.values(nodes)) {
    const walked = new Set();
    let node = start;
    while (node && !ended.has(node.id)) {
      if (walked.has(node.id)) return true;
      walked.add(node.id);
      node = nodes[node.parent];
    }
    walked.forEach((id) => ended.add(id));
  }
  return false;
}

function objectOf(value, where) {
  if (value && typeof value === "object" && !Array.isArray(value)) return value;
  throw new Error(`${where} is no object.`);
}

const textOf = (value) => (typeof value === "string" ? value : "");
const numberOf = (value) => (Number.isFinite(value) ? value : Date.now());
const listOf = (value) => (Array.isArray(value) ? value : []).filter((item) => item && typeof item === "object");
