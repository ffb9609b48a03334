"""The live view of the page at ``/`` in a real browser, on a launched server."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.browser import chromium
from helpers.launched import Server, best_model, launched
from helpers.page_driver import Opener, opening
from helpers.waiting import until

LONG = 3900  # tokens: more than any test waits for
MARA = "Mara Fox is 17 years old. Mara lives in Rome. Mara works as a sailor."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with launched(best_model(tmp_path_factory.mktemp("model"))) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def open_page(browser: Any) -> Iterator[Opener]:
    with opening(browser) as found:
        yield found


@contextlib.contextmanager
def busy(server: Server, count: int) -> Iterator[None]:
    """Keep ``count`` requests with a common beginning in flight until the block ends."""

    def ask(i: int) -> None:
        sampling = {"max_new_tokens": LONG, "ignore_eos": True, "temperature": 0}
        httpx.post(f"{server.url}/generate", timeout=120,
                   json={"text": f"{MARA} Number {i}", "rid": f"busy-{i}",
                         "sampling_params": sampling})  # fmt: skip

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    yield
    for i in range(count):
        httpx.post(f"{server.url}/abort_request", json={"rid": f"busy-{i}"}, timeout=60)
    for thread in threads:
        thread.join()


def test_the_live_view_shows_the_engine_at_work(server: Server, open_page: Opener) -> None:
    page = open_page(server.url, "live")
    page.get_by_text("Nothing runs.").wait_for()
    with busy(server, 4):
        until(lambda: page.locator("#running tbody tr").count() == 4)
        page.locator(".edge.locked").first.wait_for()
        first = page.locator("#running progress").first
        assert first.get_attribute("max") == str(LONG)
        until(lambda: float(first.get_attribute("value") or 0) > 0)
        rate = page.locator(".tile strong").first
        until(lambda: rate.inner_text()[0] in "123456789")
        page.click("#pause")
        page.locator("#state", has_text="paused").wait_for()
        shown = page.locator("#running").inner_text()
    assert page.locator("#running").inner_text() == shown
    page.click("#pause")
    page.get_by_text("Nothing runs.").wait_for()
    page.locator(".edge", has_text="Mara Fox").first.wait_for()

    latency = page.locator("#latency tbody td").all_inner_texts()
    assert len(latency) == 9
    assert all(text.endswith("s") for text in latency)
    until(lambda: page.locator("#hour rect").count() >= 4)

    page.locator(".edge").first.focus()
    page.keyboard.press("End")
    page.locator("#node", has_text="from the start").wait_for()
    assert page.evaluate("document.activeElement.className").startswith("edge")


def snapshot(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    stats = dict.fromkeys(
        ("running", "waiting", "prompt_tokens", "cached_tokens", "generated_tokens", "passes",
         "computed_tokens", "evicted_tokens", "retractions", "protected_tokens"), 0)  # fmt: skip
    stats |= {"total_tokens": 9000, "free_tokens": 4000, "evictable_tokens": 5000}
    tree = {"nodes": nodes, "total_nodes": 2 * len(nodes), "shown": len(nodes)}
    return {"tree": tree, "running": [], "waiting": [], "compiling": 0, "stats": stats,
            "latency": {"first": {}, "token": {}, "whole": {}}, "hour": [],
            "time": 1.0, "uptime": 1.0, "model": "m"}  # fmt: skip


def test_three_hundred_nodes_stand_where_they_should(server: Server, open_page: Opener) -> None:
    nodes = [
        {"id": i, "parent": -1 if i < 3 else (i - 3) // 4, "tokens": 1 + i * 7 % 50, "depth": 1,
         "locks": 0, "children": 0, "age": float(i), "namespace": "", "text": f"node {i}"}
        for i in range(300)
    ]  # fmt: skip
    page = open_page(server.url)
    event = f"data: {json.dumps(snapshot(nodes))}\n\ndata: [DONE]\n\n"
    page.route("**/live/events*", lambda route: route.fulfill(body=event))
    page.goto(f"{server.url}/#live")
    page.get_by_text("600 edges, the 300 hottest shown").wait_for()
    boxes = page.eval_on_selector_all(
        ".edge", "all => all.map(e => [Number(e.lastChild.lastChild.data.split(' ')[1]), "
        "e.offsetLeft, e.offsetTop, e.offsetWidth, e.offsetHeight])")  # fmt: skip
    place = {number: box for number, *box in boxes}
    assert len(place) == 300
    leaves = [0] * 300
    for number in reversed(range(300)):
        leaves[number] = leaves[number] or 1
        parent = nodes[number]["parent"]
        assert isinstance(parent, int)
        if parent >= 0:
            leaves[parent] += leaves[number]
    row = place[299][3]
    for number, (x, y, width, height) in place.items():
        assert height == row * leaves[number]
        assert width > 0
        if (parent := nodes[number]["parent"]) >= 0:
            px, py, pwidth, pheight = place[parent]
            assert abs(x - px - pwidth) <= 1.5
            assert py <= y
            assert y + height <= py + pheight
    rows = sorted((y, y + h) for n, (_, y, _, h) in place.items() if nodes[n]["parent"] == -1)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(rows))


def node(number: int, parent: int, text: str, plain: str | None = None) -> dict[str, Any]:
    return {"id": number, "parent": parent, "tokens": 9, "depth": 9, "locks": 0, "children": 0,
            "age": 1.0, "namespace": "", "text": text, "plain": text if plain is None else plain,
            }  # fmt: skip


def test_the_tree_hides_the_template_and_zooms(server: Server, open_page: Opener) -> None:
    nodes = [node(1, -1, "<s>system", ""), node(2, 1, "Be brief.</s>", "Be brief."),
             node(3, 2, "<s>user", ""), node(4, 3, "one"), node(5, 3, "two"), node(6, 5, "three")
             ]  # fmt: skip
    page = open_page(server.url)
    event = f"data: {json.dumps(snapshot(nodes))}\n\ndata: [DONE]\n\n"
    page.route("**/live/events*", lambda route: route.fulfill(body=event))
    page.goto(f"{server.url}/#live")
    edges = page.locator(".edge")

    def shown() -> list[str]:
        return sorted(text.split(" ", 1)[1] for text in edges.all_text_contents())

    until(lambda: shown() == ["Be brief.", "one", "three", "two"])
    page.get_by_label("hide the chat template").uncheck()
    until(lambda: len(shown()) == 6)
    page.get_by_label("hide the chat template").check()
    edges.filter(has_text="two").click()
    until(lambda: shown() == ["three", "two"])
    assert page.locator("#trail button").all_inner_texts() == ["Whole tree", "Be brief.", "two"]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    until(lambda: shown() == ["three"])
    page.keyboard.press("Escape")
    until(lambda: shown() == ["three", "two"])
    page.get_by_role("button", name="Whole tree").click()
    until(lambda: len(shown()) == 4)
    assert page.locator("#trail").is_hidden()


def test_the_live_view_waits_for_a_server_that_is_away(server: Server, open_page: Opener) -> None:
    page = open_page(server.url)
    error = {"error": {"message": "The engine has stopped.", "code": "engine_lost", "param": None}}
    page.route("**/live/events*", lambda route: route.fulfill(status=503, body=json.dumps(error)))
    page.goto(f"{server.url}/#live")
    page.get_by_text("The engine has stopped. (503, engine_lost) Reconnecting").wait_for()
    page.unroute("**/live/events*")
    page.get_by_text("live: ").wait_for()
