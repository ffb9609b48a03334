// The live view: snapshots of the engine about once a second, while somebody looks.

import { $ } from "./dom.js";
import { ask, events } from "./http.js";
import { showHour } from "./hour.js";
import { showMeters } from "./meters.js";
import { showRequests } from "./requests.js";
import { showPrograms } from "./submitted.js";
import { showTree, startTree } from "./tree.js";

const NODES = 300;
const RETRY = [1, 1, 2, 4, 5]; // seconds

let control = null; // the AbortController of the stream under way
let chosen = false; // this view is the one on the page
let paused = false;
let last = null; // the snapshot shown

export function startLive() {
  addEventListener("view", (event) => {
    chosen = event.detail.view === "live";
    listen();
  });
  addEventListener("key", () => listen(true));
  document.addEventListener("visibilitychange", () => listen());
  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").textContent = paused ? "Go on" : "Pause";
    $("pause").ariaPressed = String(paused);
    listen();
  });
  for (const id of ["true-scale", "hide-template"]) {
    $(id).addEventListener("change", () => last && drawTree());
  }
  startTree(() => last && drawTree());
}

// Opens the stream where it should be open, closes it where it should not.
function listen(anew = false) {
  const wanted = chosen && !paused && !document.hidden;
  if (control && (anew || !wanted)) {
    control.abort();
    control = null;
  }
  if (wanted && !control) watch((control = new AbortController()));
  if (paused) say("paused", "quiet");
}

async function watch({ signal }) {
  for (let tries = 0; !signal.aborted; tries += 1) {
    try {
      say(tries ? "reconnecting ..." : "connecting ...", "quiet");
      const stream = await ask(`live/events?limit=${NODES}&interval=1`, { signal });
      for await (const snapshot of events(stream)) {
        tries = 0;
        show(snapshot);
      }
    } catch (error) {
      if (signal.aborted) return;
      say(`${error.message} Reconnecting ...`, "error");
      if (error.status === 401 || error.status === 403) {
        say(error.message, "error"); // until there is another key
        return;
      }
    }
    await pauseFor(RETRY[Math.min(tries, RETRY.length - 1)], signal);
  }
}

function pauseFor(seconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}

function show(snapshot) {
  if (snapshot.busy) return say("the engine is in a long pass", "quiet");
  last = snapshot;
  say(`live: ${snapshot.model}`, "good");
  showMeters(snapshot);
  showHour(snapshot);
  showRequests(snapshot);
  showPrograms(snapshot);
  drawTree();
}

function drawTree() {
  showTree(last.tree, $("true-scale").checked, $("hide-template").checked);
}

// Written only where the words change, so that a screen reader is not told each second.
function say(text, kind) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = kind;
}
