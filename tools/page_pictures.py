"""Pictures of the page for its documentation: `python -m tools.page_pictures`.

Start a server on the embedded model, have a browser open the page at two widths in both colour
schemes (the chat; the other views at one or two), and write
docs/images/page-VIEW-SIZE-SCHEME.png. The chat's answer is a fixed text: the embedded model is too
small for one that shows Markdown. Program and Live are the server's own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"wide": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
LOOKS = tuple(itertools.product(SIZES, ("light", "dark")))
QUESTION = "How does quicksort work, and what does it cost?"
ANSWER = r"""Quicksort sorts **around a pivot**: what is smaller goes to the left of it, the rest
to the right, and both sides are sorted in the same way.

```python
def quicksort(items: list[int]) -> list[int]:
    if len(items) < 2:
        return items
    pivot, *rest = items  # the first one
    small = [x for x in rest if x < pivot]
    large = [x for x in rest if x >= pivot]
    return [*quicksort(small), pivot, *quicksort(large)]
```

On average the recurrence is

$$T(n) = n - 1 + \frac{2}{n} \sum_{i=0}^{n-1} T(i) \approx 2 n \ln n$$

| input | comparisons |
|:--|--:|
| random | $\mathcal{O}(n \log n)$ |
| sorted already | $n(n-1)/2$ |
"""
USAGE = {
    "prompt_tokens": 412, "completion_tokens": 238, "prompt_tokens_details": {"cached_tokens": 396}
}  # fmt: skip
OLDER = ("Proofs that the square root of two is irrational", "A name for a sailing boat",
         "Regex for ISO dates", "Explain KV caches to a colleague")  # fmt: skip


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server on the embedded model."""
    command = [sys.executable, "-m", "sglang.launch_server", "--port", "0", "--threads", "1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r"https?://\S+", process.stdout.readline())
        assert found, "the server did not start"
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def answered(route: Any) -> None:
    """Send a chat's request the fixed answer."""
    words = [{"reasoning_content": "The reader wants the idea, the code and the cost."}]
    words += [{"content": ANSWER[at : at + 40]} for at in range(0, len(ANSWER), 40)]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in words]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    chunks += [{"choices": [], "usage": USAGE}]
    lines = [f"data: {json.dumps({'id': 'x', **chunk})}\n\n" for chunk in chunks]
    route.fulfill(body="".join([*lines, "data: [DONE]\n\n"]), content_type="text/event-stream")


def chat(page: Any) -> None:
    page.route("**/v1/chat/completions", answered)
    for text in (*OLDER, QUESTION):
        page.evaluate("document.getElementById('new').click()")
        page.fill("#say", text)
        page.press("#say", "Enter")
        page.locator(".message.assistant .facts").wait_for(state="attached")
        page.locator("#log[aria-busy='false']").wait_for()
    page.locator(".prose .katex").last.wait_for()
    page.locator(".prose .hljs-keyword").first.wait_for()
    # A fixed answer comes at once: its speed says nothing.
    page.evaluate("document.getElementById('speed').textContent = ''")
    page.evaluate("""for (const facts of document.querySelectorAll('.facts')) facts.textContent =
      facts.textContent.replace(/ at .*?\\/s/, '').replace(/ · first after.*/, '')""")
    page.evaluate("document.getElementById('scroll').scrollTop = 0")
    page.evaluate("document.activeElement.blur()")


def program(page: Any) -> None:
    page.select_option("#example", label="A fork")
    page.click("#run")
    page.locator(".fork .notes strong").last.wait_for()


def live(page: Any) -> None:
    page.locator("#running tbody tr").first.wait_for()
    page.locator(".edge.locked").first.wait_for()
    page.wait_for_timeout(2500)


def load(url: str, stop: threading.Event) -> None:
    """Keep some requests with common beginnings in flight."""

    def ask(index: int) -> None:
        facts = "Mara Fox is 17 years old. Mara lives in Rome. Mara works as a sailor."
        while not stop.is_set():
            question = f"What is the {('age', 'city', 'job', 'name')[index]} of Mara, {index}?"
            body = {"messages": [{"role": "system", "content": facts},
                                 {"role": "user", "content": question}],
                    "max_tokens": 120, "ignore_eos": True, "temperature": 0}  # fmt: skip
            httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    stop.wait()
    for thread in threads:
        thread.join()


VIEWS = (
    ("chat", chat, LOOKS),
    ("program", program, LOOKS[:1]),
    ("live", live, (LOOKS[0], LOOKS[3])),
)


def pictures(url: str, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    path = next(filter(None, map(shutil.which, names)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for view, prepare, looks in VIEWS:
            stop = threading.Event()
            loading = threading.Thread(target=load, args=(url, stop))
            if view == "live":
                loading.start()
            for size, scheme in looks:
                context = browser.new_context(
                    viewport=SIZES[size],  # type: ignore[arg-type]  # TypedDicts of playwright
                    color_scheme=scheme,  # type: ignore[arg-type]
                    reduced_motion="reduce",
                )
                page = context.new_page()
                page.goto(f"{url}/#{view}")
                prepare(page)
                page.screenshot(path=out / f"page-{view}-{size}-{scheme}.png")
                context.close()
            stop.set()
            if view == "live":
                loading.join()
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.page_pictures")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with serving() as url:
        pictures(url, options.out)


if __name__ == "__main__":
    main()
