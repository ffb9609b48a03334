// The three views behind #chat, #program and #live, and what they share: the key, the model's name.

import { $, el } from "./dom.js";
import { startChat } from "./chat.js";
import { askKey, startKey } from "./key.js";
import { startLive } from "./live.js";
import { learnModel, model } from "./model.js";
import { startProgram } from "./program.js";

const VIEWS = ["chat", "program", "live"];

// The address is #view, or #view/rest: #chat/ID is one conversation, #chat/ a new one, and #chat the one
// that was on the page.
function showView() {
  const [wanted, rest] = location.hash.slice(1).split("/");
  const view = VIEWS.includes(wanted) ? wanted : VIEWS[0];
  for (const name of VIEWS) $(name).hidden = name !== view;
  document.body.dataset.view = view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  dispatchEvent(new CustomEvent("view", { detail: { view, rest } }));
  if (view !== "chat") scrollTo(0, 0);
}

async function showModel() {
  try {
    await learnModel();
    $("model").textContent = model.name;
    $("model").className = "quiet";
    $("model-choice").replaceChildren(...model.names.map((name) => el("option", {}, name)));
    dispatchEvent(new CustomEvent("model"));
  } catch (error) {
    const locked = error.status === 401 || error.status === 403;
    $("model").textContent = locked ? "needs an API key" : error.message;
    $("model").className = "error";
    if (locked) askKey("The server wants an API key.");
  }
}

addEventListener("hashchange", showView);
addEventListener("key", showModel);
startKey();
startChat();
startProgram();
startLive();
showView();
showModel();
