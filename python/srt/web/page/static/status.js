// The line below the composer: how much of the context is used, and how fast the model writes.

import { $ } from "./dom.js";
import { rate } from "./message.js";
import { model } from "./model.js";

export function showStatus(path) {
  const last = path.findLast(({ usage }) => usage);
  const used = last ? last.usage.prompt_tokens + last.usage.completion_tokens : 0;
  const share = model.context ? Math.min(1, used / model.context) : 0;
  $("context").hidden = !model.context;
  $("context-bar").style.width = `${100 * share}%`;
  $("context").classList.toggle("tight", share > 0.85);
  $("context-text").textContent =
    `${used.toLocaleString("en")} of ${model.context.toLocaleString("en")} tokens`;
  const speed = last && rate(last.usage.completion_tokens, last.first, last.seconds);
  $("speed").textContent = speed ? `${speed} tokens/s` : "";
}
