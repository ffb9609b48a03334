// "Why was this not cached?": what /explain/ID says of an answer's prompt.

import { el, problem } from "./dom.js";
import { askJson } from "./http.js";

export function why(id) {
  const box = el("details", { className: "why" }, el("summary", {}, "Why not cached?"));
  box.addEventListener("toggle", async () => {
    if (!box.open || box.children.length > 1) return;
    try {
      const { prompts } = await askJson(`explain/${encodeURIComponent(id)}`);
      box.append(el("div", {}, ...prompts.map(({ text }) => el("pre", {}, text))));
    } catch (error) {
      box.append(problem(error));
    }
  });
  return box;
}
