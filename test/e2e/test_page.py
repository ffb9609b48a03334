"""The page at ``/`` in a real browser, on a launched server: a conversation with the model, the
program playground, and what all views share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import chromium
from helpers.http_server import serve_text
from helpers.launched import Server, best_model, client_of, launched
from helpers.page_driver import NARROW, WIDE, Opener, act, ended, opening, say
from helpers.waiting import until
from sglang.srt.config import Config

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
KEY = "a key: ü"
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


# -- chat -----------------------------------------------------------------------------------------


def test_a_conversation(server: Server, open_page: Opener) -> None:
    page = open_page(server.url)
    page.click("#open-settings")
    page.fill("#system", MARA)
    messages = [
        {"role": "system", "content": MARA},
        {"role": "user", "content": "What is the age?"},
    ]
    with client_of(server) as http:
        defaults = http.get("/model_info").json()["default_sampling_params"]
        expected = http.post("/v1/chat/completions", json={"messages": messages, **defaults}).json()
    assert say(page, "What is the age?") == expected["choices"][0]["message"]["content"].strip()
    prompt = expected["usage"]["prompt_tokens"]
    facts = page.locator(".facts").last
    assert f"prompt {prompt}, {100 * (prompt - 1) / prompt:.0f} % cached" in facts.text_content()
    say(page, "What is the city?")
    until(lambda: page.locator(".message").count() == 4)
    page.get_by_text("Why not cached?").last.click()
    page.locator(".why pre", has_text="came from the cache").first.wait_for()
    used = int(page.locator("#context-text").inner_text().split(" of ")[0].replace(",", ""))
    assert used > prompt


def test_stop_ends_the_request_in_the_engine(server: Server, open_page: Opener) -> None:
    page = open_page(server.url)
    page.click("#open-settings")
    page.select_option("#constraint", "regex")
    page.fill("#pattern", "([a-z]-){1900}")  # short tokens: no click comes after the end
    page.fill("#max_tokens", "3900")
    with client_of(server) as http:
        aborted = http.idle()["aborted"]
        page.fill("#say", "Go on and on.")
        page.press("#say", "Enter")
        text = page.locator(".assistant > .body > .text")
        until(lambda: len(text.text_content()) > 5)
        (row,) = http.get("/live").json()["running"]
        assert row["drawn"] >= 5
        page.get_by_role("button", name="Stop").click()
        assert http.idle()["aborted"] == aborted + 1
    ended(page)
    assert page.locator(".facts").last.text_content().startswith("stopped")
    written = text.text_content().strip()
    act(page, "Continue")
    until(lambda: len(text.text_content()) > len(written) + 5)
    assert text.text_content().startswith(written)
    page.keyboard.press("Escape")
    ended(page)


def test_text_is_never_markup(server: Server, open_page: Opener) -> None:
    page = open_page(server.url, "program")
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


def test_errors_are_readable(server: Server, open_page: Opener) -> None:
    page = open_page(server.url)
    page.click("#open-settings")
    page.fill("#temperature", "-1")
    say(page, "hello")
    text = page.get_by_role("alert").inner_text()
    assert "temperature" in text
    assert "(400, invalid_value" in text
    page.route("**/v1/chat/completions", lambda route: route.abort())
    say(page, "hello again")
    page.get_by_role("alert").filter(has_text="cannot be reached").wait_for()
    broken = 'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "half"}}]}\n\n'
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=broken))
    assert say(page, "once more") == "half"
    page.get_by_role("alert").filter(has_text="ended before its end").wait_for()


# -- program --------------------------------------------------------------------------------------


def run(page: Any, source: str) -> str:
    page.fill("#source", source)
    page.click("#run")
    until(lambda: page.is_enabled("#run"))
    return page.locator("#result > p").first.inner_text()


def test_a_program_forks(server: Server, open_page: Opener) -> None:
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


def test_tokens_that_share_a_character_are_shown_as_one(server: Server, open_page: Opener) -> None:
    page = open_page(server.url)
    triples = [[-1, 1, "a"], [-0.5, 2, "\ufffd"], [-2, 3, "\ufffd"], [0, 4, "!"], [-1, 5, "</end>"]]
    found = page.evaluate(
        "([text, triples]) => import('/page/tokens.js').then(m => m.pieces(text, triples))",
        ["aé!", triples],
    )
    assert [item["text"] for item in found] == ["a", "é", "!"]
    assert [item["sure"] for item in found] == pytest.approx([math.exp(v) for v in (-1, -2, 0)])


def test_a_program_with_completions_choices_and_a_pattern(
    server: Server, open_page: Opener
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
    server: Server, open_page: Opener, source: str, complaint: str
) -> None:
    page = open_page(server.url, "program")
    run(page, source)
    assert complaint in page.get_by_role("alert").inner_text()


# -- keys and accessibility -----------------------------------------------------------------------


def test_a_key(open_page: Opener, tmp_path: Path) -> None:
    with serve_text(tmp_path, Config.of(api_key=KEY)) as served:
        password = {"username": "anybody", "password": KEY}
        page = open_page(served.url, http_credentials=password)
        page.get_by_text("wants an API key").wait_for()
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        page.locator("#model", has_text=served.state.runtime.model_name).wait_for()
        page.goto(f"{served.url}/#live")
        page.get_by_text("live: ").wait_for()
        page.reload()
        page.get_by_text("live: ").wait_for()
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        page.goto(f"{served.url}/#chat")
        page.get_by_role("button", name="API key").click()
        page.get_by_role("button", name="Forget it").click()
        page.get_by_text("wants an API key").wait_for()
        assert page.evaluate("sessionStorage.length") == 0


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
    server: Server, open_page: Opener, scheme: str, size: dict[str, int]
) -> None:
    page = open_page(server.url, viewport=size, color_scheme=scheme)
    page.click("#open-settings")
    page.fill("#max_tokens", "16")
    page.click("#close-settings")
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
