"""The chat at ``/`` in a real browser. Most answers are scripted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from helpers.browser import chromium
from helpers.http_server import Served, serve_text
from helpers.page_driver import (
    NARROW,
    Opener,
    act,
    delta,
    ended,
    opening,
    say,
    scripted,
    shows,
    texts,
    usage,
)
from helpers.waiting import until

OWNED = "document.title='owned'"
HOSTILE = f"""<script>{OWNED}</script><img src=x onerror="{OWNED}"><svg onload="{OWNED}"></svg>

[a](javascript:{OWNED}) [b](JaVaScRiPt&colon;{OWNED}) [c](data:text/html,<script>{OWNED}</script>)
[d](/flush_cache) [e](https://elsewhere.example "a title") ![f](https://elsewhere.example/i.png)
<a href="javascript:{OWNED}">g</a> <iframe srcdoc="<script>{OWNED}</script>"></iframe>

$\\href{{javascript:{OWNED}}}{{h}}$ $\\htmlData{{x=y}}{{i}}$ $\\includegraphics{{https://elsewhere.example/j}}$

```html" onclick="{OWNED}
<script>{OWNED}</script>
```
"""
WORDS = """# Title

Some **bold** text, `code`, and $x^2 + 1$; it costs $5, not $6.

```python
def double(x):  # twice
    return 2 * x
```

\\[
\\int_0^1 x\\,dx
= \\tfrac12
\\]

| a | b |
|---|--:|
| 1 | 2 |
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def open_page(browser: Any) -> Iterator[Opener]:
    with opening(browser) as found:
        yield found


def listed(page: Any) -> list[str]:
    return page.locator("#conversations .row a").all_inner_texts()


# -- markdown -------------------------------------------------------------------------------------


def test_markdown_code_and_formulas(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    scripted(page, WORDS)
    say(page, "Show me.")
    answer = page.locator(".prose")
    assert answer.locator("h1").inner_text() == "Title"
    assert answer.locator("strong").inner_text() == "bold"
    assert "it costs $5, not $6." in answer.inner_text()
    answer.locator(".hljs-keyword", has_text="def").wait_for()
    answer.locator(".formula.display .katex-html").wait_for()
    assert answer.locator(".formula:not(.display) annotation").text_content() == "x^2 + 1"
    assert answer.locator("td.to-right").inner_text() == "2"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer.get_by_role("button", name="Copy code").click()
    page.locator("#said", has_text="Copied.").wait_for()
    code = page.evaluate("navigator.clipboard.readText()")
    assert code == "def double(x):  # twice\n    return 2 * x\n"
    act(page, "Show the source")
    assert texts(page)[-1].strip() == WORDS.strip()


def test_a_models_text_runs_nothing(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    call = {"index": 0, "id": HOSTILE, "function": {"name": HOSTILE, "arguments": HOSTILE}}
    parts = [delta(content=HOSTILE, reasoning_content=HOSTILE, tool_calls=[call])]
    scripted(page, HOSTILE, [*parts, {**delta("error"), "finish_message": HOSTILE}])
    page.fill("#say", HOSTILE)
    page.press("#say", "Enter")
    page.locator(".prose .formula").first.wait_for()
    ended(page)
    say(page, HOSTILE)
    page.locator(".katex").last.wait_for()
    links = page.eval_on_selector_all(".prose a", "all => all.map(a => [a.href, a.rel, a.target])")
    assert {href for href, _, _ in links} <= {
        "https://elsewhere.example/", "https://elsewhere.example/i.png"}  # fmt: skip
    assert all(rel.startswith("noopener") and to == "_blank" for _, rel, to in links)
    found = page.evaluate("""() => [...document.querySelectorAll('#log *')].filter(e =>
      /^(script|iframe|object|embed|form)$/i.test(e.localName) && !e.matches('.give')
      || e.localName === 'img' || [...e.attributes].some(a => a.name.startsWith('on')
        || /^\\s*javascript:/i.test(a.value))).map(e => e.outerHTML)""")
    assert found == []
    for link in page.locator(".prose a").all():
        assert link.get_attribute("title")
    assert page.title() == f"{HOSTILE[:59]}… - sglang"


def test_no_link_leads_to_this_server(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    port = served.url.rpartition(":")[2]
    own = ["127.0.0.1", "localhost", "LOCALHOST.", "a.localhost", "127.1", "2130706433", "[::1]",
           "0.0.0.0", "[::]", "[::ffff:127.0.0.1]"]  # fmt: skip
    text = " ".join(f"[{name}](http://{name}:{port}/flush_cache)" for name in own)
    elsewhere = ["http://localhost.example/", f"http://127.0.0.1:{int(port) ^ 1}/"]
    scripted(page, f"{text} {' '.join(elsewhere)}")
    say(page, "Links?")
    links = page.eval_on_selector_all(".prose a", "all => all.map(a => a.href)")
    assert links == elsewhere
    assert all(name in page.locator(".prose").inner_text() for name in own)


def test_hostile_markup_ends_soon(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    parts = ["\\[\n" * 4000, "$" * 8000, "[" * 4000, "`" * 4000 + "a", "> " * 1000 + "x",
             "| a " * 2000 + "\n" + "|-" * 2000 + "\n" + "| b " * 2000]  # fmt: skip
    scripted(page, *parts)
    for part in parts:
        page.fill("#say", part[:9])
        page.press("#say", "Enter")
        ended(page)
    assert page.locator(".message.assistant").count() == len(parts)


def test_many_formulas_leave_the_page_its_turns(served: Served, open_page: Opener) -> None:
    """Timers run between formulas, and those past the limit stay as their source."""
    page = open_page(served.url)
    found = page.evaluate("""async () => {
      const { MarkdownView } = await import('/page/markdown.js');
      const box = document.createElement('div');
      document.body.append(box);
      new MarkdownView(box).show('$x$ '.repeat(1010));
      let turns = 0;
      const timer = setInterval(() => (turns += 1));
      const set = () => box.querySelectorAll('.formula').length;
      while (set() < 1000) await new Promise((go) => setTimeout(go));
      clearInterval(timer);
      const left = [...box.querySelectorAll('code.math')].map((code) => code.title);
      box.remove();
      return [turns > 5, left];
    }""")
    assert found == [
        True,
        ["Only the first 1000 formulas of a paragraph, list or table are set."] * 10,
    ]


def test_what_stands_keeps_its_elements(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    same = page.evaluate("""async () => {
      const { MarkdownView } = await import('/page/markdown.js');
      const box = document.createElement('div');
      const view = new MarkdownView(box);
      view.show('# One\\n\\nTwo', false);
      const [one, two] = box.children;
      view.show('# One\\n\\nTwo and more\\n\\n- three', false);
      return [box.children[0] === one, box.children[1] === two, box.children[1].textContent,
        box.children.length];
    }""")
    assert same == [True, False, "Two and more", 3]


# -- requests -------------------------------------------------------------------------------------


def test_the_models_own_defaults_and_the_readers_settings(
    served: Served, open_page: Opener
) -> None:
    page = open_page(served.url)
    info = served.client.get("/model_info").json()
    info["default_sampling_params"] = {"temperature": 0.6, "top_k": 20, "max_tokens": 77}
    page.route("**/model_info", lambda route: route.fulfill(json=info))
    page.reload()
    bodies = scripted(page, "one", "two", "three")
    page.click("#open-settings")
    assert page.get_attribute("#temperature", "placeholder") == "0.6"
    say(page, "First")
    assert {**bodies[0], **info["default_sampling_params"]} == bodies[0]
    page.fill("#system", "Be brief.")
    page.fill("#temperature", "0")
    page.fill("#seed", "7")
    page.select_option("#effort", "low")
    page.select_option("#constraint", "regex")
    page.fill("#pattern", "[a-z]+")
    say(page, "Second")
    assert [message["content"] for message in bodies[1]["messages"]] == [
        "Be brief.", "First", "one", "Second"]  # fmt: skip
    expected = {
        "temperature": 0,
        "seed": 7,
        "top_k": 20,
        "reasoning_effort": "low",
        "regex": "[a-z]+",
    }
    assert {**bodies[1], **expected} == bodies[1]
    page.reload()
    page.locator(".message").nth(3).wait_for()
    until(lambda: page.input_value("#temperature") == "0")
    page.click("#open-settings")
    page.fill("#tools", "[")
    say(page, "Third")
    assert "The tools are not JSON" in page.get_by_role("alert").inner_text()
    page.click("#reset")
    assert page.input_value("#system") == ""


def test_reasoning_and_tools_are_folded(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    call = {"index": 0, "id": "c1", "type": "function"}
    second = {"index": 1, "id": "c2", "type": "function"}
    bodies = scripted(
        page,
        [
            delta(reasoning_content="First I "), delta(reasoning_content="think."),
            delta(tool_calls=[{**call, "function": {"name": "weather", "arguments": ""}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": '{"city": "Ro'}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": 'me"}'}}]),
            delta(tool_calls=[{**second, "function": {"name": "time", "arguments": "{}"}}]),
            delta("tool_calls"),
        ],
        "It rains.",
    )  # fmt: skip
    page.fill("#say", "What is the weather?")
    page.press("#say", "Enter")
    ended(page)
    reasoning = page.locator(".assistant .fold.reasoning")
    assert not reasoning.evaluate("e => e.open")
    assert reasoning.locator(".text").text_content() == "First I think."
    folds = page.locator(".fold.call")
    assert folds.locator("summary strong").all_inner_texts() == ["weather", "time"]
    assert json.loads(folds.first.locator("pre").first.text_content()) == {"city": "Rome"}
    page.get_by_label("Result of weather").fill("rain")
    folds.first.get_by_role("button", name="Give").click()
    assert len(bodies) == 1
    assert not folds.first.evaluate("e => e.open")
    page.get_by_label("Result of time").fill("noon")
    folds.last.get_by_role("button", name="Give").click()
    page.get_by_text("It rains.", exact=True).wait_for()
    assert [m["role"] for m in bodies[1]["messages"]] == ["user", "assistant", "tool", "tool"]
    assert bodies[1]["messages"][2] == {"role": "tool", "content": "rain", "tool_call_id": "c1"}
    assert [c["id"] for c in bodies[1]["messages"][1]["tool_calls"]] == ["c1", "c2"]


# -- versions -------------------------------------------------------------------------------------


def test_edit_retry_and_turn_between_versions(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    bodies = scripted(page, "red", "blue", "green", "late")
    say(page, "A colour?")
    act(page, "Try again")
    ended(page)
    shows(page, ["A colour?", "blue"])
    assert page.locator(".assistant .pager").inner_text().split() == ["2/2"]
    act(page, "Edit", 0)
    page.get_by_label("Edit the message").fill("Another colour?")
    page.keyboard.press("Control+Enter")
    page.locator(".message.user", has_text="Another").wait_for()
    ended(page)
    shows(page, ["Another colour?", "green"])
    assert [m["content"] for m in bodies[2]["messages"]] == ["Another colour?"]
    act(page, "Earlier version", 0)
    shows(page, ["A colour?", "blue"])
    act(page, "Earlier version")
    shows(page, ["A colour?", "red"])
    page.reload()
    page.locator(".assistant", has_text="red").wait_for()
    page.press("#say", "ArrowUp")
    assert page.get_by_label("Edit the message").input_value() == "A colour?"
    page.keyboard.press("Escape")
    say(page, "And then?")
    assert [m["content"] for m in bodies[3]["messages"]] == ["A colour?", "red", "And then?"]


def test_the_model_continues_an_edited_answer(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    bodies = scripted(
        page, [delta(content="This is"), delta("length")], [delta(content=" it"), delta("stop")]
    )
    say(page, "Tell me.")
    act(page, "Edit")
    page.get_by_label("Edit the message").fill("That was")
    page.get_by_role("button", name="Save").click()
    act(page, "Continue")
    page.get_by_text("That was it", exact=True).wait_for()
    assert bodies[1]["messages"][-1] == {"role": "assistant", "content": "That was"}
    assert bodies[1]["continue_final_message"] is True
    assert bodies[1]["add_generation_prompt"] is False


def test_a_branch_is_a_conversation_of_its_own(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    scripted(page, "one", "two", "three")
    say(page, "First")
    say(page, "Second")
    act(page, "Branch into a new chat", 1)
    until(lambda: len(listed(page)) == 2)
    shows(page, ["First", "one"])
    say(page, "Third")
    page.go_back()
    page.get_by_text("two", exact=True).wait_for()
    shows(page, ["First", "one", "Second", "two"])


def test_a_long_prompt_shows_how_far_it_is_read(open_page: Opener, tmp_path: Any) -> None:
    with serve_text(tmp_path, chunk=32) as served:
        page = open_page(served.url)
        page.fill("#say", "the lazy dog " * 40)
        served.worker.seconds = 0.2
        page.press("#say", "Enter")
        page.locator(".facts", has_text="Reading the prompt: ").wait_for()
        page.locator(".assistant .text:not(:empty)").wait_for()
        served.worker.seconds = 0.0
        ended(page)
        assert "Reading" not in page.locator(".facts").last.inner_text()


def test_stop_keeps_what_was_written(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    page.fill("#say", "the lazy dog " * 3)
    served.worker.seconds = 0.25  # so slow that the answer is stopped before its end
    page.press("#say", "Enter")
    page.locator(".assistant .text:not(:empty)").wait_for()
    assert page.get_by_role("button", name="Stop").is_visible()
    page.keyboard.press("Escape")
    ended(page)
    served.worker.seconds = 0.0
    assert page.locator(".facts").last.inner_text().startswith("stopped")
    assert served.client.idle()["aborted"] >= 1
    kept = texts(page)[-1]
    page.reload()
    page.locator(".assistant .text:not(:empty)").wait_for()
    assert texts(page)[-1] == kept


# -- conversations --------------------------------------------------------------------------------


def test_conversations_are_kept_named_searched_and_deleted(
    served: Served, open_page: Opener
) -> None:
    page = open_page(served.url)
    scripted(page, "about zebras", "about lions")
    say(page, "First question")
    page.click("#new")
    say(page, "Second question")
    until(lambda: listed(page) == ["Second question", "First question"])
    page.reload()
    page.locator(".message").nth(1).wait_for()
    shows(page, ["Second question", "about lions"])
    page.keyboard.press("Control+k")
    page.keyboard.type("ZEBRAS first")
    until(lambda: listed(page) == ["First question"])
    page.locator(".hit", has_text="zebras").wait_for()
    page.locator("#conversations .row a").click()
    page.get_by_text("about zebras", exact=True).wait_for()
    page.fill("#search", "")
    until(lambda: len(listed(page)) == 2)
    row = page.locator("#conversations .row").last
    row.hover()
    row.get_by_role("button", name="Rename").click()
    page.get_by_label("Name of the conversation").fill("Animals")
    page.keyboard.press("Enter")
    until(lambda: "Animals" in listed(page))
    row = page.locator("#conversations .row", has_text="Animals")
    row.hover()
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    until(lambda: listed(page) == ["Second question"] and texts(page) == [])
    assert page.evaluate("document.cookie") == ""


def test_another_tab_adds_and_loses_nothing(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    scripted(page, "one", "two")
    say(page, "First")
    other = page.context.new_page()
    scripted(other, "three")
    other.goto(page.url)
    other.locator(".message").nth(1).wait_for()
    say(page, "Second")
    say(other, "Third")
    page.reload()
    page.locator(".message").nth(3).wait_for()
    shows(page, ["First", "one", "Third", "three"])
    act(page, "Earlier version", 2)
    shows(page, ["First", "one", "Second", "two"])


def test_export_and_import(served: Served, open_page: Opener, tmp_path: Any) -> None:
    page = open_page(served.url)
    scripted(page, HOSTILE, "second")
    say(page, "First")
    act(page, "Try again")
    ended(page)
    with page.expect_download() as download:
        page.click("#export-all")
    path = tmp_path / "all.json"
    download.value.save_as(path)
    row = page.locator("#conversations .row")
    row.hover()
    row.get_by_role("button", name="Export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Markdown").click()
    assert download.value.suggested_filename == "First.md"
    assert (
        download.value.path().read_text()
        == "# First\n\n## User\n\nFirst\n\n## Assistant\n\nsecond\n"
    )
    other = open_page(served.url)
    other.set_input_files("#import-file", path)
    other.locator(".message").nth(1).wait_for()
    shows(other, ["First", "second"])
    act(other, "Earlier version")
    assert other.locator(".prose script, .prose img").count() == 0


def test_a_long_conversation_is_drawn_in_parts(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    roles = ["user", "assistant"]
    nodes = {
        f"n{i}": {"role": roles[i % 2], "content": f"text {i}", "finish": "stop",
                  "parent": f"n{i - 1}" if i else ""}
        for i in range(450)
    }  # fmt: skip
    whole = {"format": "sglang.conversations", "version": 1,
             "conversations": [{"title": "long", "leaf": "n449", "nodes": nodes}]}  # fmt: skip
    file = {"name": "a.json", "mimeType": "application/json", "buffer": json.dumps(whole).encode()}
    page.set_input_files("#import-file", [file])
    messages = page.locator(".message")

    def shows(count: int) -> bool:
        return bool(messages.count() == count)

    for count, left in ((200, 250), (400, 50)):
        until(partial(shows, count))
        assert texts(page)[0] == f"text {450 - count}"
        page.get_by_role("button", name=f"Show earlier messages ({left})").click()
    until(lambda: messages.count() == 450 and page.locator(".earlier").count() == 0)
    bodies = scripted(page, "on")
    say(page, "Go on")
    assert len(bodies[0]["messages"]) == 451
    assert texts(page)[-1] == "on"


NODES = '{"format": "sglang.conversations", "version": 1, "conversations": [{"nodes": %s}]}'
BROKEN = {
    "{": "is not JSON",
    "{}": "holds no exported conversations",
    NODES.replace("1,", "9,") % "{}": "has version 9",
    NODES % "[]": "conversation 1: nodes is no object",
    NODES % '{"a": {"role": "god"}}': 'has the role "god"',
    NODES % '{"a": {"role": "user", "parent": "b"}, "b": {"role": "user", "parent": "a"}}':
        "a message stands behind itself",
    NODES % '{"a": {"role": "user", "files": [{"kind": "image", "data": "javascript:1"}]}}':
        "neither a text nor an image",
}  # fmt: skip


def test_a_broken_import_is_refused(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    for content, complaint in BROKEN.items():
        file = {"name": "broken.json", "mimeType": "application/json", "buffer": content.encode()}
        page.set_input_files("#import-file", [file])
        page.get_by_role("alert").filter(has_text=complaint).wait_for()
        assert "broken.json" in page.get_by_role("alert").inner_text()
    until(lambda: listed(page) == [])


def test_without_a_database_the_chat_still_works(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    page.add_init_script("indexedDB.open = () => { throw new Error('no database here'); }")
    page.reload()
    page.get_by_text("keeps no conversations").wait_for()
    scripted(page, "one")
    assert say(page, "First") == "one"
    until(lambda: listed(page) == ["First"])


def test_a_conversation_that_cannot_be_stored_goes_on(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    scripted(page, "one", "two")
    page.evaluate("""() => IDBObjectStore.prototype.put = () => {
      throw new DOMException('The disk is full', 'QuotaExceededError');
    }""")
    assert say(page, "First") == "one"
    assert "was not saved: The disk is full" in page.get_by_role("alert").inner_text()
    assert say(page, "Second") == "two"


def test_other_views_and_other_chats_do_not_end_an_answer(
    served: Served, open_page: Opener
) -> None:
    page = open_page(served.url)
    served.worker.seconds = 0.25  # so slow that the answer is stopped before its end
    page.fill("#say", "the lazy dog")
    page.press("#say", "Enter")
    page.locator(".assistant .text:not(:empty)").wait_for()
    page.get_by_role("link", name="Program").click()
    page.get_by_role("link", name="Chat", exact=True).click()
    until(lambda: page.locator(".message").count() == 2)
    page.click("#new")
    until(lambda: page.locator(".message").count() == 0)
    scripted(page, "one")
    assert say(page, "Meanwhile") == "one"
    page.locator("#conversations .row a", has_text="the lazy dog").click()
    page.locator(".assistant .text:not(:empty)").wait_for()
    page.get_by_role("button", name="Stop").click()
    served.worker.seconds = 0.0
    ended(page)
    assert page.locator(".facts").last.inner_text().startswith("stopped")


# -- attachments and status -----------------------------------------------------------------------

DROP = """([selector, kind, name, type, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, {type}));
  const target = document.querySelector(selector);
  const options = {bubbles: true, cancelable: true};
  target.dispatchEvent(kind === 'paste'
    ? new ClipboardEvent('paste', {...options, clipboardData: data})
    : new DragEvent('drop', {...options, dataTransfer: data}));
}"""
PIXEL = """async () => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 3000, height: 1500});
  canvas.getContext('2d').fillRect(0, 0, 30, 30);
  const blob = await new Promise(done => canvas.toBlob(done, 'image/png'));
  const data = new DataTransfer();
  data.items.add(new File([blob], 'plot.png', {type: 'image/png'}));
  document.querySelector('#say').dispatchEvent(
    new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true}));
}"""


def test_files_by_paste_drop_and_choice(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    info = {**served.client.get("/model_info").json(), "vision": True}
    page.route("**/model_info", lambda route: route.fulfill(json=info))
    page.reload()
    page.locator("#model", has_text=served.state.runtime.model_name).wait_for()
    bodies = scripted(page, "seen")
    page.evaluate(PIXEL)
    page.evaluate(DROP, ["#chat", "drop", "notes.md", "text/markdown", "# Notes"])
    page.locator("#attached li", has_text="plot.png").wait_for()
    page.locator("#attached li", has_text="notes.md").wait_for()
    chosen = {"name": "extra.txt", "mimeType": "text/plain", "buffer": b"extra"}
    page.set_input_files("#file", [chosen])
    page.get_by_role("button", name="Remove extra.txt").click()
    until(lambda: page.locator("#attached li").count() == 2)
    say(page, "What is this?")
    image, words = bodies[0]["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert words == {"type": "text", "text": "notes.md:\n\n# Notes\n\nWhat is this?"}
    page.reload()
    picture = page.locator(".user .picture")
    until(lambda: picture.evaluate("e => [e.naturalWidth, e.naturalHeight]") == [1568, 784])


def test_what_cannot_be_sent_is_said(served: Served, open_page: Opener) -> None:
    page = open_page(served.url)
    page.locator("#model", has_text=served.state.runtime.model_name).wait_for()
    for name, kind, text, complaint in (
        ("a.png", "image/png", "x", "reads no images"),
        ("b.bin", "application/pdf", "a\0b", "neither a text in UTF-8 nor an image"),
        ("c.txt", "text/plain", "x" * 1_000_001, "a text may have 1000000"),
    ):
        page.evaluate(DROP, ["#chat", "drop", name, kind, text])
        page.get_by_role("alert").filter(has_text=complaint).wait_for()
        assert name in page.get_by_role("alert").inner_text()
    files = [{"name": f"{i}.txt", "mimeType": "text/plain", "buffer": b"x"} for i in range(11)]
    page.set_input_files("#file", files)
    page.get_by_role("alert").filter(has_text="11 files; a message takes 10").wait_for()
    assert page.locator("#attached").is_hidden()


def test_context_and_speed_are_in_sight(served: Served, open_page: Opener) -> None:
    page = open_page(served.url, viewport=NARROW)
    scripted(
        page,
        [delta(content="a"), delta(content="b"), delta("stop"), {"usage": usage(700, 200, 350)}],
    )
    say(page, "First")
    context = served.state.runtime.info.context_length
    assert page.locator("#context-text").inner_text() == f"900 of {context:,} tokens"
    assert page.locator("#context.tight").count() == 1
    assert page.locator(".facts").last.evaluate("e => getComputedStyle(e).opacity") == "1"
    assert "prompt 700, 50 % cached" in page.locator(".facts").last.text_content()
    assert "200 tokens" in page.locator(".facts").last.text_content()
    say_url = page.url
    page.locator("#open-history").click()
    page.locator("#conversations .row a").click()
    page.locator("#history").wait_for(state="hidden")
    assert page.url == say_url
