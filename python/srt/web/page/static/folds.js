// Parts of an answer that are folded: its reasoning, and its calls of tools with their results.

import { count, el, span } from "./dom.js";

// Open while the model only thinks; then closed, unless the reader has opened it.
export class ReasoningFold {
  constructor() {
    this.label = el("span");
    this.text = el("div", { className: "text" });
    this.node = el("details", { className: "fold reasoning", hidden: true },
      el("summary", { onclick: () => (this.touched = true) }, this.label), this.text);
    this.touched = false;
  }

  update({ reasoning, content, calls, finish, thought }) {
    const thinking = !content && !calls.length && !finish;
    this.node.hidden = !reasoning;
    this.label.textContent = thinking ? "Thinking …" : thought > 0.1 ? `Thought for ${span(thought)}` : "Thought";
    if (this.text.textContent !== reasoning) this.text.textContent = reasoning;
    if (!this.touched) this.node.open = thinking && Boolean(reasoning);
  }
}

// `give(call, text)` is called with a result that the reader types.
export class CallFold {
  constructor(call, give) {
    this.call = call;
    this.name = el("strong");
    this.short = el("span", { className: "quiet" });
    this.state = el("span", { className: "quiet state" });
    this.text = el("pre");
    this.result = el("div");
    this.node = el("details", { className: "fold call" },
      el("summary", {}, this.name, this.short, this.state), this.text, this.result);
    this.give = give;
  }

  update({ finish }, result) {
    const { name, text } = this.call;
    this.name.textContent = name || "…";
    this.short.textContent = text.replace(/\s+/g, " ").slice(0, 120);
    this.text.textContent = indented(text);
    this.state.textContent = result ? "" : finish ? "wants a result" : "calling …";
    if (result && this.shown !== result.content) {
      this.shown = result.content;
      const lines = count(result.content.split("\n").length, "line");
      this.node.open &&= !this.waiting; // it was open for the result
      this.waiting = false;
      this.result.replaceChildren(el("h4", {}, `Result, ${lines}`), el("pre", {}, result.content));
    } else if (!result && finish && !this.result.children.length) {
      this.result.append(this.form());
      this.waiting = true;
      this.node.open = true;
    }
  }

  form() {
    const input = el("textarea", { rows: 2, spellcheck: false });
    return el("form", {
      className: "give",
      onsubmit: (event) => {
        event.preventDefault();
        this.give(this.call, input.value);
      },
    }, el("label", {}, `Result of ${this.call.name}`, input), el("button", { className: "main" }, "Give"));
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not whole yet
  }
}
