// A reply as it grows: the deltas of a chat's stream, put together.

// Adds one chunk's delta to a message {content, reasoning, calls, finish, id, usage}.
export function grow(message, chunk) {
  message.id = chunk.id ?? message.id;
  if (chunk.usage) message.usage = chunk.usage;
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

export const fresh = (role, content = "") => ({
  role, content, reasoning: "", calls: [], finish: "", note: "", id: "", usage: null, error: "",
});

// A message as the API takes it.
export function sent(message) {
  const { role, content } = message;
  if (role === "tool") return { role, content, tool_call_id: message.call };
  if (!message.calls.length) return { role, content };
  const tool_calls = message.calls.map(({ id, name, text }) => ({
    id, type: "function", function: { name, arguments: text },
  }));
  return { role, content, tool_calls };
}

// Whether the model is to go on with this message, the last one, rather than to answer it.
export const goesOn = (message) => message?.role === "assistant" && !message.calls.length;

// The request's body. Throws SyntaxError where tools are not JSON.
export function bodyOf(messages, settings) {
  const kept = messages.filter(({ finish, content }) => finish !== "failed" || content);
  const body = { messages: kept.map(sent), stream: true };
  body.stream_options = { include_usage: true };
  if (settings.system) body.messages.unshift({ role: "system", content: settings.system });
  for (const name of ["temperature", "max_tokens", "top_p", "seed"]) {
    if (settings[name] !== "") body[name] = Number(settings[name]);
  }
  if (settings.constraint === "regex") body.regex = settings.pattern;
  if (settings.constraint === "json_schema") body.json_schema = settings.pattern;
  if (settings.tools.trim()) body.tools = parsed(settings.tools);
  if (goesOn(kept.at(-1))) {
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
