"""The page at ``/`` in a real browser, on a launched server."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.browser import chromium
from helpers.http_server import serve_text
from helpers.launched import Server, best_model, client_of, launched
from sglang.srt.config import Config

WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
KEY = "a key: ü"
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
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a view of a server. At the end: no script has failed, nothing was loaded from
    elsewhere, no policy was violated."""
    contexts, origins, asked, wrong = [], [], [], []

    def open(url: str, view: str = "chat", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **options})
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: note(said) if said.type in ("error", "warning") else None)
        contexts.append(context)
        origins.append(f"{url}/")
        page.goto(f"{url}/#{view}")
        return page

    def note(said: Any) -> None:
        if "Failed to load resource" not in said.text:  # a status that a test asks for
            wrong.append(said.text)

    yield open
    for context in contexts:
        context.close()
    assert wrong == []
    assert asked
    assert [url for url in asked if not url.startswith(tuple(origins))] == []


def say(page: Any, text: str) -> str:
    """Send a message; the text of the answer once it is whole."""
    count = page.locator(".message.assistant").count()
    page.fill("#say", text)
    page.press("#say", "Enter")
    answer = page.locator(".message.assistant").nth(count)
    answer.get_by_role("button", name="Try again").wait_for()
    return answer.locator(".text").last.inner_text()


def scripted(page: Any, *replies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer chats with these deltas in turn; return the bodies of the requests."""
    left, bodies = list(replies), []

    def answer(route: Any) -> None:
        bodies.append(json.loads(route.request.post_data))
        chunks = [{"id": "x", "choices": [{"index": 0, **part}]} for part in left.pop(0)]
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        route.fulfill(body="".join([*lines, "data: [DONE]\n\n"]), content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    return bodies


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"delta": fields, "finish_reason": finish}


def until(check: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- chat -----------------------------------------------------------------------------------------


def test_a_conversation(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(server.url)
    page.fill("#system", MARA)
    messages = [
        {"role": "system", "content": MARA},
        {"role": "user", "content": "What is the age?"},
    ]
    with client_of(server) as http:
        body = {"messages": messages, "temperature": 0, "max_tokens": 128}
        expected = http.post("/v1/chat/completions", json=body).json()
    assert say(page, "What is the age?") == expected["choices"][0]["message"]["content"].strip()
    prompt = expected["usage"]["prompt_tokens"]
    facts = page.locator(".facts").last
    assert facts.inner_text().startswith(f"{prompt} prompt tokens, {prompt - 1} from the cache")
    say(page, "What is the city?")
    cached = int(facts.inner_text().split(" prompt tokens, ")[1].split()[0])
    assert cached >= prompt  # the first turn, answer included
    page.get_by_text("Why not cached?").last.click()
    assert f"{cached} " in page.locator(".why pre").first.inner_text()
    assert page.locator(".message").count() == 4
    page.get_by_role("button", name="Remove from here").nth(2).click()
    assert page.locator(".message").count() == 2


def test_settings_are_sent(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(server.url)
    page.select_option("#constraint", "regex")
    page.fill("#pattern", "(ab|cd){3}")
    page.fill("#seed", "7")
    page.fill("#temperature", "1")
    found = say(page, "Six letters.")
    assert set(found[::2]) <= {"a", "c"}
    assert len(found) == 6
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("button", name="Try again").wait_for()
    assert page.locator(".message.assistant .text").last.inner_text() == found
    page.select_option("#constraint", "json_schema")
    page.fill("#pattern", '{"enum": ["yes"]}')
    assert say(page, "JSON.") == '"yes"'
    page.fill("#pattern", "{")
    say(page, "Broken.")
    assert "json_schema" in page.get_by_role("alert").inner_text()
    page.fill("#tools", "[")
    page.fill("#say", "More broken.")
    page.click("#send")
    assert "The tools are not JSON" in page.locator("#problem").inner_text()


def test_the_model_goes_on_with_what_was_begun(
    server: Server, open_page: Callable[..., Any]
) -> None:
    page = open_page(server.url)
    bodies = scripted(page, [delta(content=" and more"), delta("length")], [delta("stop")])
    page.fill("#say", "Tell me.")
    page.select_option("#role", "system")
    page.press("#say", "Enter")
    page.select_option("#role", "assistant")
    assert say(page, "This is it") == "This is it and more"
    assert bodies[0]["continue_final_message"] is True
    assert [m["role"] for m in bodies[0]["messages"]] == ["system", "assistant"]
    assert page.locator(".message.assistant").count() == 1
    page.click("#send")
    until(lambda: len(bodies) == 2)
    assert bodies[1]["messages"][-1]["content"] == "This is it and more"


def test_stop_ends_the_request_in_the_engine(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(server.url)
    page.select_option("#constraint", "regex")
    page.fill("#pattern", "[a-z]{2000}")
    page.fill("#max_tokens", "3000")
    with client_of(server) as http:
        aborted = http.idle()["aborted"]
        page.fill("#say", "Go on and on.")
        page.click("#send")
        text = page.locator(".message.assistant > .text")
        until(lambda: len(text.text_content()) > 5)
        (row,) = http.get("/live").json()["running"]
        assert row["drawn"] >= 5
        page.click("#stop")
        assert http.idle()["aborted"] == aborted + 1
    assert "stopped" in page.locator(".facts").last.inner_text()
    assert page.is_enabled("#send")


def test_reasoning_and_tools(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(server.url)
    call = {"index": 0, "id": "c1", "type": "function"}
    bodies = scripted(
        page,
        [
            delta(reasoning_content="First I "), delta(reasoning_content="think."),
            delta(tool_calls=[{**call, "function": {"name": "weather", "arguments": ""}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city": "Ro'}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": 'me"}'}}]),
            delta("tool_calls"),
        ],
        [delta(content="It rains."), delta("stop")],
    )  # fmt: skip
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    page.fill("#tools", json.dumps([tool]))
    say(page, "What is the weather?")
    assert page.locator(".assistant .reasoning .text").text_content() == "First I think."
    assert page.locator(".call strong").inner_text() == "calls weather"
    assert page.locator(".call pre").inner_text() == '{"city": "Rome"}'
    page.get_by_label("Result of weather").fill("rain")
    page.get_by_role("button", name="Give").click()
    page.get_by_text("It rains.").wait_for()
    assert bodies[0]["tools"] == [tool]
    assert [m["role"] for m in bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assert bodies[1]["messages"][2] == {"role": "tool", "content": "rain", "tool_call_id": "c1"}
    assert bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'


def test_text_is_never_markup(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(server.url)
    call = {"index": 0, "id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}
    scripted(page, [delta(content=HOSTILE, reasoning_content=HOSTILE, tool_calls=[call]),
                    {**delta("error"), "finish_message": HOSTILE}])  # fmt: skip
    assert say(page, HOSTILE) == HOSTILE
    page.goto(f"{server.url}/#program")
    page.fill("#source", HOSTILE + "{{gen name=x max_tokens=2}}")
    page.click("#run")
    page.locator(".notes strong").wait_for()
    assert HOSTILE in page.locator("#result").inner_text()
    page.fill("#source", "{{" + HOSTILE + "}}")
    page.click("#run")
    assert HOSTILE in page.get_by_role("alert").inner_text()
    page.goto(f"{server.url}/#live")
    page.locator(".edge", has_text="<img").first.wait_for()
    assert page.title() == "sglang"
    assert page.locator("main img, main script").count() == 0


def test_errors_are_readable(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(server.url)
    page.fill("#temperature", "-1")
    page.eval_on_selector("#composer", "form => form.noValidate = true")
    say(page, "hello")
    text = page.get_by_role("alert").inner_text()
    assert "temperature" in text
    assert "(400, invalid_value" in text
    page.route("**/v1/chat/completions", lambda route: route.abort())
    say(page, "hello again")
    assert "cannot be reached" in page.get_by_role("alert").last.inner_text()
    broken = 'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "half"}}]}\n\n'
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=broken))
    assert say(page, "once more") == "half"
    assert "ended before its end" in page.get_by_role("alert").last.inner_text()


# -- program --------------------------------------------------------------------------------------


def run(page: Any, source: str) -> str:
    page.fill("#source", source)
    page.click("#run")
    until(lambda: page.is_enabled("#run"))
    return page.locator("#result > p").first.inner_text()


def test_a_program_forks(server: Server, open_page: Callable[..., Any]) -> None:
    page = open_page(server.url, "program")
    summary = run(page, MARA + ' The {{fork "age" "city" "job"}} is {{gen name=a max_tokens=3 '
                        'temperature=0}}. So {{gen max_tokens=2}}')  # fmt: skip
    assert summary.startswith("6 calls in ")
    branches = page.locator(".fork > .branch")
    assert branches.count() == 3
    with client_of(server) as http:
        for i, topic in enumerate(("age", "city", "job")):
            text = f"{MARA} The {topic} is "
            body = {"text": text, "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
            logprobs = {"return_logprob": True, "return_text_in_logprobs": True}
            found = http.post("/generate", json={**body, **logprobs}).json()
            written = [piece for _, _, piece in found["meta_info"]["output_token_logprobs"]]
            first = branches.nth(i).locator(".written").first.locator(".token")
            assert first.all_text_contents() == written
            shown = branches.nth(i).locator(".text").text_content()
            assert shown.startswith(f"{topic} is {found['text']}. So ")
    facts = branches.locator(".notes").all_inner_texts()
    cached = [int(text.split(" from the cache")[0].split()[-1]) for text in facts]
    assert all(count > 10 for count in cached[1:])
    tokens = branches.nth(0).locator(".token")
    assert tokens.count() >= 3
    assert "%" in tokens.nth(0).get_attribute("title")
    branches.nth(0).get_by_text("Why not cached?").first.click()
    branches.nth(0).locator(".why pre").first.wait_for()
    branches.nth(0).get_by_text("3 tokens").click()
    assert branches.nth(0).locator("tbody tr").count() >= 3


def test_tokens_that_share_a_character_are_shown_as_one(
    server: Server, open_page: Callable[..., Any]
) -> None:
    page = open_page(server.url)
    triples = [[-1, 1, "a"], [-0.5, 2, "\ufffd"], [-2, 3, "\ufffd"], [0, 4, "!"], [-1, 5, "</end>"]]
    found = page.evaluate(
        "([text, triples]) => import('/page/tokens.js').then(m => m.pieces(text, triples))",
        ["aé!", triples],
    )
    assert [item["text"] for item in found] == ["a", "é", "!"]
    assert [item["sure"] for item in found] == pytest.approx([math.exp(v) for v in (-1, -2, 0)])


def test_a_program_with_completions_choices_and_a_pattern(
    server: Server, open_page: Callable[..., Any]
) -> None:
    page = open_page(server.url, "program")
    assert run(page, "Once {{gen n=4 max_tokens=4 temperature=1 seed=3}} and").startswith("1 call")
    assert page.locator(".fork > .branch").count() == 4
    assert page.locator(".fork > .branch .text").all_text_contents()[3].endswith(" and")
    run(page, 'Yes or no? {{gen name=c choices=["yes", "no", "}}"] temperature=0}}')
    shares = [float(text.split(" %")[0]) for text in page.locator(".choices li").all_inner_texts()]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(100, abs=2)
    run(page, r'Number: {{gen name=d regex="\\d{3}\"é" max_tokens=9}}')
    assert page.locator(".written").text_content()[3:] == '"é'
    assert page.locator(".written").text_content()[:3].isdecimal()


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("a {{gen max_tokens=3", "has no }} at its end"),
        ("a {{generate}}", "neither gen nor fork"),
        ("a {{fork}}", "has no texts"),
        ('a {{gen stop="x" , n=2}}', "cannot be read from , n=2"),
        ('a {{gen choices=[yes]}}', "is not JSON"),
        ('{{fork "a" "b"}}{{gen n=40}}', "80 branches; at most 64"),
        ("a {{gen name=x tempreature=1}}", "tempreature"),
        ("a {{gen name=x max_tokens=2 regex=(}}", "x: "),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_program_is_said(
    server: Server, open_page: Callable[..., Any], source: str, complaint: str
) -> None:
    page = open_page(server.url, "program")
    run(page, source)
    assert complaint in page.get_by_role("alert").inner_text()


# -- live -----------------------------------------------------------------------------------------


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


def test_the_live_view_shows_the_engine_at_work(
    server: Server, open_page: Callable[..., Any]
) -> None:
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
        shown = page.locator("#running").inner_text()
        assert page.locator("#state").inner_text() == "paused"
    assert page.locator("#running").inner_text() == shown
    page.click("#pause")
    page.get_by_text("Nothing runs.").wait_for()
    page.locator(".edge", has_text="Mara Fox").first.wait_for()

    page.locator(".edge").first.focus()
    page.keyboard.press("End")
    assert "from the start" in page.locator("#node").inner_text()
    assert page.evaluate("document.activeElement.className").startswith("edge")


def snapshot(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    stats = dict.fromkeys(
        ("running", "waiting", "prompt_tokens", "cached_tokens", "generated_tokens", "passes",
         "computed_tokens", "evicted_tokens", "retractions", "protected_tokens"), 0)  # fmt: skip
    stats |= {"total_tokens": 9000, "free_tokens": 4000, "evictable_tokens": 5000}
    tree = {"nodes": nodes, "total_nodes": 2 * len(nodes), "shown": len(nodes)}
    return {"tree": tree, "running": [], "waiting": [], "compiling": 0, "stats": stats,
            "time": 1.0, "uptime": 1.0, "model": "m"}  # fmt: skip


def test_three_hundred_nodes_stand_where_they_should(
    server: Server, open_page: Callable[..., Any]
) -> None:
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
        if (parent := nodes[number]["parent"]) >= 0:
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


def test_the_live_view_waits_for_a_server_that_is_away(
    server: Server, open_page: Callable[..., Any]
) -> None:
    page = open_page(server.url)
    error = {"error": {"message": "The engine has stopped.", "code": "engine_lost", "param": None}}
    page.route("**/live/events*", lambda route: route.fulfill(status=503, body=json.dumps(error)))
    page.goto(f"{server.url}/#live")
    page.get_by_text("The engine has stopped. (503, engine_lost) Reconnecting").wait_for()
    page.unroute("**/live/events*")
    page.get_by_text("live: ").wait_for()


# -- keys and accessibility -----------------------------------------------------------------------


def test_a_key(open_page: Callable[..., Any], tmp_path: Path) -> None:
    with serve_text(tmp_path, Config.of(api_key=KEY)) as served:
        password = {"username": "anybody", "password": KEY}
        page = open_page(served.url, http_credentials=password)
        page.get_by_text("needs an API key").wait_for()
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        page.locator("#model", has_text=served.state.runtime.model_name).wait_for()
        page.goto(f"{served.url}/#live")
        page.get_by_text("live: ").wait_for()
        page.reload()
        assert page.input_value("#key") == KEY
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        page.close()


NAMELESS = """() => [...document.querySelectorAll('input, select, textarea, button, [tabindex]')]
  .filter(e => !(e.labels?.length || e.ariaLabel || e.getAttribute('aria-labelledby')
                 || e.textContent.trim())).map(e => e.outerHTML)"""
FAINT = """() => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const probe = document.body.appendChild(document.createElement('i'));
  const value = name => {
    probe.style.color = `var(--${name})`;
    return light(getComputedStyle(probe).color);
  };
  const pairs = [['ink', 'ground'], ['ink', 'surface'], ['quiet', 'ground'], ['quiet', 'surface'],
    ['accent', 'ground'], ['accent', 'surface'], ['bad', 'ground'], ['on-accent', 'accent']];
  return pairs.map(([a, b]) => [a, b, [value(a), value(b)].sort((x, y) => y - x)])
    .map(([a, b, [high, low]]) => [a, b, (high + 0.05) / (low + 0.05)])
    .filter(([a, b, ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize(
    ("scheme", "size"), [("light", WIDE), ("dark", NARROW)], ids=["wide", "narrow"]
)
def test_every_view_fits_is_labelled_and_legible(
    server: Server, open_page: Callable[..., Any], scheme: str, size: dict[str, int]
) -> None:
    page = open_page(server.url, viewport=size, color_scheme=scheme)
    say(page, "a" * 200)
    for view in ("chat", "program", "live"):
        page.goto(f"{server.url}/#{view}")
        assert page.locator(f"main#{view}").is_visible()
        assert page.locator("main:visible").count() == 1
        if view == "program":
            page.select_option("#example", label="A fork")
            page.click("#run")
            page.locator(".fork .notes strong").last.wait_for()
        if view == "live":
            page.locator(".edge").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(FAINT) == []
