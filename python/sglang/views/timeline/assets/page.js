// Page: binds the chart, the panel and the table to what the reader does.

(() => {
  const view = read(), model = arrange(view), by = id => document.getElementById(id);
  const scroll = by("scroll"), canvas = by("canvas"), tip = by("tip");
  sums(view);
  legend(view, model);
  by("about").textContent = [
    new Date(view.started * 1000).toLocaleString(), counted(model.lanes.length, "stream"),
    counted(model.spans.length, "node"),
  ].join(" · ");
  scroll.setAttribute("aria-label", `Timeline of ${counted(model.spans.length, "span")} in ${counted(model.lanes.length, "stream")}; the table has the same.`);
  const chart = new Chart(model, canvas, scroll);

  function select(span) {
    chart.selected = span;
    if (span) { describe(span, model, () => select(null)); } else { by("panel").hidden = true; }
    chart.resize();
    if (span) chart.to_span(span);
  }

  // -- pointer

  let drag = null, moved = false, clicked = 0; // where the pointer is held; whether it has left there; when it chose
  const place = event => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", event => {
    [drag] = place(event);
    moved = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    const [x, y] = place(event);
    if (drag !== null) {
      if (Math.abs(x - drag) > 3) moved = true;
      if (moved) { chart.pan(drag - x); drag = x; hide(); }
      return;
    }
    const { row, span } = chart.at(x, y);
    canvas.style.cursor = span && row.lane || row && !row.lane && x < chart.gutter ? "pointer" : "default";
    hover(row && row.lane ? span : null, event);
    if (row && !row.lane && span) say([element("b", {}, "program code"), element("p", {}, seconds(span.end - span.begin))], event);
    else if (row && !row.lane) say([element("b", {}, called(row.group)),
      element("p", {}, `${row.group.status} · ${seconds(row.group.end - row.group.begin)}`),
      ...(row.group.error ? [element("p", { class: "error" }, row.group.error)] : [])], event);
    else if (row && !span && x < chart.gutter) say([element("b", {}, row.lane.label),
      element("p", {}, row.lane.source ? `forked at ${row.lane.source}` : called(row.group)),
      ...(row.lane.error ? [element("p", { class: "error" }, row.lane.error)] : [])], event);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { drag = null; });
  canvas.addEventListener("click", event => {
    if (moved || event.detail > 1) return; // the first of a double click has moved what is under it
    clicked = event.timeStamp;
    const { row, span } = chart.at(...place(event));
    if (row && !row.lane) {
      row.group.open = !row.group.open;
      chart.arrange();
      chart.resize();
    } else select(row ? span || null : null);
  });
  canvas.addEventListener("pointerleave", () => hover(null));
  document.addEventListener("dblclick", event => { // its second click may be on the panel
    const span = chart.selected;
    if (span && event.timeStamp - clicked < 1000) { const more = (span.end - span.begin) * 0.1; chart.show(span.begin - more, span.end + more); }
  });
  canvas.addEventListener("wheel", event => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.ctrlKey || event.metaKey) chart.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.006), place(event)[0]);
    else if (event.shiftKey || sideways) chart.pan(sideways ? event.deltaX : event.deltaY);
    else return;
    event.preventDefault();
  }, { passive: false });

  function hover(span, event) {
    if (chart.hovered !== span) { chart.hovered = span; chart.draw(); }
    if (span) say(hint(span), event); else hide();
  }
  function say(parts, event) {
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect(), { innerWidth, innerHeight } = window;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
  }
  function hide() { tip.hidden = true; }

  // -- keys and buttons

  const step = count => {
    if (!model.spans.length) return;
    const at = chart.selected ? model.spans.indexOf(chart.selected) + count : count > 0 ? 0 : model.spans.length - 1;
    select(model.spans[Math.min(Math.max(at, 0), model.spans.length - 1)]);
    by("chart").scrollIntoView({ block: "nearest" });
  };
  const keys = {
    ArrowLeft: () => chart.pan(-chart.room / 8), ArrowRight: () => chart.pan(chart.room / 8),
    "+": () => chart.zoom(0.7), "=": () => chart.zoom(0.7), "-": () => chart.zoom(1 / 0.7), "0": () => chart.fit(),
    n: () => step(1), p: () => step(-1), Escape: () => select(null),
  };
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    if (by("chart").hidden && event.key !== "Escape") return;
    keys[event.key]();
    event.preventDefault();
  });
  by("in").addEventListener("click", keys["+"]);
  by("out").addEventListener("click", keys["-"]);
  by("fit").addEventListener("click", keys["0"]);
  by("critical").addEventListener("change", event => { chart.critical = event.target.checked; chart.draw(); });
  for (const name of ["chart", "table"]) {
    by(`show-${name}`).addEventListener("click", () => {
      for (const each of ["chart", "table"]) {
        by(each).hidden = each !== name;
        by(`show-${each}`).setAttribute("aria-pressed", `${each === name}`);
      }
      if (name === "table" && !by("table").childElementCount) by("table").append(table(model, select));
      if (name === "chart") chart.resize();
    });
  }
  scroll.addEventListener("scroll", () => { hide(); chart.draw(); });
  new ResizeObserver(() => chart.resize()).observe(scroll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.resize());
  globalThis.timeline = { view, model, chart, select };
})();
