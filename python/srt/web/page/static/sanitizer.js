// The one way from a text to markup: DOMPurify, with what is listed here.

import "./vendor/dompurify/purify.min.js";

const KEPT = {
  ALLOWED_TAGS: ["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li",
    "blockquote", "pre", "code", "em", "strong", "s", "a", "table", "thead", "tbody", "tr", "th",
    "td", "span"],
  ALLOWED_ATTR: ["href", "title", "class", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

// A DocumentFragment.
export const sanitized = (html) => globalThis.DOMPurify.sanitize(html, KEPT);
