// Requests to this server: the key, errors as the server words them, server-sent events.

const KEY = "sglang.key";

export const getKey = () => sessionStorage.getItem(KEY) ?? "";

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

// status 0: no answer at all.
export class ApiError extends Error {
  constructor(message, status = 0, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// GET, or POST where there is a body. Throws ApiError unless the status is 200.
export async function ask(path, { body, signal } = {}) {
  const headers = {};
  if (getKey()) headers.Authorization = `Bearer ${getKey()}`;
  const options = { headers, signal, cache: "no-store" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  let reply;
  try {
    reply = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (reply.ok) return reply;
  throw worded(await reply.text().catch(() => ""), reply.status);
}

export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

// The JSON of each event until [DONE]. Throws ApiError where the stream brings an error or breaks.
export async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let ended = false;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done && ended) return;
      if (done) break;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = dataOf(block);
        ended ||= data === "[DONE]";
        if (!data || ended) continue; // a comment that keeps the connection open
        const item = JSON.parse(data);
        if (item.error) throw worded(data, 200);
        yield item;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("The connection broke off.");
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ApiError("The stream ended before its end.");
}

function dataOf(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

function worded(text, status) {
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // not JSON: a proxy's page, say
  }
  const facts = [status === 200 ? "" : status, error.code, error.param].filter(Boolean);
  const message = error.message || "The server refused the request.";
  return new ApiError(`${message} (${facts.join(", ")})`, status, error.code ?? "");
}
