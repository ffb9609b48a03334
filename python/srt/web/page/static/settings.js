// Settings of the conversation that is shown. What is left empty is the model's own.

import { $ } from "./dom.js";
import { model } from "./model.js";

const FIELDS = ["system", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "effort",
  "constraint", "pattern", "tools"];
const KEPT = "sglang.settings"; // in localStorage: those that a new conversation begins with
const SERVERS = { temperature: 1, top_p: 1, top_k: "off", min_p: 0 }; // where the model says nothing

export function startSettings(changed) {
  for (const name of FIELDS) $(name).addEventListener("change", () => {
    showPattern();
    localStorage.setItem(KEPT, JSON.stringify(readSettings()));
    changed();
  });
  $("constraint").addEventListener("input", showPattern);
  $("reset").addEventListener("click", () => {
    showSettings({});
    localStorage.removeItem(KEPT);
    changed();
  });
  $("open-settings").addEventListener("click", () => toggle($("settings").hidden));
  $("close-settings").addEventListener("click", () => toggle(false));
  addEventListener("model", showDefaults);
}

function toggle(open) {
  $("settings").hidden = !open;
  $("open-settings").ariaExpanded = String(open);
  (open ? $("system") : $("open-settings")).focus();
}

// {name: text} of those that are given.
export function readSettings() {
  const found = FIELDS.map((name) => [name, $(name).value]);
  const chosen = $("model-choice").value;
  if (chosen && chosen !== model.name) found.push(["model", chosen]);
  return Object.fromEntries(found.filter(([, value]) => value !== ""));
}

export function showSettings(settings) {
  for (const name of FIELDS) $(name).value = settings[name] ?? "";
  if (model.names.length) $("model-choice").value = settings.model ?? model.name;
  showPattern();
}

export function lastSettings() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

function showPattern() {
  $("pattern-label").hidden = !$("constraint").value;
}

function showDefaults() {
  for (const [name, value] of Object.entries(SERVERS)) {
    $(name).placeholder = String(model.defaults[name] ?? value);
  }
  $("max_tokens").placeholder = String(model.defaults.max_tokens ?? "all that fits");
  $("defaults-note").textContent = Object.keys(model.defaults).length
    ? "Empty fields take the values of the model's generation_config.json."
    : "The model brings no generation_config.json; empty fields take the server's values.";
}
