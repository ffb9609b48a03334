// A message, as it grows by a chat's stream and as the API takes it. Plain data.

// `files` are attachments: {kind: "text", name, type, text} or {kind: "image", name, type, data}, a
// data: URL. `reply` is the answer's id in the API. Until the first token, `reading` is the progress
// of the prompt. Times in seconds: `first` until the first token, `thought` until the answer proper
// began, `seconds` in all.
export const fresh = (role, content = "", files = []) => ({
  role, content, files, reasoning: "", calls: [], finish: "", note: "", reply: "", usage: null,
  error: "",
});

// Adds one chunk's delta to a message.
export function grow(message, chunk) {
  message.reply = chunk.id ?? message.reply;
  if (chunk.usage) message.usage = chunk.usage;
  if (chunk.prompt_progress) message.reading = chunk.prompt_progress;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? {};
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
  for (const piece of delta.tool_calls ?? []) {
    const call = (message.calls[piece.index] ??= { id: "", name: "", text: "" });
    call.id = piece.id ?? call.id;
    call.name += piece.function?.name ?? "";
    call.text += piece.function?.arguments ?? "";
  }
  if (choice.finish_reason) {
    message.finish = choice.finish_reason;
    message.note = choice.finish_message ?? "";
  }
}

function sent(message) {
  const { role, content } = message;
  if (role === "tool") return { role, content, tool_call_id: message.call };
  if (role === "user") return { role, content: withFiles(message) };
  if (!message.calls.length) return { role, content };
  const tool_calls = message.calls.map(({ id, name, text }) => ({
    id, type: "function", function: { name, arguments: text },
  }));
  return { role, content, tool_calls };
}

// Texts of files come first, each under its name, and then images, so that the question is last.
function withFiles({ content, files = [] }) {
  const texts = files.filter(({ kind }) => kind === "text").map(({ name, text }) => `${name}:\n\n${text}`);
  const words = [...texts, content].filter(Boolean).join("\n\n");
  const images = files.filter(({ kind }) => kind === "image");
  if (!images.length) return words;
  const parts = images.map(({ data }) => ({ type: "image_url", image_url: { url: data } }));
  return words ? [...parts, { type: "text", text: words }] : parts;
}

// Whether the model continues this message, the last one, rather than answering it.
export const continues = (message) =>
  message?.role === "assistant" && !message.calls.length && Boolean(message.content);

// Calls of a path's last turn that have no result.
export function openCalls(path) {
  const at = path.findLastIndex(({ role }) => role === "assistant");
  const given = new Set(path.slice(at + 1).map(({ call }) => call));
  return at < 0 ? [] : path[at].calls.filter(({ id }) => !given.has(id));
}

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

// The request's body. `defaults` are the model's own sampling parameters, `settings` the reader's,
// which win. Throws SyntaxError where tools are not JSON.
export function bodyOf(messages, settings, defaults = {}) {
  const kept = messages.filter(({ finish, content, calls }) =>
    finish !== "failed" || content || calls.length);
  const body = { ...defaults, messages: kept.map(sent), stream: true };
  body.stream_options = { include_usage: true, continuous_usage_stats: true };
  body.return_progress = true;
  const { system = "", constraint, pattern = "", tools = "", effort, model } = settings;
  if (system.trim()) body.messages.unshift({ role: "system", content: system });
  if (model) body.model = model;
  for (const name of NUMBERS) {
    if (settings[name]?.trim()) body[name] = Number(settings[name]);
  }
  if (constraint === "regex") body.regex = pattern;
  if (constraint === "json_schema") body.json_schema = pattern;
  if (tools.trim()) body.tools = parsed(tools);
  if (effort) body.reasoning_effort = effort;
  if (continues(kept.at(-1))) {
    body.continue_final_message = true;
    body.add_generation_prompt = false;
  }
  return body;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`The tools are not JSON: ${error.message}`);
  }
}
