// The log keeps its end in sight while an answer grows, unless the reader has scrolled up.

import { $ } from "./dom.js";

const NEAR = 60; // pixels

let following = true;
const below = () => $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight;

export function startScroll() {
  $("scroll").addEventListener("scroll", () => {
    following = below() < NEAR;
    $("to-end").hidden = following;
  }, { passive: true });
  $("to-end").addEventListener("click", toEnd);
}

export function toEnd() {
  following = true;
  $("scroll").scrollTop = $("scroll").scrollHeight;
  $("to-end").hidden = true;
}

export function follow() {
  if (following) $("scroll").scrollTop = $("scroll").scrollHeight;
}
