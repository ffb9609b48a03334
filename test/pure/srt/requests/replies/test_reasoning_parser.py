"""Split of thoughts and answers by the server, however the text is cut, and in replies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import is_error
from helpers.scripted import Scripted, pieces, posted
from helpers.toy_tokenizer import CHATML, byte_level
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.ir.constraint import Constraint
from sglang.semantics.tool_calls.tool_format import constraint_of, schema
from sglang.srt.config import Config
from sglang.srt.config.sections import REASONING_PARSERS
from sglang.srt.requests.completion.output import Finish
from sglang.srt.requests.replies.reasoning_parser import (
    PARSERS,
    Marks,
    ThoughtParser,
    behind_thought,
    marks_for,
    opened,
)
from sglang.srt.tokenizer import Tokenizer

THINK, ALWAYS = PARSERS["qwen3"], PARSERS["deepseek-r1"]


def parsed(marks: Marks, parts: list[str], inside: bool = False, whole: bool = False) -> Any:
    parser = ThoughtParser(marks, inside, whole)
    found = [parser.feed(part) for part in parts] + [parser.finish()]
    thought, answer = ("".join(piece) for piece in zip(*found))
    return thought, answer, parser.chars


@pytest.mark.parametrize(
    ("text", "inside", "thought", "answer", "chars"),
    [
        ("<think>\nI see.\n</think>\n\nBlue. ", False, "I see.", "Blue. ", 23),
        (" \n<think>a</think>b</think>", False, "a", "b</think>", 18),
        ("<think></think>Blue", False, "", "Blue", 15),
        (" Blue", False, "", " Blue", 0),
        ("Blue <think>a</think>", False, "", "Blue <think>a</think>", 0),
        ("<thin", False, "", "<thin", 0),
        ("<think> cut off ", False, "cut off", "", 16),
        ("<think>a</thi", False, "a</thi", "", 13),
        ("I see.\n</think>\nBlue", True, "I see.", "Blue", 15),
        ("<think>I see.</think>Blue", True, "I see.", "Blue", 21),
        ("a <</think >  b</think>", True, "a <</think >  b", "", 23),
        ("", True, "", "", 0),
    ],
)
def test_thought_and_answer(text: str, inside: bool, thought: str, answer: str, chars: int) -> None:
    assert parsed(THINK, [text], inside) == (thought, answer, chars)
    assert parsed(THINK, list(text), inside) == (thought, answer, chars)


FRAGMENTS = ["<think>", "</think>", "<thi", "</thi", "<", "/", " ", "\n", "a", "bc ", "é"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@pytest.mark.slow
@given(TEXTS, st.lists(st.integers(0, 200), max_size=8), st.booleans(), st.booleans())
@settings(max_examples=500)
def test_the_chunks_do_not_matter(text: str, cuts: list[int], inside: bool, whole: bool) -> None:
    found = parsed(THINK, [text], inside, whole)
    assert parsed(THINK, pieces(text, cuts), inside, whole) == found
    thought, answer, chars = found
    if whole:
        assert (thought, answer) == (text[:chars], text[chars:])
    elif not chars:
        assert (thought, answer) == ("", text)
    else:
        assert thought in text[:chars]
        assert answer == text[chars:].lstrip()


@pytest.mark.parametrize("name", PARSERS)
def test_every_parser_reads_its_own_marks(name: str) -> None:
    marks = PARSERS[name]
    text = f"{marks.begin}\nso\n{marks.end}\n\nBlue"
    assert parsed(marks, [text], marks.always)[:2] == ("so", "Blue")


def test_hostile_text_takes_linear_time() -> None:
    def steps(text: str) -> int:
        count = 0

        def counted(*_: object) -> None:
            nonlocal count
            count += 1

        parser = ThoughtParser(THINK, True)
        sys.setprofile(counted)
        try:
            parser.feed(text)
            parser.finish()
        finally:
            sys.setprofile(None)
        return count

    for part in (" ", "<", "</think", "</", "<think>", "a "):
        few, many = steps(part * (2000 // len(part))), steps(part * (8000 // len(part)))
        assert many < 6 * few + 1000, part


def test_which_parser() -> None:
    assert set(REASONING_PARSERS) == {"auto", "none", *PARSERS}
    assert marks_for("auto", "... '</think>' ...") == THINK
    assert marks_for("auto", "[THINK] [/THINK]") == PARSERS["mistral"]
    assert marks_for("auto", CHATML) is None
    assert marks_for("none", "</think>") is None
    assert marks_for("deepseek-r1", "") == ALWAYS


def test_where_a_reply_begins() -> None:
    assert opened(THINK, "<|im_start|>assistant\n<think>\n") is True
    assert opened(THINK, "assistant\n<think>\n\n</think>\n\n") is False
    assert opened(THINK, "<think> </think> x\n<|im_start|>assistant\n") is None
    assert opened(THINK, "assistant\n<think>I", "<think>I") is True
    assert opened(THINK, "assistant\n<think>I</think>It", "<think>I</think>It") is False


# -- the route ------------------------------------------------------------------------------------

OPENS = CHATML.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% elif opens %}<think>\n"
    "{% endif %}{% endif %}",
)
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
INSIDE = {"chat_template_kwargs": {"opens": True}}
TEXT = "<think>\nI see.\n</think>\n\nBlue."
TOOL = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
FORMAT = {"response_format": {"type": "json_object"}}


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    path = byte_level(tmp_path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": OPENS}))
    found = Scripted(Tokenizer(path))
    found.text, found.piece = TEXT, 3
    return found


def reply(scripted: Scripted, **fields: Any) -> Any:
    answer = posted(scripted, "/v1/chat/completions", {**ASK, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def message(scripted: Scripted, **fields: Any) -> Any:
    return reply(scripted, **fields)["choices"][0]["message"]


def streamed(scripted: Scripted, **fields: Any) -> list[tuple[str, str]]:
    """Field and text of every delta."""
    body = {**ASK, **fields, "stream": True}
    lines = posted(scripted, "/v1/chat/completions", body).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    choices = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return [item for delta in choices for item in delta.items() if item[0] != "role" and item[1]]


def test_a_thought_is_told_apart(scripted: Scripted) -> None:
    found = reply(scripted)
    said = found["choices"][0]["message"]
    assert (said["reasoning_content"], said["content"]) == ("I see.", "Blue.")
    deltas = streamed(scripted)
    assert [name for name, _ in deltas] == sorted((n for n, _ in deltas), reverse=True)
    for name, text in (("reasoning_content", "I see."), ("content", "Blue.")):
        assert "".join(text for key, text in deltas if key == name) == text


def test_a_thought_that_the_template_opens(scripted: Scripted) -> None:
    scripted.text = "I see.\n</think>\n\nBlue."
    assert message(scripted, **INSIDE)["reasoning_content"] == "I see."
    assert message(scripted)["content"] == scripted.text
    closed = {"chat_template_kwargs": {"enable_thinking": False}}
    assert message(scripted, **closed)["content"] == scripted.text
    assert message(scripted, reasoning_effort="none")["content"] == scripted.text
    assert scripted.prompts[-1].endswith("</think>\n\n")
    scripted.text = "I s"
    scripted.finish = Finish("length")
    said = message(scripted, **INSIDE)
    assert (said["reasoning_content"], said["content"]) == ("I s", "")


def test_a_thought_that_is_not_to_be_told_apart(scripted: Scripted) -> None:
    assert message(scripted, separate_reasoning=False)["content"] == TEXT
    deltas = streamed(scripted, separate_reasoning=False)
    assert {name for name, _ in deltas} == {"content"}
    assert "".join(text for _, text in deltas) == TEXT


def test_a_thought_that_is_not_to_be_streamed(scripted: Scripted) -> None:
    assert streamed(scripted, stream_reasoning=False)[0] == ("reasoning_content", "I see.")


def test_calls_behind_a_thought(scripted: Scripted) -> None:
    """Text in a thought that looks like a call is no call."""
    scripted.text = f"<think>{CALL}</think>{CALL}"
    for fields in ({}, {"separate_reasoning": False}):
        said = message(scripted, tools=[TOOL], **fields)
        assert [call["function"]["arguments"] for call in said["tool_calls"]] == ['{"a": 1}']


def test_tokens_of_thoughts_are_counted(scripted: Scripted) -> None:
    """Reasoning tokens are the generated tokens of the thought's text."""
    ids = scripted.tokenizer.encode(TEXT, False)
    counted = scripted.tokenizer.encode(TEXT.partition("Blue")[0].rstrip(), False)
    scripted.tokens = list(ids)
    usage = reply(scripted)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len(counted)}
    assert len(counted) < len(ids)
    assert "completion_tokens_details" in reply(scripted, stream=False)["usage"]
    scripted.text, scripted.tokens = "Blue.", None
    assert reply(scripted)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_constraints_apply_behind_the_thought(scripted: Scripted) -> None:
    def asked(**fields: Any) -> Constraint | None:
        reply(scripted, **fields)
        return scripted.requests[-1].sampling.constraint

    form = schema({"type": "object"})
    assert behind_thought(THINK, False, form) is form
    assert asked(**FORMAT) == constraint_of(behind_thought(THINK, None, form), None)
    assert asked(**FORMAT, **INSIDE) == constraint_of(behind_thought(THINK, True, form), None)
    plain = Constraint("json_schema", '{"type":"object"}')
    assert asked(**FORMAT, reasoning_effort="none") == plain
    assert asked() is None
    assert asked(ebnf='root ::= "a"', **INSIDE) == Constraint("ebnf", 'root ::= "a"')
    required = asked(tools=[TOOL], tool_choice="required", **INSIDE)
    assert required is not None
    assert json.loads(required.text)["format"]["elements"][0]["end"] == "</think>"
    choices = asked(choices=["a", "b"], **INSIDE)
    assert choices is not None
    assert '{"type": "const_string", "value": "b"}' in choices.text


def test_the_parser_can_be_chosen(scripted: Scripted) -> None:
    body = {**ASK, "stream": False}
    config = Config.of(reasoning_parser="none")
    said = posted(scripted, "/v1/chat/completions", body, config).json()["choices"][0]["message"]
    assert said["content"] == TEXT
    scripted.text = "I see.</think>Blue."
    config = Config.of(reasoning_parser="deepseek-r1")
    said = posted(scripted, "/v1/chat/completions", body, config).json()["choices"][0]["message"]
    assert (said["reasoning_content"], said["content"]) == ("I see.", "Blue.")


def test_variables_of_the_template_have_limits(scripted: Scripted) -> None:
    deep: Any = 1
    for _ in range(20):
        deep = [deep]
    for variables, words in (
        ({str(i): i for i in range(65)}, "has 65 entries; at most 64"),
        ({"a": "x" * 70_000}, "characters; at most 65536"),
        ({"a": deep}, "deeper than 16 levels"),
    ):
        body = {**ASK, "chat_template_kwargs": variables}
        error = is_error(posted(scripted, "/v1/chat/completions", body), 400)
        assert (error["param"], words in error["message"]) == ("chat_template_kwargs", True)
    reply(scripted, chat_template_kwargs={"messages": "x", "seconds": 0, "a": [[[{"b": 1}]]]})
