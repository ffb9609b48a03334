// The API key: asked for where the server wants one, and kept for this tab alone.

import { $ } from "./dom.js";
import { getKey, setKey } from "./http.js";

export function startKey() {
  $("open-key").addEventListener("click", () => askKey());
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    setKey($("key").value.trim());
    $("key-dialog").close();
    dispatchEvent(new CustomEvent("key"));
  });
  $("forget-key").addEventListener("click", () => {
    $("key").value = "";
    $("key-form").requestSubmit();
  });
  $("key-close").addEventListener("click", () => $("key-dialog").close());
}

export function askKey(reason = "") {
  $("key-reason").textContent = reason;
  $("key").value = getKey();
  $("forget-key").hidden = !getKey();
  if (!$("key-dialog").open) $("key-dialog").showModal();
}
