// The field that one writes in, and what is attached to it.

import { $, button, el, icon, problem } from "./dom.js";
import { withAttached } from "./attachments.js";

let files = [];
let attaching = Promise.resolve();
let busy = false;

// `actions` has send(text, files), stop() and editLast().
export function startComposer(actions) {
  const send = () => {
    const text = $("say").value;
    if (busy || (!text.trim() && !files.length)) return;
    actions.send(text, files);
    setDraft("");
  };
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (busy) actions.stop();
    else send();
  });
  $("say").addEventListener("input", fit);
  $("say").addEventListener("keydown", (event) => {
    if (event.key === "ArrowUp" && !$("say").value && !busy) {
      event.preventDefault();
      actions.editLast();
    }
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  $("attach").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    attach([...$("file").files]);
    $("file").value = "";
  });
  $("say").addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    attach([...event.clipboardData.files]);
  });
  takeDrops($("chat"));
}

function takeDrops(area) {
  const carries = (event) => event.dataTransfer.types.includes("Files");
  area.addEventListener("dragover", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    area.classList.add("dropping");
  });
  area.addEventListener("dragleave", (event) => {
    if (!area.contains(event.relatedTarget)) area.classList.remove("dropping");
  });
  area.addEventListener("drop", (event) => {
    area.classList.remove("dropping");
    if (!carries(event)) return;
    event.preventDefault();
    attach([...event.dataTransfer.files]);
  });
}

// One after the other: reading an image takes longer than the next paste.
function attach(given) {
  complain(null);
  attaching = attaching.then(async () => {
    try {
      files = await withAttached(files, given);
    } catch (error) {
      complain(error);
    }
    showFiles();
    $("say").focus();
  });
}

function showFiles() {
  $("attached").hidden = !files.length;
  $("attached").replaceChildren(...files.map((file) => el("li", {},
    file.kind === "image" ? el("img", { src: file.data, alt: "" }) : icon("file-text"),
    el("span", {}, file.name),
    button("", () => {
      files = files.filter((one) => one !== file);
      showFiles();
      $("say").focus();
    }, { ariaLabel: `Remove ${file.name}`, className: "tool bare close" }))));
  for (const one of $("attached").querySelectorAll(".close")) one.append(icon("x"));
}

export function complain(error) {
  $("problem").replaceChildren(...(error ? [problem(error)] : []));
}

export function setDraft(text) {
  $("say").value = text;
  files = [];
  showFiles();
  fit();
}

// One button sends, or stops what is written.
export function setBusy(now) {
  busy = now;
  $("send").ariaLabel = $("send").title = now ? "Stop" : "Send";
  $("send").firstElementChild.className = `icon icon-${now ? "square" : "arrow-up"}`;
}

// As high as its text, up to what the style sheet allows.
function fit() {
  $("say").style.height = "auto";
  $("say").style.height = `${$("say").scrollHeight + 2}px`;
}
