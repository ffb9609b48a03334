"""Display of a state: text, turns, costs and failures, for a terminal and a notebook."""

from __future__ import annotations

import base64
import io
import itertools
import threading
from html.parser import HTMLParser
from typing import Any

import pytest
import sglang as sgl
from helpers.programs import VALUES, Recorder, program_of, programs
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.backend.base import Completion
from sglang.views.display import snapshot
from sglang.views.shown_pieces import pieces_of, turns_of

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
VOID = {"img"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Page(HTMLParser):
    """Tags, attributes and text of a page; raises where tags do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def named(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.tags if name == tag]


def shown(state: sgl.ProgramState, file: io.StringIO | None = None) -> str:
    file = file or io.StringIO()
    state.show(file)
    return file.getvalue()


@sgl.function
def talk(s, question):
    s += sgl.user(sgl.image(PNG) + question)
    s += sgl.assistant(
        sgl.gen("answer", stop=".") + " So: " + sgl.select("verdict", ["yes", "no"]) + sgl.gen()
    )


def talked(question: str = "Why?") -> sgl.ProgramState:
    return talk.run(question, backend=sgl.Mock(["It is. Or", "no", "end"]))


def test_text_is_marked_by_brackets_and_followed_by_a_line_a_gen() -> None:
    lines = shown(talked()).splitlines()
    assert lines[:4] == [
        "<|im_start|>user",
        "[image: image/png, 70 bytes]Why?<|im_end|>",
        "<|im_start|>assistant",
        "[gen answer: It is] So: [select verdict: no][gen: end]<|im_end|>",
    ]
    assert [line.split() for line in lines[-4:]] == [
        ["prompt", "cached", "new", "finish", "seconds"],
        ["gen", "answer", "4", "0", "2", "stop", "'.'"],
        ["select", "verdict", "7", "4", "0"],
        ["gen", "7", "7", "1", "stop"],
    ]


def test_a_terminal_has_colours_unless_they_are_unwanted(monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    state = talked()
    assert "\x1b[32mIt is\x1b[0m So: \x1b[36mno\x1b[0m" in shown(state, Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(state, Terminal()) == shown(state)


def test_text_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in shown(talked("\x1b[2J\x9b2J"))
    shown(talked("\ud800")).encode()


@pytest.mark.parametrize("look", [shown, lambda state: state._repr_html_()])
def test_looking_neither_waits_nor_raises(look) -> None:
    gate = threading.Event()

    def script(prompt, params):
        assert gate.wait(60)
        raise ValueError("lost")

    @sgl.function
    def program(s):
        s += "Once" + sgl.gen("x")

    state = program.run(backend=sgl.Mock(script), stream=True)
    next(state.text_iter())
    early = look(state)
    gate.set()
    state.sync()
    late = look(state)
    assert "Once" in early
    assert "not finished; to come: x" in early
    assert "failed: ValueError: lost at" in late
    assert "test_display.py" in late


def test_looking_does_not_count_as_having_seen_the_failure() -> None:
    @sgl.function
    def program(s):
        (fork,) = s.fork(1)
        fork += sgl.gen("x")
        fork.sync()
        assert "lost" in shown(fork)

    with pytest.raises(sgl.ProgramError, match="lost"):
        program.run(backend=sgl.Mock([sgl.BackendError("lost")]))


def test_a_streamed_gen_is_marked_while_it_grows() -> None:
    halfway, gate = threading.Event(), threading.Event()

    class Slow(sgl.Mock):
        def stream(self, prompt, params):
            for piece in super().stream(prompt, params):
                yield piece
                halfway.set()
                assert gate.wait(60)

    @sgl.function
    def program(s):
        s += "Once" + sgl.gen("x")

    state = program.run(backend=Slow([" upon a time"]), stream=True)
    assert halfway.wait(60)
    early = shown(state)
    gate.set()
    assert early.startswith("Once[gen x:  upon]\n")
    state.sync()
    assert shown(state).startswith("Once[gen x:  upon a time]\n")


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(programs(), st.sampled_from(["chatml", "llama-2-chat", "gemma-it", "qwen"]))
def test_pieces_are_the_text_and_every_turn_is_found(operations: list, template: str) -> None:
    backend = Recorder(template)
    sgl.set_default_backend(backend)
    try:
        state = program_of(operations).run(**VALUES)
    finally:
        sgl.set_default_backend(None)
    stream = snapshot(state._executor)
    pieces = list(pieces_of(stream, backend.chat_template))
    assert "".join(piece.text for piece in pieces) == stream.text
    turns = turns_of(stream, backend.chat_template)
    assert [turn.role for turn in turns] == [message["role"] for message in stream.messages]
    for turn, message in zip(turns, stream.messages):
        said = "".join(p.text for p in pieces if p.turn == turn and p.kind != "template")
        assert said == message["content"] == stream.text[turn.body : turn.close]
    assert [piece.segment for piece in pieces if piece.segment] == stream.segments
    Page(state._repr_html_())


# Pages


def test_a_page_shows_turns_images_costs_and_meta_info() -> None:
    page = Page(talked()._repr_html_())
    assert "user<|im_start|>user\nWhy?<|im_end|>\nassistant<|im_start|>" in page.text
    (image,) = page.named("img")
    assert image["src"] == "data:image/png;base64," + base64.b64encode(PNG).decode()
    titles = [attrs["title"] for _, attrs in page.tags if "title" in attrs]
    assert any(t.startswith("gen answer\n") and '"completion_tokens": 2' in t for t in titles)
    assert [meter["value"] for meter in page.named("meter")] == ["0.000", "0.571", "1.000"]


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y> & &lt;"


def test_whatever_is_written_stays_text() -> None:
    @sgl.function
    def program(s):
        s += HOSTILE + sgl.image("https://example.org/a.png?<b>") + sgl.gen(HOSTILE)
        s += sgl.user(HOSTILE)

    state = program.run(backend=sgl.Mock([HOSTILE]))
    page = Page(state._repr_html_())
    assert page.text.count(HOSTILE) >= 4
    assert {tag for tag, _ in page.tags} == {"div", "span", "table", "tr", "td", "meter"}
    assert {name for _, attrs in page.tags for name in attrs} <= {
        "style", "title", "min", "max", "value"
    }  # fmt: skip


ROWS = [[-0.01, 1, " a"], [-3.0, 2, " b"], [-1.0, 3, "STOP"]]


@pytest.mark.parametrize(
    ("rows", "coloured"),
    [
        (ROWS, [(" a", "hsl(119,"), (" b", "hsl(6,")]),
        ([[-1.0, 1, None], [None, 2, " a"], [-1e9, 3, "b"]], [("b", "hsl(0,")]),
        ([[-1.0, 1]], []),
        ([], []),
    ],
)
def test_tokens_are_coloured_by_their_log_probability(rows: list, coloured: list) -> None:
    class Scored(sgl.Mock):
        def complete(self, prompt, params):
            return [Completion(" a b", {"output_token_logprobs": rows})]

    @sgl.function
    def program(s):
        s += "x" + sgl.gen("y", return_logprob=True)

    page = program.run(backend=Scored())._repr_html_()
    spans = [attrs for attrs in Page(page).named("span") if "hsl" in attrs["style"]]
    assert len(spans) == len(coloured)
    for attrs, (text, colour) in zip(spans, coloured):
        assert colour in attrs["style"]
        assert attrs["title"].startswith("logprob -")
        assert f">{text}</span>" in page
    assert " a b" in Page(page).text


def test_a_large_image_is_named_instead_of_shown() -> None:
    @sgl.function
    def program(s):
        s += sgl.image(PNG + bytes(2_000_000)) + sgl.video(b"frames")

    page = Page(program.run(backend=sgl.Mock())._repr_html_())
    assert page.named("img") == []
    assert "[image: image/png, 2000070 bytes][video: video/mp4, 6 bytes]" in page.text


def test_a_state_is_a_mapping_of_its_variables() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s["given"] = 3
        s += "x" + sgl.gen("y")
        assert list(s) == ["given", "y"]

    state = program.run(backend=sgl.Mock(["z"]))
    assert state.keys() == ["given", "y"]
    assert dict(state) == {"given": 3, "y": "z"}
    assert repr(state) == "ProgramState('xz', given, y)"


def test_forks_are_shown_as_a_tree_with_each_text_once() -> None:
    shown = io.StringIO()

    @sgl.function
    def program(s: Any) -> Any:
        s += "Two tips.\n"
        forks = s.fork(2)
        forks += lambda i: f"Tip {i}: " + sgl.gen("tip")
        inner = forks[1].fork(1)
        inner += " (" + sgl.gen("why")
        forks.join()
        s += "Done."
        inner[0].sync()
        forks.show(shown)
        return s._repr_html_(), repr(forks)

    state = program.run(backend=sgl.Mock({"Tip 0": "sleep", "Tip 1": "walk", "(": "air"}))
    lines = shown.getvalue().splitlines()
    assert lines[:2] == ["Two tips.", "Done."]
    assert "├─ fork 0, from character 10 on" in lines
    assert "│  Tip 0: [gen tip: sleep]" in lines
    assert "└─ fork 1, from character 10 on" in lines
    assert "   └─ fork 0, from character 21 on" in lines
    assert "       ([gen why: air]" in lines
    assert shown.getvalue().count("Two tips.") == 1
    page, group = state.ret_value
    assert page.count("Two tips.") == 1
    assert page.count("<details open") == 3
    assert group.startswith("ForkGroup(2 of ProgramState(")
    again = io.StringIO()
    state.show(again)
    assert "fork" not in again.getvalue()  # a fork is forgotten once nothing holds it


def test_tokens_show_their_probability_and_the_others_on_hover() -> None:
    class Sure(sgl.Mock):
        def complete(self, prompt: Any, params: Any) -> Any:
            rows = {"output_token_logprobs": [[-0.1, 5, "a"], [-0.7, 6, "b"]],
                    "output_top_logprobs": [[[-0.1, 5, "a"], [-2.3, 7, "c"]]]}  # fmt: skip
            return [Completion("ab", rows)]

    @sgl.function
    def program(s: Any) -> None:
        s += "x" + sgl.gen("y", return_logprob=True, top_logprobs_num=2)

    page = program.run(backend=Sure())._repr_html_()
    assert "logprob -0.1, probability 90.5%\n90.5% &#x27;a&#x27;\n10.0% &#x27;c&#x27;" in page
    assert "logprob -0.7, probability 49.7%" in page


def test_programs_and_backends_say_what_they_are() -> None:
    @sgl.function
    def ask(s: Any, question: str, n: int = 3) -> None: ...

    assert repr(ask) == "SglFunction(ask(question, n))"
    assert repr(ask.bind(n=4)) == "SglFunction(ask(question, n=4))"
    assert repr(ask.compile()) == "CompiledProgram(ask(question, n))"
    assert repr(sgl.Mock()) == "Mock()"
    assert repr(sgl.OpenAI("gpt-4o", api_key="k")) == "OpenAI(gpt-4o)"


@sgl.function
def told(s: Any) -> None:
    s += "Q: " + sgl.gen("x", max_tokens=8)


def test_a_running_program_is_watched_in_a_terminal() -> None:
    shown = io.StringIO()
    told.run(stream=True, backend=sgl.Mock(["one two three"])).watch(shown)
    assert shown.getvalue().startswith("Q: one two three\n")
    assert "gen x" in shown.getvalue()
    failed = io.StringIO()
    told.run(stream=True, backend=sgl.Mock([OSError("lost")])).watch(failed)
    assert "failed: OSError: lost" in failed.getvalue()


def test_a_notebook_shows_it_as_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            pages.append(page._repr_html_())

    monkeypatch.setattr("sglang.views.watched_state._display", lambda state: Handle())
    told.run(stream=True, backend=sgl.Mock(["one two three"])).watch(seconds=0)
    assert "one two three" in pages[-1]
    assert "not finished" not in pages[-1]
    assert all(len(a) <= len(b) + 200 for a, b in itertools.pairwise(pages))
    with pytest.raises(ValueError, match="seconds is -1; give 0 to 86400"):
        told.run(backend=sgl.Mock(["x"])).watch(seconds=-1)
