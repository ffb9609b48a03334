"use strict";
// Rows: the trace as rows of the chart. A run is a row of its own with its lanes below it.

const ROW = 30, GROUP = 26, AXIS = 26, MANY = 80; // pixels; lanes, above which runs begin closed

const read = () => JSON.parse(document.getElementById("data").textContent);

function arrange(view) {
  const groups = view.groups.map(group => ({ ...group, lanes: [], code: [], open: true }));
  const groupOf = new Map(groups.map(group => [group.number, group]));
  const lanes = view.lanes.map(lane => ({ ...lane, spans: [], home: groupOf.get(lane.group) }));
  const laneOf = new Map(lanes.map(lane => [lane.number, lane]));
  const requests = new Map();
  for (const span of view.spans) if (span.kind === "request") requests.set(span.number, span);
  for (const span of view.spans) {
    const lane = laneOf.get(span.lane);
    if (span.kind === "code") lane.home.code.push(span);
    else if (span.kind !== "request" && span.kind !== "wait") {
      lane.spans.push({ ...span, home: lane, asked: (span.requests || []).map(n => requests.get(n)) });
    }
  }
  for (const group of groups) {
    const around = groupOf.get(group.parent);
    group.depth = around ? Math.min((around.depth || 0) + 1, 6) : 0;
  }
  for (const lane of lanes) lane.spans.sort((a, b) => a.begin - b.begin);
  const marks = new Map(lanes.map(lane => [lane.number, [lane.begin ?? lane.asked, ...lane.spans.map(span => span.end)]]));
  for (const join of view.joins) marks.get(join.lane).push(join.at);
  for (const join of view.joins) join.left = join.lanes.map(number => lastBefore(join.at, marks.get(number)));
  for (const lane of inOrder(lanes)) lane.home.lanes.push(lane);
  if (lanes.length > MANY && groups.length > 1) for (const group of groups) group.open = false;
  const spans = lanes.flatMap(lane => lane.spans).sort((a, b) => a.begin - b.begin);
  const end = groups.reduce((most, group) => Math.max(most, group.end), 1e-6);
  const begin = groups.reduce((least, group) => Math.min(least, group.begin), end);
  return { groups, lanes, laneOf, spans, joins: view.joins, begin, end };
}

const lastBefore = (time, times) => Math.max(...times.filter(at => at <= time));

// Each lane behind the one that it was forked from, in the order of its forks.
function inOrder(lanes) {
  const known = new Set(lanes.map(lane => lane.number)), below = new Map();
  for (const lane of lanes) {
    const key = known.has(lane.parent) ? lane.parent : null;
    if (!below.has(key)) below.set(key, []);
    below.get(key).push(lane);
  }
  const found = [], left = (below.get(null) || []).slice().reverse();
  while (left.length) {
    const lane = left.pop();
    found.push(lane);
    left.push(...(below.get(lane.number) || []).slice().reverse());
  }
  return found;
}

// What is to be shown, each with its place; and how high all of it is.
function rowsOf(groups) {
  const rows = [];
  let top = AXIS;
  for (const group of groups) {
    rows.push(group.row = { group, lane: null, top, height: GROUP });
    top += GROUP;
    for (const lane of group.lanes) {
      lane.row = group.open ? { group, lane, top, height: ROW } : null;
      if (lane.row) { rows.push(lane.row); top += ROW; }
    }
  }
  return { rows, height: top + 8 };
}

// -- words ----------------------------------------------------------------------------------------

function seconds(value) {
  const size = Math.abs(value);
  if (size >= 100) return `${value.toFixed(0)} s`;
  if (size >= 1) return `${value.toFixed(2)} s`;
  if (size >= 0.01) return `${(value * 1e3).toFixed(0)} ms`;
  if (size >= 0.001) return `${(value * 1e3).toFixed(1)} ms`;
  return size === 0 ? "0" : `${(value * 1e6).toFixed(0)} µs`;
}

const counted = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
const number = value => Math.round(value).toLocaleString("en-US");
const dollars = value => value >= 0.1 || value === 0 ? `$${value.toFixed(2)}` : `$${value.toPrecision(2)}`;
const percent = value => `${(100 * value).toFixed(value > 0 && value < 0.0995 || value > 0.9905 && value < 1 ? 1 : 0)} %`;
const titled = span => `${span.kind}${span.name ? " " + span.name : ""}`;
const called = group => `${group.name}${group.arguments ? `(${group.arguments})` : ""}`;

// Phases of all requests of a node, in order.
const phasesOf = span => span.asked.flatMap(request => request.phases);

// Tokens of a node by what they are: names of colours, with counts.
function tokensOf(data) {
  const cached = data.cached_tokens || 0, drawn = data.completion_tokens || 0;
  const forced = Math.min(data.forced_tokens || 0, drawn);
  const accepted = Math.min(data.accepted_tokens || 0, drawn - forced);
  return [
    ["cached", cached], ["new", Math.max((data.prompt_tokens || 0) - cached, 0)],
    ["drawn", drawn - forced - accepted], ["accepted", accepted], ["forced", forced],
  ].filter(([, count]) => count > 0);
}

const PHASES = {
  send: "send", queue: "queue", prefill: "prefill", decode: "decode", reply: "send",
  model: "model", "first token": "first",
};
const WORDS = {
  send: "on the way", reply: "on the way", queue: "queued", "first token": "to the first token", reused: "no call needed",
};
const worded = name => WORDS[name] || name; // prefill, decode, model
const TOKENS = {
  cached: "cached prompt tokens", new: "computed prompt tokens", drawn: "drawn tokens",
  accepted: "guessed and accepted", forced: "forced by the constraint",
};
