// The radix tree as an icicle on its side: an edge's width is its tokens, its height the leaves
// below it. A prefix that many requests share is the wide and tall box that they stand beside.

import { $, count, el, icon, span } from "./dom.js";

const ROW = 22; // pixels a leaf
const OLD = 600; // seconds after which an edge is as pale as it gets

const boxes = new Map(); // by node id, kept from one snapshot to the next
let places = []; // as laid out, top to bottom
let current = null; // id of the node that the arrow keys stand on
let zoomed = null; // id of the node that the picture begins with; null: the whole tree
let again = null; // has the tree laid out again

// Each node with where it stands: {node, parent, level, x, width, row, rows}, x and width in `scale`.
export function layout(nodes, scale) {
  const children = new Map([[-1, []]]);
  const known = new Set(nodes.map(({ id }) => id));
  for (const node of [...nodes].sort((a, b) => a.id - b.id)) {
    const parent = known.has(node.parent) ? node.parent : -1;
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(node);
  }
  const found = [];
  let row = 0;
  const stack = children.get(-1).map((node) => ({ node, parent: null, x: 0, level: 1 })).reverse();
  const open = []; // places whose leaves are still being counted
  while (stack.length) {
    const place = stack.pop();
    while (open.length && open.at(-1) !== place.parent) close(open.pop(), row);
    Object.assign(place, { width: scale(place.node.tokens), row });
    const below = children.get(place.node.id) ?? [];
    if (place.node.tokens) found.push(place);
    if (!below.length) row += 1;
    open.push(place);
    for (const node of [...below].reverse()) {
      stack.push({ node, parent: place, x: place.x + place.width, level: place.level + 1 });
    }
  }
  while (open.length) close(open.pop(), row);
  return { places: found, rows: row };
}

function close(place, row) {
  place.rows = row - place.row;
}

export function startTree(redraw) {
  again = redraw;
}

// Without edges that hold nothing but the chat template; what was below stands where they stood.
export function withoutTemplate(nodes) {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const hidden = (node) => node.plain === "" && node.text !== "";
  const kept = (id) => {
    let at = id;
    while (known.has(at) && hidden(known.get(at))) at = known.get(at).parent;
    return known.has(at) ? at : -1;
  };
  return nodes.filter((node) => !hidden(node))
    .map((node) => ({ ...node, parent: kept(node.parent), text: node.plain || node.text }));
}

// A node and all below it.
export function below(nodes, id) {
  const children = Map.groupBy(nodes, ({ parent }) => parent);
  const found = nodes.filter((node) => node.id === id);
  for (let i = 0; i < found.length; i += 1) found.push(...(children.get(found[i].id) ?? []));
  return found;
}

// Buttons from the whole tree down to what is shown.
function showTrail(nodes) {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const steps = [];
  for (let node = known.get(zoomed); node; node = known.get(node.parent)) steps.unshift(node);
  $("trail").hidden = !steps.length;
  const key = steps.map(({ id }) => id).join();
  if ($("trail").dataset.key === key) return;
  $("trail").dataset.key = key;
  const all = el("button", { type: "button", className: "tool", onclick: () => zoom(null) },
    icon("zoom-out"), el("span", {}, "Whole tree"));
  $("trail").replaceChildren(all, ...steps.map((node) => el("button", {
    type: "button", onclick: () => zoom(node.id), ariaCurrent: node.id === zoomed ? "true" : null,
  }, node.text.slice(0, 24) || "…")));
}

function zoom(id) {
  zoomed = id;
  if (id !== null) current = id;
  again();
  boxes.get(current)?.focus();
}

export function showTree(tree, trueScale, plain) {
  const scale = trueScale ? (tokens) => tokens : Math.sqrt;
  const all = plain ? withoutTemplate(tree.nodes) : tree.nodes;
  if (!all.some(({ id }) => id === zoomed)) zoomed = null;
  showTrail(all);
  const drawn = layout(zoomed === null ? all : below(all, zoomed), scale);
  const wide = Math.max(1, ...drawn.places.map(({ x, width }) => x + width));
  const hidden = tree.total_nodes - tree.shown;
  $("tree-text").textContent = drawn.places.length
    ? `${count(tree.total_nodes, "edge")}${hidden > 0 ? `, the ${tree.shown} hottest shown` : ""}`
    : "The cache is empty.";
  places = drawn.places;
  const left = new Set(boxes.keys());
  const canvas = $("tree").firstChild ?? $("tree").appendChild(el("div", { role: "none" }));
  canvas.style.height = `${drawn.rows * ROW}px`;
  for (const place of places) {
    left.delete(place.node.id);
    draw(canvas, place, wide);
  }
  for (const id of left) {
    boxes.get(id).remove();
    boxes.delete(id);
  }
  const still = places.find(({ node }) => node.id === current) ?? places[0];
  select(still, false);
}

function draw(canvas, place, wide) {
  const { node, x, width, row, rows, level } = place;
  let box = boxes.get(node.id);
  if (!box) {
    box = el("div", { role: "treeitem", tabIndex: -1 }, el("span", {}, el("b"), ""));
    box.addEventListener("pointerenter", () => describe(placeOf(node.id)));
    box.addEventListener("focus", () => select(placeOf(node.id), false));
    box.addEventListener("keydown", move);
    box.addEventListener("click", () => zoom(zoomed === node.id ? above() : node.id));
    boxes.set(node.id, box);
    canvas.append(box);
  }
  box.className = node.locks ? "edge locked" : "edge";
  const [tokens, text] = box.firstChild.childNodes;
  tokens.textContent = `${node.locks ? "● " : ""}${node.tokens} `;
  text.data = node.text;
  box.ariaLevel = level;
  box.ariaLabel = words(node);
  const { style } = box;
  style.left = `${(100 * x) / wide}%`;
  style.width = `${(100 * width) / wide}%`;
  style.top = `${row * ROW}px`;
  style.height = `${rows * ROW}px`;
  style.setProperty("--heat", `${heat(node)}%`);
}

// 100 for what is in use or just was, 0 for what is old; in between by the logarithm of its age.
function heat({ age, locks }) {
  const old = locks ? 0 : Math.log1p(age) / Math.log1p(OLD);
  return Math.round(100 * (1 - Math.min(1, old)));
}

function words(node) {
  const facts = [count(node.tokens, "token"), `${node.depth} from the start`,
    `last used ${span(node.age)} ago`];
  if (node.locks) facts.push(`in use, ${count(node.locks, "lock")}`);
  if (node.children) facts.push(count(node.children, "branch").replace("branchs", "branches"));
  if (node.namespace) facts.push(`namespace ${node.namespace}`);
  return `${node.text} (${facts.join(", ")})`;
}

const placeOf = (id) => places.find(({ node }) => node.id === id);

function describe(place) {
  if (place) $("node").textContent = words(place.node);
}

function select(place, focus) {
  if (!place) {
    $("node").textContent = "";
    return;
  }
  if (current !== place.node.id) boxes.get(current)?.setAttribute("tabindex", "-1");
  current = place.node.id;
  const box = boxes.get(current);
  box.tabIndex = 0;
  if (focus) box.focus();
  if (document.activeElement === box) describe(place);
}

const above = () => {
  const parent = placeOf(zoomed)?.node.parent ?? -1;
  return parent < 0 ? null : parent;
};

// Enter makes the picture begin with an edge, Escape with the one before. Arrow keys: left to the parent, right to the first child, up and down through the order shown.
function move(event) {
  if (event.key === "Enter" || (event.key === "Escape" && zoomed !== null)) {
    event.preventDefault();
    zoom(event.key === "Enter" ? current : above());
    return;
  }
  const at = places.findIndex(({ node }) => node.id === current);
  const here = places[at];
  const next = {
    ArrowLeft: () => places.find((place) => place === here.parent),
    ArrowRight: () => places.find((place) => place.parent === here),
    ArrowUp: () => places[at - 1],
    ArrowDown: () => places[at + 1],
    Home: () => places[0],
    End: () => places.at(-1),
  }[event.key]?.();
  if (!next) return;
  event.preventDefault();
  select(next, true);
}
