"""The page of a trace in a real browser, from a file: nothing is loaded, and texts are texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.browser import chromium
from sglang.timeline.trace import Lane, Span, Trace

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
    """Opens a trace without a network. At the end: no script has failed, no policy was violated,
    nothing but the file was asked for."""
    asked, wrong, contexts = [], [], []

    def open(trace: Trace, **options: Any) -> Any:
        path = tmp_path / "trace.html"
        trace.save(path)
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
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
        return trace
    raise AssertionError("nothing failed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lanes_texts_and_failures_are_shown(show: Callable[..., Any], scheme: str) -> None:
    trace = recorded()
    page = show(trace, color_scheme=scheme)
    assert page.title() == "program · timeline"
    labels = page.evaluate("timeline.chart.rows.filter(r => r.lane).map(r => r.lane.label)")
    assert labels == ["main", "fork 0", "fork 1"]
    # What is drawn is found where it is drawn: click on the first gen.
    place = """() => {
        const { chart, model } = timeline, span = model.spans[0];
        const box = chart.canvas.getBoundingClientRect(), middle = (span.begin + span.end) / 2;
        return [box.left + chart.x(middle), box.top + span.home.row.top + 12];
    }"""
    x, y = page.evaluate(place)
    page.mouse.move(x, y)
    assert HOSTILE[:40] in page.locator("#tip").inner_text()
    page.mouse.click(x, y)
    panel = page.locator("#panel").inner_text()
    assert "gen plan" in panel
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
    page.evaluate("new Promise(requestAnimationFrame)")  # the frame that is drawn next
    assert page.evaluate(painted) > 8
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


def test_thousands_of_spans_are_drawn_as_they_come_into_view(show: Callable[..., Any]) -> None:
    trace = recorded()
    group = trace.groups[0]
    root = trace.lanes[0].number
    for lane in range(1000, 1000 + LANES):
        trace.lanes.append(Lane(lane, group.number, root, lane, begin=0.0, source="f.py:1"))
        for place in range(EACH):
            begin = 0.1 + place * 0.5
            node = Span(lane * 1000 + 2 * place, lane, "gen", f"v{place}", begin, begin + 0.4)
            asked = Span(node.number + 1, lane, "request", "m", begin, begin + 0.4)
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
