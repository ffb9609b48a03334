"""The guides' programs run, and print what the page shows below them.

A page's blocks run in order, in one namespace, as one file would. ``text`` right below a block is
what the block prints. ``Engine`` is a mock that knows ``REPLIES``, and so is OpenAI's service.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sglang as sgl
from helpers.fake_openai import FakeOpenAI, by_prompt
from helpers.paths import ROOT

DOCS = ROOT / "docs"
BLOCKS = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", re.DOTALL)

# From a text of the prompt, the one that occurs last, to the answer.
REPLIES = {
    "capital of France?": " Paris\n",
    "for a cat:": " Mia",
    "Mood:": " good",
    "And of Italy?": "Rome",
    "It is ": "Rome",
    "different?": "The lamp is gone.",
    "Tip 1:": " sleep\n",
    "Tip 2:": " walk\n",
    "In short:": " sleep and walk",
    "Sure?": "yes",
    "a reply:": " thank you",
    "as JSON: ": '{"name": "Nora Hill", "age": 34, "city": "Lisbon"}',
    "How old": "34",
    "calc(": "6*7",
    "</result>": " 42.",
    "Weather in Rome?": (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    ),
    "<tool_response>": "It is 21 degrees in Rome.",
    "job and city of:": "Name: Nora\nJob: baker\nCity: Lisbon\n",
    "Think: ": "<think>two and two</think>4",
    "paragraph: sleep": "Sleep well.",
    "paragraph: walk": "Walk a lot.",
}  # fmt: skip


def blocks(page: str) -> list[tuple[int, str, str | None]]:
    """Line, program and output of each."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [(text[: m.start(1)].count("\n"), m[1], m[2]) for m in BLOCKS.finditer(text)]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A folder with two pictures and a video, a service at the usual address, no real engine."""
    monkeypatch.chdir(tmp_path)
    for name in ("before.png", "after.png", "clip.mp4"):
        Path(name).write_bytes(name.encode())
    monkeypatch.setattr(sgl, "Engine", lambda: sgl.Mock(REPLIES))
    with FakeOpenAI(by_prompt(REPLIES)) as service:
        monkeypatch.setenv("OPENAI_BASE_URL", service.url)
        yield
    sgl.set_default_backend(None)


@pytest.mark.parametrize("page", ["language.md", "coming-from.md"])
@pytest.mark.usefixtures("place")
def test_programs_print_what_is_shown(page: str) -> None:
    namespace: dict[str, object] = {"__name__": "program"}
    for line, program, shown in blocks(page):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(program, "program.py", "exec"), namespace)
        except Exception as error:
            raise AssertionError(f"docs/{page}:{line}: {error!r}\n{program}") from error
        output = re.sub(r"\d+\.\d{3} s", "0.000 s", printed.getvalue())
        assert output == (shown or ""), f"docs/{page}:{line}"


def test_every_word_of_the_language_is_in_the_guide() -> None:
    guide = (DOCS / "language.md").read_text(encoding="utf-8")
    words = {name for name in dir(sgl) if not re.match("__|[A-Z].*Error$", name)}
    public = (sgl.ProgramState, sgl.ForkGroup, sgl.SglFunction)
    words |= {name for kind in public for name in vars(kind) if not name.startswith("_")}
    words -= {"arg_names", "is_async", "start", "astart", "new_state", "resolved", "states"}
    missing = sorted(word for word in words if not re.search(rf"\b{word}\b", guide))
    assert missing == []
