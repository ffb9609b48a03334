// The three views behind #chat, #program and #live, and what they share: the key, the model's name.

import { $ } from "./dom.js";
import { askJson, getKey, setKey } from "./http.js";
import { startChat } from "./chat.js";
import { startProgram } from "./program.js";
import { startLive } from "./live.js";

const VIEWS = ["chat", "program", "live"];

function showView() {
  const wanted = location.hash.slice(1);
  const chosen = VIEWS.includes(wanted) ? wanted : VIEWS[0];
  for (const view of VIEWS) $(view).hidden = view !== chosen;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${chosen}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  dispatchEvent(new CustomEvent("view", { detail: chosen }));
  scrollTo(0, 0);
}

async function showModel() {
  try {
    const { data } = await askJson("v1/models");
    $("model").textContent = data[0].id;
    $("model").className = "quiet";
  } catch (error) {
    const locked = error.status === 401 || error.status === 403;
    $("model").textContent = locked ? "needs an API key" : error.message;
    $("model").className = "error";
  }
}

$("key").value = getKey();
$("key-form").addEventListener("submit", (event) => event.preventDefault());
$("key").addEventListener("change", () => {
  setKey($("key").value.trim());
  showModel();
  dispatchEvent(new CustomEvent("key"));
});
addEventListener("hashchange", showView);
startChat();
startProgram();
startLive();
showView();
showModel();
