// One message of the conversation on the page.

import { count, el, iconButton, percent, problem } from "./dom.js";
import { copied } from "./fillings.js";
import { CallFold, ReasoningFold } from "./folds.js";
import { MarkdownView } from "./markdown.js";
import { continues } from "./reply.js";
import { why } from "./why.js";

// `actions` has give(node, call, text), retry(node), edit(node, text), branch(node), resume(node) and
// turn(node), which shows a message that stands beside one.
export class MessageView {
  constructor(node, actions) {
    Object.assign(this, { message: node, actions, calls: [], raw: false });
    this.reasoning = new ReasoningFold();
    this.files = el("div", { className: "files" }, ...(node.files ?? []).map(fileView));
    this.text = el("div", { className: node.role === "assistant" ? "text prose" : "text" });
    this.markdown = new MarkdownView(this.text);
    this.callBox = el("div", { className: "calls" });
    this.foot = el("footer");
    this.body = el("div", { className: "body" }, this.reasoning.node, this.files, this.text, this.callBox);
    this.node = el("article", { className: `message ${node.role}` },
      el("h3", { className: "out" }, node.role === "user" ? "You" : "Assistant"), this.body, this.foot);
    this.due = 0;
  }

  // Shows the text so far. A long text is shown less often: at most a quarter of the time is spent.
  grow() {
    const now = performance.now();
    if (now < this.due) return;
    this.update(false);
    this.due = performance.now() + Math.max(40, 3 * (performance.now() - now));
  }

  update(whole = true, results = this.results) {
    this.results = results;
    const { message } = this;
    const growing = !message.finish && message.role === "assistant";
    this.node.classList.toggle("growing", growing);
    if (growing) this.foot.replaceChildren(...reading(message));
    this.reasoning.update(message);
    if (message.role !== "assistant" || this.raw) this.text.textContent = message.content;
    else this.markdown.show(message.content, whole);
    message.calls.forEach((call, i) => {
      if (!this.calls[i]) {
        this.calls[i] = new CallFold(call, (one, text) => this.actions.give(message, one, text));
        this.callBox.append(this.calls[i].node);
      }
      this.calls[i].update(message, results?.get(call.id));
    });
  }

  // `siblings` are the messages that stand beside this one; `results` those of its calls, by id.
  end(siblings, results) {
    this.update(true, results);
    this.foot.replaceChildren(...this.footer(siblings));
  }

  footer(siblings) {
    const { message, actions } = this;
    const ended = message.role === "user" || message.finish;
    if (!ended) return [];
    const mine = message.role === "assistant";
    const cut = ["length", "stopped", "interrupted", "abort", "failed"].includes(message.finish);
    return [
      message.error ? problem(new Error(message.error)) : null,
      siblings.length > 1 ? this.pager(siblings) : null,
      this.copyButton(),
      iconButton("pencil", "Edit", () => this.edit()),
      mine ? iconButton("refresh-cw", "Try again", () => actions.retry(message)) : null,
      mine && cut && continues(message)
        ? iconButton("step-forward", "Continue", () => actions.resume(message)) : null,
      iconButton("git-branch", "Branch into a new chat", () => actions.branch(message)),
      mine && message.content ? this.rawButton() : null,
      el("span", { className: "quiet facts" }, facts(message)),
      mine && message.reply && message.usage ? why(message.reply) : null,
    ].filter(Boolean);
  }

  pager(siblings) {
    const at = siblings.indexOf(this.message);
    const turn = (by) => () => this.actions.turn(siblings[at + by]);
    const back = iconButton("chevron-left", "Earlier version", turn(-1));
    const on = iconButton("chevron-right", "Later version", turn(1));
    back.disabled = at === 0;
    on.disabled = at === siblings.length - 1;
    return el("span", { className: "pager", role: "group", ariaLabel: "Versions" }, back,
      el("span", {}, `${at + 1}/${siblings.length}`), on);
  }

  copyButton() {
    const one = iconButton("copy", "Copy", () => copied(one, this.message.content));
    return one;
  }

  rawButton() {
    const one = iconButton("code-xml", "Show the source", () => {
      this.raw = !this.raw;
      one.ariaPressed = String(this.raw);
      this.text.classList.toggle("prose", !this.raw);
      this.markdown = new MarkdownView(this.text);
      this.text.replaceChildren();
      this.update();
    });
    one.ariaPressed = String(this.raw);
    return one;
  }

  edit() {
    const input = el("textarea", { value: this.message.content, ariaLabel: "Edit the message" });
    const close = () => (form.replaceWith(this.body), (this.foot.hidden = false));
    const save = () => {
      close();
      this.actions.edit(this.message, input.value);
    };
    const form = el("form", {
      className: "edit",
      onsubmit: (event) => (event.preventDefault(), save()),
      onkeydown: (event) => {
        if (event.key === "Escape") close();
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
      },
    }, input, el("div", { className: "bar" }, el("span", { className: "space" }),
      el("button", { type: "button", onclick: close }, "Cancel"),
      el("button", { className: "main" }, this.message.role === "user" ? "Send" : "Save")));
    this.body.replaceWith(form);
    this.foot.hidden = true;
    input.style.height = `${Math.min(input.scrollHeight + 4, innerHeight / 2)}px`;
    input.focus();
  }
}

function fileView({ kind, name, data, text }) {
  if (kind === "image") return el("img", { src: data, alt: name, className: "picture" });
  return el("details", { className: "fold" },
    el("summary", {}, name, el("span", { className: "quiet" }, count(text.length, "character"))), el("pre", {}, text));
}

// How much of a prompt that takes several passes is computed.
function reading({ reading: found }) {
  if (!found || found.processed >= found.total) return [];
  const text = `Reading the prompt: ${percent(found.processed / found.total)} of ${count(found.total, "token")}`;
  return [el("span", { className: "quiet facts" }, text)];
}

function facts({ usage, finish, note, seconds, first }) {
  const found = [];
  if (finish && !["stop", "tool_calls", "error", "failed"].includes(finish)) found.push(note ? `${finish}: ${note}` : finish);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const speed = rate(usage.completion_tokens, first, seconds);
    found.push(`${count(usage.completion_tokens, "token")}${speed ? ` at ${speed}/s` : ""}`);
    found.push(`prompt ${usage.prompt_tokens}, ${percent(cached / usage.prompt_tokens)} cached`);
  }
  if (first !== undefined) found.push(`first after ${first.toFixed(2)} s`);
  return found.join(" · ");
}

// Tokens a second behind the first one; 0 where there are too few to tell.
export function rate(tokens, first, seconds) {
  if (!(tokens > 1) || !(seconds > first)) return 0;
  const found = (tokens - 1) / (seconds - first);
  return found < 10 ? Number(found.toFixed(1)) : Math.round(found);
}
