// Chart: draws the rows that can be seen, on one canvas.

const BAR = 15, STRIP = 4, GAP = 5; // pixels of a bar, of the strip of tokens below it, above it
const MARGIN = 0.02; // of the whole, before its begin and after its end

class Chart {
  constructor(model, canvas, scroll) {
    Object.assign(this, { model, canvas, scroll, pen: canvas.getContext("2d") });
    this.critical = true;
    this.selected = this.hovered = null;
    this.waiting = false;
    this.arrange();
    this.resize();
    this.fit();
  }

  arrange() {
    Object.assign(this, rowsOf(this.model.groups));
    document.getElementById("height").style.height = "0";
    this.scroll.style.setProperty("--height", `${this.height}px`);
    this.draw();
  }

  resize() {
    const ratio = window.devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
    this.width = this.scroll.clientWidth;
    this.tall = this.scroll.clientHeight;
    this.gutter = Math.min(220, Math.max(110, this.width * 0.2));
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.tall * ratio);
    this.canvas.style.height = `${this.tall}px`;
    document.getElementById("height").style.height = `${Math.max(this.height - this.tall, 0)}px`;
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.colour = name => style.getPropertyValue(`--${name}`).trim();
    this.palette = new Map();
    this.draw();
  }

  paint(name) {
    if (!this.palette.has(name)) this.palette.set(name, this.colour(name));
    return this.palette.get(name);
  }

  // -- time and place

  get room() { return Math.max(this.width - this.gutter - 14, 40); }
  x(time) { return this.gutter + (time - this.from) / (this.to - this.from) * this.room; }
  time(x) { return this.from + (x - this.gutter) / this.room * (this.to - this.from); }

  show(from, to) {
    const { begin, end } = this.model, whole = Math.max(end - begin, 1e-6);
    const least = begin - whole * MARGIN, most = end + whole * MARGIN;
    const size = Math.min(Math.max(to - from, 2e-6), most - least);
    this.from = Math.min(Math.max(from, least), most - size);
    this.to = this.from + size;
    this.draw();
  }

  fit() { this.show(-Infinity, Infinity); }

  zoom(factor, x = this.gutter + this.room / 2) {
    const at = this.time(x);
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  pan(pixels) {
    const by = pixels / this.room * (this.to - this.from);
    this.show(this.from + by, this.to + by);
  }

  to_span(span) {
    const lane = span.home;
    if (!lane.home.open) { lane.home.open = true; this.arrange(); this.resize(); }
    const { top, height } = lane.row, view = this.scroll;
    if (top < view.scrollTop + AXIS) view.scrollTop = top - AXIS - 8;
    if (top + height > view.scrollTop + this.tall) view.scrollTop = top + height - this.tall + 8;
    if (span.end < this.from || span.begin > this.to) {
      const half = (this.to - this.from) / 2, middle = (span.begin + span.end) / 2;
      this.show(middle - half, middle + half);
    }
    this.draw();
  }

  // -- what is where

  rowAt(y) {
    const rows = this.rows;
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = low + high >> 1;
      if (rows[middle].top + rows[middle].height <= y) low = middle + 1; else high = middle;
    }
    return low;
  }

  // The row, and the span or the group's own part, under a point of the canvas.
  at(x, y) {
    if (y < AXIS) return {};
    const row = this.rows[this.rowAt(y + this.scroll.scrollTop)];
    if (!row) return {};
    if (x < this.gutter) return { row };
    const time = this.time(x), near = 3 / this.room * (this.to - this.from);
    const spans = row.lane ? row.lane.spans : row.group.code;
    let best = null;
    for (const span of spans) {
      if (span.begin > time + near) break;
      if (span.end >= time - near) best = span;
    }
    return { row, span: best };
  }

  // -- drawing

  draw() {
    if (this.waiting || !this.colour || this.to === undefined) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.paintAll(); });
  }

  paintAll() {
    const { pen, width, tall, scroll } = this, offset = scroll.scrollTop;
    pen.clearRect(0, 0, width, tall);
    const first = this.rowAt(offset + AXIS), seen = [];
    for (let i = first; i < this.rows.length && this.rows[i].top < offset + tall; i++) seen.push(this.rows[i]);
    pen.save();
    pen.translate(0, -offset);
    for (const row of seen) this.ground(row);
    this.grid(offset);
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, offset + AXIS, width - this.gutter, tall);
    pen.clip();
    this.links(seen);
    for (const row of seen) if (row.lane) this.lane(row); else this.group(row);
    pen.restore();
    for (const row of seen) this.label(row);
    pen.restore();
    this.axis();
  }

  ground(row) {
    const { pen, width } = this;
    pen.fillStyle = this.paint(row.lane ? "card" : "group");
    pen.fillRect(0, row.top, width, row.height);
    pen.fillStyle = this.paint("grid");
    pen.fillRect(0, row.top + row.height - 1, width, 1);
  }

  ticks() {
    const goal = (this.to - this.from) / Math.max(this.room / 100, 1);
    const power = 10 ** Math.floor(Math.log10(goal));
    const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= goal);
    const found = [];
    for (let i = Math.ceil(this.from / step); i * step <= this.to; i++) found.push(i * step);
    return found;
  }

  grid(offset) {
    const { pen } = this;
    pen.fillStyle = this.paint("grid");
    for (const tick of this.ticks()) {
      const x = Math.round(this.x(tick));
      if (x >= this.gutter) pen.fillRect(x, offset + AXIS, 1, Math.min(this.tall, this.height - offset) - AXIS);
    }
  }

  axis() {
    const { pen } = this;
    pen.fillStyle = this.paint("card");
    pen.fillRect(0, 0, this.width, AXIS);
    pen.fillStyle = this.paint("line");
    pen.fillRect(0, AXIS - 1, this.width, 1);
    pen.fillRect(this.gutter - 1, 0, 1, this.tall);
    pen.font = "11.5px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = this.paint("soft");
    const ticks = this.ticks(), step = ticks.length > 1 ? ticks[1] - ticks[0] : this.to - this.from;
    pen.textAlign = "center";
    for (const tick of ticks) {
      const x = this.x(tick);
      if (x > this.gutter + 14 && x < this.width - 18) pen.fillText(clock(tick, step), x, AXIS / 2);
    }
    pen.textAlign = "left";
    pen.fillText("run / stream", 12, AXIS / 2);
  }

  label(row) {
    const { pen, gutter } = this, { group, lane } = row, middle = row.top + row.height / 2;
    pen.save();
    pen.beginPath();
    pen.rect(0, row.top, gutter - 8, row.height);
    pen.clip();
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    if (!lane) {
      pen.fillStyle = this.paint("soft");
      this.triangle(11 + group.depth * 10, middle, group.open);
      pen.font = "600 12.5px system-ui, sans-serif";
      pen.fillStyle = this.paint(group.status === "ok" ? "ink" : this.badly(group.status));
      pen.fillText(this.fitting(called(group), gutter - 32 - group.depth * 10), 22 + group.depth * 10, middle);
    } else {
      const left = 22 + group.depth * 10 + Math.min(lane.depth, 8) * 13;
      pen.strokeStyle = this.paint("line");
      if (lane.depth) {
        pen.beginPath();
        pen.moveTo(left - 9, row.top);
        pen.lineTo(left - 9, middle);
        pen.lineTo(left - 3, middle);
        pen.stroke();
      }
      pen.font = "12.5px system-ui, sans-serif";
      pen.fillStyle = this.paint(lane.status === "ok" ? "ink" : this.badly(lane.status));
      pen.fillText(lane.label, left, middle);
    }
    pen.restore();
  }

  badly(status) { return status === "error" ? "error" : "cancelled"; }

  triangle(x, y, open) {
    const { pen } = this, points = open ? [[-4, -2], [4, -2], [0, 4]] : [[-2, -4], [4, 0], [-2, 4]];
    pen.beginPath();
    for (const [dx, dy] of points) pen.lineTo(x + dx, y + dy);
    pen.fill();
  }

  // A run: from its beginning to its end, what of it was the program's own code, or, closed, its calls.
  group(row) {
    const { pen } = this, { group } = row, y = row.top + GROUP / 2;
    this.box(this.x(group.begin), y - 2, this.x(group.end), 4, this.paint("line"), 2);
    if (group.status !== "ok") this.end(group, y, 11);
    for (const span of group.code) this.box(this.x(span.begin), y - 4, this.x(span.end), 8, this.paint("code"), 2);
    if (group.open) return;
    pen.globalAlpha = 0.75;
    for (const lane of group.lanes) {
      let last = -1;
      for (const span of lane.spans) {
        const a = this.x(span.begin), b = this.x(span.end);
        if (b < last + 0.5 || b < this.gutter || a > this.width) continue;
        this.box(a, y - 5, b, 10, this.paint(this.main(span)), 2);
        last = b;
      }
    }
    pen.globalAlpha = 1;
  }

  end(part, y, size) {
    const { pen } = this, x = this.x(part.end);
    pen.fillStyle = this.paint(this.badly(part.status));
    pen.fillRect(x - 1.5, y - size / 2, 3, size);
  }

  // The colour of a span that is drawn as one.
  main(span) {
    if (span.status === "error") return "error";
    if (span.status === "cancelled") return "cancelled";
    let best = ["reused", -1];
    for (const [name, begin, end] of phasesOf(span)) if (end - begin > best[1]) best = [PHASES[name], end - begin];
    return best[0];
  }

  lane(row) {
    let last = -1;
    for (const span of row.lane.spans) {
      const a = this.x(span.begin), b = this.x(span.end);
      if (b < this.gutter) continue;
      if (a > this.width) break;
      if (b < last + 0.5) continue; // within the pixel before
      this.span(span, row.top + GAP, a, Math.max(b, a + 1.5));
      last = b;
    }
  }

  span(span, y, a, b) {
    const { pen } = this, wide = b - a;
    if (wide < 4) {
      this.box(a, y, b, BAR, this.paint(this.main(span)), 0);
    } else {
      pen.save();
      this.path(a, y, wide, BAR, 3);
      pen.clip();
      pen.fillStyle = this.paint(span.asked.length ? "wait" : "reused");
      pen.fillRect(a, y, wide, BAR);
      for (const [name, begin, end] of phasesOf(span)) {
        const left = this.x(begin);
        pen.fillStyle = this.paint(PHASES[name]);
        pen.fillRect(left, y, Math.max(this.x(end) - left, 0.6), BAR);
      }
      pen.restore();
      this.strip(span, a, y + BAR + 1.5, wide);
    }
    if (span.status === "error" || span.status === "cancelled") this.outline(a, y, wide, this.badly(span.status), 2);
    else if (this.critical && span.critical) this.outline(a, y, wide, "critical", 1.6);
    if (span === this.selected) this.outline(a - 2, y - 2, wide + 4, "accent", 2, BAR + 4);
    else if (span === this.hovered) this.outline(a, y, wide, "accent", 1.5);
    if (wide > 34) this.text(span, Math.max(a, this.gutter) + 5, y + BAR / 2 + 0.5, b - 4);
  }

  text(span, x, y, end) {
    const { pen } = this, count = span.data.completion_tokens;
    const mark = span.status === "error" ? "✕ " : span.status === "cancelled" ? "⊘ " : "";
    let words = mark + (span.name || span.kind);
    pen.font = "600 11px system-ui, sans-serif";
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    if (count && pen.measureText(`${words}  ${count}`).width < end - x) words += `  ${count}`;
    if (end - x < 26) return;
    words = this.fitting(words, end - x);
    pen.lineWidth = 2.5;
    pen.lineJoin = "round";
    pen.strokeStyle = "#0007";
    pen.strokeText(words, x, y);
    pen.fillStyle = this.paint("onbar");
    pen.fillText(words, x, y);
  }

  // Words, shortened to so many pixels.
  fitting(words, wide) {
    if (this.pen.measureText(words).width <= wide) return words;
    let low = 0, high = words.length;
    while (low < high) {
      const middle = low + high + 1 >> 1;
      if (this.pen.measureText(words.slice(0, middle) + "…").width <= wide) low = middle; else high = middle - 1;
    }
    return words.slice(0, low) + "…";
  }

  // Tokens below a bar: cached, computed, and what was drawn, by their shares.
  strip(span, a, y, wide) {
    const parts = tokensOf(span.data), whole = parts.reduce((sum, [, count]) => sum + count, 0);
    let x = a;
    for (const [name, count] of parts) {
      const size = wide * count / whole;
      this.pen.fillStyle = this.paint(name);
      this.pen.fillRect(x, y, Math.max(size - (size > 3 ? 0.6 : 0), 0.4), STRIP);
      x += size;
    }
  }

  box(a, y, b, height, colour, radius) {
    const { pen } = this;
    pen.fillStyle = colour;
    if (b - a < 2 * radius || !radius) {
      pen.fillRect(a, y, Math.max(b - a, 1), height);
      return;
    }
    this.path(a, y, b - a, height, radius);
    pen.fill();
  }

  path(x, y, width, height, radius) {
    this.pen.beginPath();
    this.pen.roundRect(x, y, width, height, Math.min(radius, width / 2));
  }

  outline(x, y, wide, colour, line, height = BAR) {
    const { pen } = this;
    pen.strokeStyle = this.paint(colour);
    pen.lineWidth = line;
    this.path(x, y, Math.max(wide, 1), height, 3);
    pen.stroke();
  }

  // Forks go down where a lane is left and right into those made of it; joins go right along the lanes
  // from what they did last, and back.
  links(seen) {
    const { laneOf, joins } = this.model, shown = new Set(seen);
    const groups = new Set(seen.map(row => row.group).filter(group => group.open));
    const middle = row => row.top + GAP + BAR / 2;
    this.pen.lineWidth = 1;
    this.pen.globalAlpha = 0.65;
    for (const group of groups) {
      for (const lane of group.lanes) {
        const parent = laneOf.get(lane.parent);
        if (!parent || lane.begin === null || !shown.has(lane.row)) continue;
        this.line([[lane.begin, middle(parent.row)], [lane.begin, middle(lane.row)]], "soft");
        this.head(this.x(lane.begin) + 6, middle(lane.row));
      }
    }
    for (const join of joins) {
      const into = laneOf.get(join.lane), lanes = join.lanes.map(number => laneOf.get(number));
      if (!groups.has(into.home)) continue;
      const rows = [into, ...lanes].map(lane => middle(lane.row));
      this.line([[join.at, Math.min(...rows)], [join.at, Math.max(...rows)]], "decode");
      this.head(this.x(join.at) + 1, middle(into.row));
      lanes.forEach((lane, i) => {
        if (shown.has(lane.row)) this.line([[join.left[i], middle(lane.row)], [join.at, middle(lane.row)]], "decode");
      });
    }
    this.pen.globalAlpha = 1;
  }

  // Through points, each a time and a height.
  line(points, colour) {
    const { pen } = this, sharp = at => Math.round(at) + 0.5;
    pen.strokeStyle = pen.fillStyle = this.paint(colour);
    pen.beginPath();
    for (const [time, y] of points) pen.lineTo(sharp(this.x(time)), sharp(y));
    pen.stroke();
  }

  // An arrow's, to the right.
  head(x, y) {
    const { pen } = this;
    pen.beginPath();
    for (const [dx, dy] of [[0, 0], [-6, -3], [-6, 3]]) pen.lineTo(x + dx, y + dy);
    pen.fill();
  }
}

// A time of the axis, with as many digits as the step needs.
function clock(time, step) {
  const [unit, size] = step >= 0.5 ? ["s", 1] : step >= 0.0005 ? ["ms", 1e3] : ["µs", 1e6];
  const digits = Math.max(0, -Math.floor(Math.log10(step * size * 1.0001)));
  return `${(time * size).toFixed(Math.min(digits, 3))} ${unit}`;
}
