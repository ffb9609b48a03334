// Panel: what is known of one span, sums, and all spans as a table. Texts are put in as texts.

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "style") for (const [property, to] of Object.entries(value)) made.style.setProperty(property, to);
    else if (key === "click") made.addEventListener("click", value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const painted = name => ({ background: `var(--${name})` });

function pairs(rows) {
  return element("dl", {}, ...rows.filter(([, value]) => value !== undefined && value !== "" && value !== null)
    .flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function bar(parts) {
  const whole = parts.reduce((sum, [, size]) => sum + size, 0) || 1;
  return element("div", { class: "bar" }, ...parts.map(([colour, size]) =>
    element("i", { style: { ...painted(colour), width: `${100 * size / whole}%` } })));
}

function facts(span) {
  const { data } = span, prompt = data.prompt_tokens, cached = data.cached_tokens;
  return [
    ["status", span.status === "ok" ? "" : span.status],
    ["error", span.error],
    ["at", seconds(span.begin)],
    ["took", seconds(span.end - span.begin)],
    ["prompt", prompt === undefined ? "" : counted(prompt, "token") +
      (cached === undefined ? "" : `, ${number(cached)} cached (${percent(prompt ? cached / prompt : 0)})`)],
    ["written", data.completion_tokens === undefined ? "" : counted(data.completion_tokens, "token") +
      (data.forced_tokens ? `, ${number(data.forced_tokens)} of them forced` : "")],
    ["guessed", data.drafted_tokens ? `${counted(data.drafted_tokens, "token")}, ${number(data.accepted_tokens || 0)} accepted` : ""],
    ["passes", data.forward_passes ? number(data.forward_passes) : ""],
    ["retracted", data.retractions ? counted(data.retractions, "time") : ""],
    ["cost", span.cost === undefined ? "" : dollars(span.cost)],
    ["critical path", span.critical ? "yes" : ""],
  ];
}

function describe(span, model, close) {
  const panel = document.getElementById("panel");
  const parts = [
    element("button", { class: "close", click: close, "aria-label": "Close", title: "Close (Esc)" }, "×"),
    element("h2", { class: span.status }, titled(span)),
    element("div", {}, `${called(span.home.home)} · ${span.home.label}`),
    pairs(facts(span)),
  ];
  const phases = phasesOf(span);
  if (phases.length) {
    parts.push(element("h3", {}, "Where the time went"), bar(phases.map(([name, begin, end]) => [PHASES[name], end - begin])));
    const sums = new Map();
    for (const [name, begin, end] of phases) sums.set(PHASES[name], [worded(name), (sums.get(PHASES[name])?.[1] || 0) + end - begin]);
    parts.push(pairs([...sums].map(([colour, [name, size]]) => [mark(colour, name), seconds(size)])));
  }
  const tokens = tokensOf(span.data);
  if (tokens.length) {
    parts.push(element("h3", {}, "Tokens"), bar(tokens));
    parts.push(pairs(tokens.map(([name, count]) => [mark(name, TOKENS[name]), number(count)])));
  }
  for (const output of span.data.outputs || []) {
    const note = output.reused ? " · taken from what the call before had written" : "";
    parts.push(element("h3", {}, `Text${output.name ? " of " + output.name : ""}${note}`), element("pre", {}, output.text || " "));
    if (output.chars > output.text.length) parts.push(element("div", {}, `${number(output.chars)} characters in all`));
  }
  if (span.data.prompt !== undefined) {
    const left = span.data.prompt_chars - span.data.prompt.length;
    parts.push(element("h3", {}, `Prompt${left > 0 ? `, its end (${number(span.data.prompt_chars)} characters)` : ""}`));
    parts.push(element("pre", {}, (left > 0 ? "…" : "") + (span.data.prompt || " ")));
  }
  const params = Object.entries(span.data.params || {});
  if (params.length) parts.push(element("h3", {}, "Parameters"), pairs(params));
  if (span.asked.length > 1) {
    parts.push(element("h3", {}, `${span.asked.length} requests`), pairs(span.asked.map((one, i) =>
      [`${i + 1}`, `${seconds(one.end - one.begin)}${one.data.rows ? `, ${counted(one.data.rows, "text")}` : ""}`])));
  }
  if (span.source) parts.push(element("h3", {}, span.source), element("pre", {}, span.code || " "));
  panel.replaceChildren(...parts);
  panel.hidden = false;
}

const mark = (colour, words) => element("span", { class: "phase" }, element("i", { style: painted(colour) }), words);

// What the pointer is over.
function hint(span) {
  const words = facts(span).filter(([name, value]) => value && !["at", "error", "critical path"].includes(name));
  const made = [element("b", {}, titled(span)), element("p", {}, words.map(([name, value]) => `${name} ${value}`).join(" · "))];
  const phases = phasesOf(span).map(([name, begin, end]) => `${worded(name)} ${seconds(end - begin)}`);
  if (phases.length > 1 && phases.length < 8) made.push(element("p", {}, phases.join(" → ")));
  const text = (span.data.outputs || []).map(output => output.text).join(" | ");
  if (span.error) made.push(element("p", { class: "error" }, span.error));
  if (text) made.push(element("p", { class: "text" }, text.length > 240 ? text.slice(0, 240) + "…" : text));
  return made;
}

// -- sums -----------------------------------------------------------------------------------------

function sums(view) {
  const { totals } = view, cards = [], wall = totals.wall_seconds;
  const card = (name, value, note = "", parts = null, bad = false) => cards.push(element("div", {},
    element("dt", {}, name),
    element("dd", bad ? { class: "bad" } : {}, value, ...(note ? [element("small", {}, note)] : []),
      ...(parts ? [meter(parts)] : []))));
  card("Wall", seconds(wall), counted(totals.runs, "run"));
  card("Model time", seconds(totals.model_seconds), wall ? `${(totals.model_seconds / wall).toFixed(1)} calls at a time` : "");
  const outermost = view.groups.filter(group => group.parent === null).length;
  if (outermost > 1) {
    const longest = view.groups.reduce((a, b) => b.end - b.begin > a.end - a.begin ? b : a);
    card("Longest run", seconds(longest.end - longest.begin), shortened(called(longest), 28));
  } else if (totals.critical_seconds && wall) {
    card("Critical path", seconds(totals.critical_seconds), `${percent(Math.min(totals.critical_seconds / wall, 1))} of the wall`);
  }
  if (totals.code_seconds >= 0.001) card("Program code", seconds(totals.code_seconds), "tools, and the like");
  card("Requests", number(totals.requests), totals.reused ? `${number(totals.reused)} more were saved` : "");
  card("Prompt tokens", number(totals.prompt_tokens), totals.hit_rate === null ? "" : `${percent(totals.hit_rate)} from the cache`,
    totals.hit_rate === null ? null : [["cached", totals.cached_tokens], ["new", totals.prompt_tokens - totals.cached_tokens]]);
  const drawn = tokensOf({ ...totals, prompt_tokens: 0, cached_tokens: 0 });
  const note = [totals.forced_tokens ? `${number(totals.forced_tokens)} forced` : "",
    totals.drafted_tokens ? `${number(totals.accepted_tokens)} of ${number(totals.drafted_tokens)} guesses right` : ""];
  card("Written tokens", number(totals.completion_tokens), note.filter(Boolean).join(", "), drawn.length > 1 ? drawn : null);
  if (totals.cost !== null) card("Cost", dollars(totals.cost));
  if (totals.errors) card("Failed", number(totals.errors), "", null, true);
  if (totals.cancelled) card("Cancelled", number(totals.cancelled));
  document.getElementById("totals").replaceChildren(...cards);
}

const shortened = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;

const meter = parts => {
  const whole = parts.reduce((sum, [, size]) => sum + size, 0) || 1;
  return element("div", { class: "meter" }, ...parts.map(([colour, size]) =>
    element("i", { style: { ...painted(colour), width: `${100 * size / whole}%` } })));
};

function legend(view, model) {
  const phases = new Map(), tokens = new Set();
  for (const span of model.spans) {
    for (const [name] of phasesOf(span)) phases.set(PHASES[name], worded(name));
    for (const [name] of tokensOf(span.data)) tokens.add(name);
    if (!span.asked.length) phases.set("reused", worded("reused"));
  }
  const items = [...phases].map(([colour, name]) => element("li", {}, element("i", { style: painted(colour) }), name));
  if (model.groups.some(group => group.code.length)) items.push(element("li", {}, element("i", { style: painted("code") }), "program code"));
  for (const name of Object.keys(TOKENS)) {
    if (tokens.has(name)) items.push(element("li", { class: "strip" }, element("i", { style: painted(name) }), TOKENS[name]));
  }
  document.getElementById("legend").replaceChildren(...items);
}

// -- the table ------------------------------------------------------------------------------------

const COLUMNS = [
  ["what", span => titled(span)],
  ["run", span => called(span.home.home)],
  ["stream", span => span.home.label],
  ["begins", span => seconds(span.begin), true],
  ["took", span => seconds(span.end - span.begin), true],
  ["queued", span => during(span, "queue"), true],
  ["prefill", span => during(span, "prefill"), true],
  ["decode", span => during(span, "decode"), true],
  ["prompt", span => span.data.prompt_tokens ?? "", true],
  ["cached", span => span.data.cached_tokens ?? "", true],
  ["written", span => span.data.completion_tokens ?? "", true],
  ["forced", span => span.data.forced_tokens || "", true],
  ["accepted", span => span.data.drafted_tokens ? `${span.data.accepted_tokens || 0} of ${span.data.drafted_tokens}` : "", true],
  ["cost", span => span.cost === undefined ? "" : dollars(span.cost), true],
  ["status", span => span.status + (span.error ? `: ${span.error}` : "")],
  ["source", span => span.source],
  ["text", span => (span.data.outputs || []).map(output => output.text).join(" | ").slice(0, 120)],
];

function during(span, phase) {
  const found = phasesOf(span).filter(([name]) => name === phase);
  return found.length ? seconds(found.reduce((sum, [, begin, end]) => sum + end - begin, 0)) : "";
}

function table(model, choose) {
  const shown = COLUMNS.filter(([, of]) => model.spans.some(span => of(span) !== ""));
  const head = element("tr", {}, ...shown.map(([name, , right]) =>
    element("th", { scope: "col", ...(right ? { class: "number" } : {}) }, name)));
  const cell = (span, [name, of, right]) => name === "what"
    ? element("th", { scope: "row" }, element("button", {}, of(span)))
    : element("td", { class: right ? "number" : name === "status" ? span.status : "long" }, `${of(span)}`);
  const body = element("tbody", {}, ...model.spans.map(span => element("tr", { click: () => choose(span) },
    ...shown.map(column => cell(span, column)))));
  return element("table", {}, element("caption", {}, `${counted(model.spans.length, "node")} that needed the model, by the time they began`),
    element("thead", {}, head), body);
}
