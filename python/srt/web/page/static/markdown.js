// Markdown of a model. Its text is hostile: markdown-it takes no HTML, DOMPurify lets through what
// sanitizer.js lists, the page's policy runs no script but the server's own, and nothing is loaded from
// elsewhere.

import "./vendor/markdown-it/markdown-it.umd.min.js";
import { fillCode, fillFormulas } from "./fillings.js";
import { mathRules } from "./math_rules.js";
import { sanitized } from "./sanitizer.js";

const md = globalThis.markdownit({ html: false, linkify: true }).use(mathRules);
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // main.rs is a file

const LOOPBACK = /^(([^.]+\.)*localhost\.?|127\.[\d.]+|0\.0\.0\.0|\[::(1|ffff:7f[\da-f]{2}:[\da-f]+|ffff:0:0)?\])$/;

// An image would tell another site that it was read, and a style attribute is no use here.
md.renderer.rules.image = (tokens, at) => {
  const { escapeHtml } = md.utils;
  const name = escapeHtml(tokens[at].content || "image");
  return `<a href="${escapeHtml(tokens[at].attrGet("src") ?? "")}">${name}</a>`;
};
for (const name of ["th_open", "td_open"]) {
  md.renderer.rules[name] = (tokens, at, options, env, self) => {
    const token = tokens[at];
    const side = /text-align:(\w+)/.exec(token.attrGet("style") ?? "")?.[1];
    token.attrs = side ? [["class", `to-${side}`]] : null;
    return self.renderToken(tokens, at, options);
  };
}

// A growing text in a box: blocks that have not changed keep their elements, and so what a reader
// selected, unfolded or scrolled in them.
export class MarkdownView {
  constructor(box) {
    this.box = box;
    this.blocks = []; // [{source, nodes}]
    this.text = null;
  }

  show(text, whole = true) {
    if (text === this.text && (!whole || this.whole)) return;
    Object.assign(this, { text, whole });
    const env = {};
    const tokens = md.parse(text, env);
    const sources = blocksOf(tokens, text.split("\n"));
    const renewed = whole && Object.keys(env.references ?? {}).length > 0;
    let same = 0;
    while (!renewed && this.blocks[same] && this.blocks[same].source === sources[same]?.source) same += 1;
    for (const { nodes } of this.blocks.splice(same)) nodes.forEach((node) => node.remove());
    for (const { source, from, to } of sources.slice(same)) {
      const fragment = sanitized(md.renderer.render(tokens.slice(from, to), md.options, env));
      finish(fragment);
      const nodes = [...fragment.childNodes];
      this.box.append(fragment);
      this.blocks.push({ source, nodes });
    }
  }
}

// Top-level blocks: {source, from, to}, with indices of their tokens.
function blocksOf(tokens, lines) {
  const found = [];
  tokens.forEach((token, at) => {
    if (token.level === 0 && token.nesting >= 0) {
      const [first, last] = token.map ?? [0, 0];
      found.push({ source: `${token.type} ${lines.slice(first, last).join("\n")}`, from: at });
    }
  });
  found.forEach((block, i) => (block.to = found[i + 1]?.from ?? tokens.length));
  return found;
}

function finish(fragment) {
  for (const link of fragment.querySelectorAll("a")) secure(link);
  for (const table of fragment.querySelectorAll("table")) {
    const frame = Object.assign(document.createElement("div"), { className: "wide", tabIndex: 0 });
    frame.role = "region";
    frame.ariaLabel = "Table";
    table.replaceWith(frame);
    frame.append(table);
  }
  const formulas = [...fragment.querySelectorAll("code.math")];
  if (formulas.length) fillFormulas(formulas);
  fragment.querySelectorAll("pre > code").forEach(fillCode);
}

// A link opens elsewhere, and without a word of this page. One to this server would act for its
// reader, so it is text.
function secure(link) {
  if (!link.href || isHere(link)) {
    link.replaceWith(...link.childNodes);
    return;
  }
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  link.title ||= link.href;
}

// Whether a link leads to this server: by the page's own address, or by a name that this machine has
// for itself. A name that only a resolver knows is not seen through.
function isHere({ hostname, port }) {
  return Boolean(hostname) && port === location.port
    && (hostname === location.hostname || LOOPBACK.test(hostname));
}
