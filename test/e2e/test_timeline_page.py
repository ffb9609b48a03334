"""The page of a trace in a real browser, from a file: nothing is loaded, and texts are texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.browser import chromium
from sglang.run.trace_record import TraceLane, TraceSpan
from sglang.views.timeline.trace import Trace

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'"
LANES, EACH = 250, 20


@sgl.function
def program(s: Any, topic: str) -> None:
    s += topic + sgl.gen("plan", max_tokens=30)
    forks = s.fork(2)
    forks += lambda i: f" {i}:" + sgl.gen("tip", max_tokens=30)
    forks.join()
    s += sgl.gen("failed")


def script(prompt: Any, params: Any) -> Any:
    return sgl.BackendError(HOSTILE) if ":" in prompt.text and len(prompt.text) < 300 else HOSTILE


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a trace without a network. Asserts at the end that no script failed, no policy was
    violated, and nothing but the file was requested."""
    asked, wrong, contexts = [], [], []

    def open(trace: Trace, **options: Any) -> Any:
        path = tmp_path / "trace.html"
        trace.save(path)
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text))
        page.goto(path.as_uri())
        page.wait_for_function("globalThis.timeline !== undefined")
        return page

    yield open
    for context in contexts:
        context.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def recorded() -> Trace:
    trace = Trace(prices={"input": 1.0})
    try:
        program.run(HOSTILE, backend=sgl.Mock(script, delay=0.005), trace=trace)
    except sgl.ProgramError:
        return evened(trace)
    raise AssertionError("nothing failed")


def evened(trace: Trace) -> Trace:
    """The trace with equal steps from one time to the next: on a busy machine some would be too
    narrow to click on."""
    while any(span.end is None for span in trace.spans):
        time.sleep(0.01)
    parts = [*trace.groups, *trace.lanes, *trace.joins, *trace.spans]
    found = [(part, name) for part in parts for name in ("asked", "begin", "at", "end")
             if isinstance(getattr(part, name, None), float)]  # fmt: skip
    times = sorted({getattr(part, name) for part, name in found})
    for part, name in found:
        setattr(part, name, times.index(getattr(part, name)) / 100)
    return trace


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lanes_texts_and_failures_are_shown(show: Callable[..., Any], scheme: str) -> None:
    trace = recorded()
    page = show(trace, color_scheme=scheme)
    assert page.title() == "program · timeline"
    labels = page.evaluate("timeline.chart.rows.filter(r => r.lane).map(r => r.lane.label)")
    assert labels == ["main", "fork 0", "fork 1"]
    # A click on the first gen finds the gen.
    place = """() => {
        const { chart, model } = timeline, span = model.spans[0];
        const box = chart.canvas.getBoundingClientRect(), middle = (span.begin + span.end) / 2;
        return [box.left + chart.x(middle), box.top + span.home.row.top + 12];
    }"""
    x, y = page.evaluate(place)
    page.mouse.move(x, y)
    page.locator("#tip", has_text=HOSTILE[:40]).wait_for()
    page.mouse.click(x, y)
    page.locator("#panel", has_text="gen plan").wait_for()
    panel = page.locator("#panel").inner_text()
    assert HOSTILE in panel
    assert f"{Path(__file__).name}:" in panel
    assert "max_new_tokens" in panel
    assert page.locator("#panel img, #tip img").count() == 0
    painted = """() => {
        const { canvas } = timeline.chart, pen = canvas.getContext("2d"), colours = new Set();
        const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
        for (let i = 0; i < data.length; i += 4) colours.add(data.slice(i, i + 3).join());
        return colours.size;
    }"""
    page.wait_for_function(f"({painted})() > 8")  # in a frame that comes
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()
    page.click("#show-table")
    assert page.locator("tbody tr").count() == len(page.evaluate("timeline.model.spans"))
    assert HOSTILE[:20] in page.locator("tbody").inner_text()
    assert page.locator("td.error").count() >= 1
    assert page.title() == "program · timeline"


def test_zoom_and_pan_by_keys_and_wheel(show: Callable[..., Any]) -> None:
    page = show(recorded())
    shown = "[timeline.chart.from, timeline.chart.to]"
    begin, end = page.evaluate(shown)
    page.keyboard.press("+")
    near, far = page.evaluate(shown)
    assert begin < near < far < end
    page.keyboard.press("ArrowRight")
    moved, _ = page.evaluate(shown)
    assert moved > near
    page.keyboard.press("0")
    assert page.evaluate(shown) == [begin, end]
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_function(f"timeline.chart.to - timeline.chart.from < {end - begin}")
    page.keyboard.press("n")
    assert page.locator("#panel h2").inner_text() == "gen plan"
    page.keyboard.press("n")
    assert page.locator("#panel h2").inner_text() != "gen plan"


@sgl.function
def nested(s: Any) -> None:
    s += "q" + sgl.gen("plan", max_tokens=3)
    forks = s.fork(2)
    for fork in forks:
        below = fork.fork(2)
        below += sgl.gen("tip", max_tokens=3)
        below.join()
    forks.join()
    s += sgl.gen("end", max_tokens=3)


def test_a_join_goes_on_from_what_its_forks_did_last(show: Callable[..., Any]) -> None:
    """The forks of the outer join have made no calls themselves: their last step is a join too."""
    trace = nested.run(backend=sgl.Mock(delay=0.002), trace=True).trace()
    page = show(trace)
    assert "7 streams · 6 nodes" in page.locator("#about").inner_text()
    joins = page.evaluate("timeline.model.joins")
    outer = next(join for join in joins if join["lane"] == trace.lanes[0].number)
    inner = {join["lane"]: join["at"] for join in joins if join is not outer}
    assert outer["left"] == [inner[lane] for lane in outer["lanes"]]
    drawn = """() => {
        const { chart, model } = timeline, points = [];
        chart.line = (each, colour) => points.push([colour, ...each]);
        chart.paintAll();
        delete chart.line;
        const of = colour => points.filter(one => one[0] === colour);
        return [of("soft").length, of("decode").length, chart.x(model.begin) > chart.gutter + 6];
    }"""
    assert page.evaluate(drawn) == [6, 3 + 6, True]  # room for an arrow


def test_by_keys_alone(show: Callable[..., Any]) -> None:
    page = show(nested.run(backend=sgl.Mock(), trace=True).trace())

    def focus(what: str) -> None:
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.matches({what!r})"):
                return
        raise AssertionError(f"{what} cannot be reached")

    focus("#show-table")
    page.keyboard.press("Enter")
    assert page.locator("#show-table").get_attribute("aria-pressed") == "true"
    focus("tbody tr:first-child button")
    page.keyboard.press("Enter")
    assert "gen plan" in page.locator("#panel").inner_text()
    assert "0 cached (0 %)" in page.locator("#panel").inner_text()
    focus("#panel")
    page.keyboard.press("Escape")
    assert page.locator("#panel").is_hidden()


def test_a_narrow_page_shows_the_span_and_what_is_known_of_it(show: Callable[..., Any]) -> None:
    trace = nested.run(backend=sgl.Mock(), trace=True).trace()
    page = show(trace, viewport={"width": 390, "height": 780})
    for _ in trace.lanes:
        page.keyboard.press("n")
    seen = """() => {
        const { chart } = timeline, { top, height } = chart.selected.home.row;
        const box = chart.canvas.getBoundingClientRect(), panel = document.getElementById("panel");
        const at = box.top + top - chart.scroll.scrollTop, known = panel.getBoundingClientRect();
        return [at >= 0, at + height <= known.top, known.bottom <= innerHeight];
    }"""
    assert page.evaluate(seen) == [True, True, True]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("number", [0, 5], ids=["left", "right"])
def test_a_double_click_shows_its_span(show: Callable[..., Any], number: int) -> None:
    """Though the panel, which the first click opens, leaves the chart less room: another span, or
    the panel itself, comes below the second."""
    page = show(nested.run(backend=sgl.Mock(delay=0.002), trace=True).trace())
    place = """number => {
        const { chart, model } = timeline, span = model.spans[number];
        const box = chart.canvas.getBoundingClientRect();
        return [box.left + chart.x(span.end) - 2, box.top + span.home.row.top + 12];
    }"""
    page.mouse.dblclick(*page.evaluate(place, number))
    page.wait_for_function(
        """number => {
            const { chart, model } = timeline, span = model.spans[number];
            const size = span.end - span.begin;
            const around = [(span.begin - chart.from) / size, (chart.to - span.end) / size];
            return around.every(share => Math.abs(share - 0.1) < 0.01);
        }""",
        arg=number,
    )


def test_thousands_of_spans_are_drawn_as_they_come_into_view(show: Callable[..., Any]) -> None:
    trace = recorded()
    group = trace.groups[0]
    root = trace.lanes[0].number
    for lane in range(1000, 1000 + LANES):
        trace.lanes.append(TraceLane(lane, group.number, root, lane, begin=0.0, source="f.py:1"))
        for place in range(EACH):
            begin = 0.1 + place * 0.5
            node = TraceSpan(lane * 1000 + 2 * place, lane, "gen", f"v{place}", begin, begin + 0.4)
            asked = TraceSpan(node.number + 1, lane, "request", "m", begin, begin + 0.4)
            node.status = asked.status = "ok"
            asked.parent = node.number
            asked.data = {"prompt_tokens": 30, "cached_tokens": 20, "completion_tokens": 9}
            trace.spans += [node, asked]
    group.end = 0.1 + EACH * 0.5
    page = show(trace)
    assert page.evaluate("timeline.model.spans.length") >= LANES * EACH
    drawn = """() => {
        const { chart } = timeline;
        let count = 0;
        const span = chart.span;
        chart.span = function (...given) { count++; span.apply(this, given); };
        chart.paintAll();
        delete chart.span;
        return count;
    }"""
    assert 0 < page.evaluate(drawn) < LANES * EACH / 5
    page.evaluate("timeline.select(timeline.model.spans[timeline.model.spans.length - 1])")
    assert page.evaluate("timeline.chart.scroll.scrollTop") > 1000
    assert page.evaluate(drawn) > 0
