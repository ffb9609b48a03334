"""The page at ``/`` in a browser: opened, watched for errors, answered from a script."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
Opener = Callable[..., Any]


@contextlib.contextmanager
def opening(browser: Any) -> Iterator[Opener]:
    """Yield a function that opens a view of a server in a context of its own. At the end: no script
    has failed, nothing was loaded from elsewhere, no policy was violated."""
    contexts: list[Any] = []
    origins: list[str] = []
    urls: list[str] = []
    wrong: list[str] = []

    def note(said: Any) -> None:
        if said.type in ("error", "warning") and "Failed to load resource" not in said.text:
            wrong.append(said.text)

    def watch(page: Any) -> None:
        page.set_default_timeout(30_000)
        page.on("request", lambda request: urls.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", note)

    def open(url: str, view: str = "chat", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **options})
        context.on("page", watch)
        page = context.new_page()
        contexts.append(context)
        origins.extend((f"{url}/", "data:", f"blob:{url}/"))
        page.goto(f"{url}/#{view}")
        return page

    yield open
    for context in contexts:
        context.close()
    assert wrong == []
    assert urls
    assert [url for url in urls if not url.startswith(tuple(origins))] == []


def say(page: Any, text: str) -> str:
    """Send a message; the text of the answer once it is whole."""
    count = page.locator(".message.user").count()
    page.fill("#say", text)
    page.press("#say", "Enter")
    page.locator(".message.user").nth(count).wait_for()
    ended(page)
    return page.locator(".message.assistant > .body > .text").last.inner_text()


def ended(page: Any) -> None:
    """Wait until no answer is being written."""
    page.locator("#log[aria-busy='false']").wait_for()


def texts(page: Any) -> list[str]:
    """Return the texts of the messages on the page."""
    return page.locator(".message > .body > .text").all_inner_texts()


def shows(page: Any, expected: list[str], seconds: float = 60.0) -> None:
    """Wait until these are the texts of the messages on the page."""
    deadline = time.monotonic() + seconds
    while (found := texts(page)) != expected:
        assert time.monotonic() < deadline, found
        page.wait_for_timeout(50)


def act(page: Any, name: str, at: int = -1) -> None:
    """Press the button of this name below a message."""
    message = page.locator(".message").nth(at)
    message.hover()
    message.get_by_role("button", name=name).click()


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"delta": fields, "finish_reason": finish}


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": completion,
            "prompt_tokens_details": details}  # fmt: skip


def scripted(page: Any, *replies: list[dict[str, Any]] | str) -> list[dict[str, Any]]:
    """Answer chats with these deltas or texts in turn; return the bodies of the requests."""
    left, bodies = list(replies), []

    def answer(route: Any) -> None:
        bodies.append(json.loads(route.request.post_data))
        reply = left.pop(0)
        parts = [delta(content=reply), delta("stop")] if isinstance(reply, str) else reply
        chunks = [part if "usage" in part else {"choices": [{"index": 0, **part}]}
                  for part in parts]  # fmt: skip
        lines = [f"data: {json.dumps({'id': 'x', **chunk})}\n\n" for chunk in chunks]
        body = "".join([*lines, "data: [DONE]\n\n"])
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)
    return bodies
