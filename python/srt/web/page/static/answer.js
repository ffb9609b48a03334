// One answer: the request, and the message as it grows.

import { askKey } from "./key.js";
import { ask, events } from "./http.js";
import { model } from "./model.js";
import { bodyOf, fresh, grow } from "./reply.js";

// Writes the answer to `path` into `message`; `grown` is called with each piece. Never throws: an
// error is the message's.
export async function answer(path, message, settings, signal, grown) {
  const began = performance.now();
  const elapsed = () => (performance.now() - began) / 1000;
  try {
    const begun = message.begun ? [fresh("assistant", message.begun)] : [];
    const body = bodyOf([...path, ...begun], settings, model.defaults);
    const stream = await ask("v1/chat/completions", { body, signal });
    for await (const chunk of events(stream)) {
      const before = message.content + message.reasoning;
      grow(message, chunk);
      message.seconds = elapsed();
      if (before !== message.content + message.reasoning) {
        message.first ??= message.seconds;
        delete message.reading;
      }
      if (message.reasoning && (message.content || message.calls.length)) {
        message.thought ??= message.seconds - message.first;
      }
      grown();
    }
  } catch (error) {
    const stopped = error.name === "AbortError";
    message.error = stopped ? "" : error.message;
    message.finish = stopped ? "stopped" : "failed";
    if (error.status === 401) askKey("The server wants an API key.");
  }
  delete message.reading;
  message.finish ||= "stop";
  if (message.finish === "error") message.error ||= message.note || "The server failed.";
  message.seconds = elapsed();
}
