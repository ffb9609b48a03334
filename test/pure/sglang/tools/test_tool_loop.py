"""Gens with tools: the loop of calls and results, in threads and in event loops."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from typing import Any

import pytest
import sglang as sgl
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from sglang.semantics.tool_calls.tool_formats import FORMATS, format_named

HERMES = format_named("hermes")


def calls(*made: tuple[str, dict[str, Any]], form: str = "hermes") -> str:
    return format_named(form).written(made)


def add(a: int, b: int = 2) -> int:
    """Sum of two numbers."""
    return a + b


async def later(city: str) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"city": city}


def broken(text: str) -> str:
    raise LookupError(f"no {text}")


class Reply(BaseModel):
    text: str


TOOLS = [add, later, broken]


@sgl.function
def ask(s: Any, question: str, tools: Any = None, **options: Any) -> str:
    s += sgl.system("Be brief.") + sgl.user(question)
    s += sgl.assistant(sgl.gen("x", tools=tools or TOOLS, **options))
    return str(s["x"])


@sgl.function
async def aask(s: Any, question: str) -> str:
    s += sgl.system("Be brief.") + sgl.user(question)
    s += sgl.assistant(sgl.gen("x", tools=TOOLS))
    return str(await s.aget("x"))


class MuteError(Exception):
    def __str__(self) -> str:
        raise OSError("no text")


def mute() -> str:
    raise MuteError


def deep() -> Any:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def roles(state: Any) -> str:
    return "".join(message["role"][0] for message in state.messages())


def test_the_model_calls_and_goes_on() -> None:
    mock = sgl.Mock(["One. " + calls(("add", {"a": 3}), ("later", {"city": "Rome"})), "Done: 5"])
    state = ask.run("What?", backend=mock)
    assert state.ret_value == "Done: 5"
    assert [(c["name"], c["arguments"], c["result"]) for c in state["x_calls"]] == [
        ("add", {"a": 3}, "5"), ("later", {"city": "Rome"}, '{"city":"Rome"}'),
    ]  # fmt: skip
    assert [call.value for call in state.value("x_calls")] == [5, {"city": "Rome"}]
    assert roles(state) == "suatta"
    first, last = (call.prompt.text for call in mock.calls)
    assert '"name": "add"' in first.partition("<|im_end|>")[0]
    assert last.startswith(first)
    assert last.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert state.usage.calls == 2


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("template", ["chatml", "llama-3-instruct", "mistral", "default"])
def test_every_format_and_template_goes_round(form: str, template: str) -> None:
    mock = sgl.Mock([calls(("add", {"a": 3}), form=form), "Done"], chat_template=template,
                    tool_format=form)  # fmt: skip
    state = ask.run("What?", backend=mock)
    assert (state["x"], state["x_calls"][0]["result"]) == ("Done", "5")
    assert roles(state) == "suata"
    assert "5" in mock.calls[1].prompt.text[len(mock.calls[0].prompt.text) :]


@pytest.mark.parametrize("template", ["chatml", "qwen", "mistral", "llama-2-chat", "vicuna"])
def test_the_tools_are_introduced_as_the_system_says(template: str) -> None:
    """The prompt is that of a program whose system turn has the introduction."""

    @sgl.function
    def bare(s: Any) -> None:
        s += sgl.user("What?")
        s += sgl.gen("x", tools=[add])

    mock = sgl.Mock(["Done"], chat_template=template)
    bare.run(backend=mock)
    text = mock.calls[0].prompt.text
    start = text.index("You may call")
    end = text.index("ARGUMENTS}\n</tool_call>") + len("ARGUMENTS}\n</tool_call>")
    introduction = text[start:end]
    default = mock.chat_template.default_system

    @sgl.function
    def told(s: Any) -> None:
        said = f"{default}\n\n{introduction}" if default else introduction
        s += sgl.system(said) + sgl.user("What?")
        s += sgl.assistant(sgl.gen("x"))

    plain = sgl.Mock(["Done"], chat_template=template)
    told.run(backend=plain)
    assert text == plain.calls[0].prompt.text


def test_a_gen_outside_of_turns_makes_its_own() -> None:
    @sgl.function
    def own(s: Any) -> None:
        s += sgl.user("What?")
        s += sgl.gen("x", tools=[add])
        s += sgl.user("Thanks")

    assert roles(own.run(backend=sgl.Mock([calls(("add", {"a": 1})), "3"]))) == "uatau"


def test_tools_of_one_turn_run_side_by_side() -> None:
    """Each waits for the others: one after the other they would not get by."""
    together = threading.Barrier(3, timeout=20)

    def meet(name: str) -> str:
        together.wait()
        return name

    text = calls(*(("meet", {"name": str(i)}) for i in range(3)))
    state = ask.run("What?", tools=[meet], backend=sgl.Mock([text, "met"]))
    assert [call["result"] for call in state["x_calls"]] == ["0", "1", "2"]


def test_errors_are_told_to_the_model() -> None:
    text = calls(("broken", {"text": "bread"}), ("add", {"a": "x"}), ("add", {}))
    state = ask.run("What?", backend=sgl.Mock([text, "Sorry"]))
    errors = [call["error"] for call in state["x_calls"]]
    assert errors[0] == "LookupError: no bread"
    assert errors[1].startswith("the arguments do not fit: a: Input should be a valid integer")
    assert errors[2] == "the arguments do not fit: a: Field required"
    assert state.messages()[3]["content"] == "error: LookupError: no bread"
    assert state["x"] == "Sorry"


@pytest.mark.parametrize("form", ["hermes", "llama3", "mistral", "tiny"])
def test_a_call_of_no_tool_is_told_to_the_model(form: str) -> None:
    text = calls(("sub", {"a": 3}), form=form)
    state = ask.run("What?", backend=sgl.Mock([text, "Sorry"], tool_format=form))
    (call,) = state["x_calls"]
    assert call["error"].startswith("there is no tool 'sub'; there are add, ")
    assert (call["arguments"], state["x"]) == ({"a": 3}, "Sorry")


def test_an_answer_in_json_is_no_call() -> None:
    text = '{"name": "Nora"}'
    state = ask.run("Who?", backend=sgl.Mock([text], tool_format="llama3"))
    assert (state["x"], state["x_calls"]) == (text, [])


@pytest.mark.parametrize("tool", [add, {"name": "add"}], ids=["function", "definition"])
def test_arguments_nested_too_deep_are_told_to_the_model(tool: Any) -> None:
    nested = '{"a": ' + "[" * 5000 + "]" * 5000 + "}"
    text = f'<tool_call>\n{{"name": "add", "arguments": {nested}}}\n</tool_call>'
    state = ask.run("?", tools=[tool], backend=sgl.Mock([text, "Sorry"]))
    (call,) = state["x_calls"]
    assert "recursion limit exceeded" in call["error"]
    assert (call["arguments"], state["x"]) == ({}, "Sorry")


def test_an_error_without_a_text_is_told_to_the_model() -> None:
    state = ask.run("?", tools=[mute], backend=sgl.Mock([calls(("mute", {})), "Sorry"]))
    said = "MuteError: its text cannot be read: __str__ raised OSError"
    assert state["x_calls"][0]["error"] == said
    assert state["x"] == "Sorry"


def test_a_result_nested_too_deep_is_named() -> None:
    with pytest.raises(sgl.ProgramError, match=r"tool 'deep' returned \[.*JSON cannot carry"):
        ask.run("?", tools=[deep], backend=sgl.Mock([calls(("deep", {})), "Sorry"]))


def test_a_call_that_is_late_is_told() -> None:
    started = threading.Event()

    def wait(n: int) -> None:
        started.set()
        time.sleep(0.5)

    state = ask.run("?", tools=[wait], tool_timeout=0.05,
                    backend=sgl.Mock([calls(("wait", {"n": 1})), "Late"]))  # fmt: skip
    assert started.is_set()
    assert state["x_calls"][0]["error"] == "it took more than 0.05 s"


@pytest.mark.parametrize("timeout", [None, 5])
def test_a_timeout_of_the_function_is_its_error(timeout: float | None) -> None:
    def socket_read(n: int) -> None:
        raise TimeoutError("timed out")

    async def http_read(n: int) -> None:
        raise asyncio.TimeoutError

    mock = sgl.Mock([calls(("socket_read", {"n": 1}), ("http_read", {"n": 1})), "Late"])
    state = ask.run("?", tools=[socket_read, http_read], tool_timeout=timeout, backend=mock)
    errors = [call["error"] for call in state["x_calls"]]
    assert errors == ["TimeoutError: timed out", "TimeoutError"]


def test_a_late_call_is_ended() -> None:
    ended = []

    async def wait(n: int) -> None:
        try:
            await asyncio.sleep(20)
        finally:
            ended.append(n)

    mock = sgl.Mock([calls(("wait", {"n": 1})), "Late"])
    state = ask.run("?", tools=[wait], tool_timeout=0.05, backend=mock)
    assert state["x_calls"][0]["error"] == "it took more than 0.05 s"
    assert ended == [1]


def test_the_limit_of_rounds_is_an_error() -> None:
    mock = sgl.Mock(lambda prompt, params: calls(("add", {"a": 1})))
    with pytest.raises(sgl.ProgramError, match="in 3 turns and calls 'add' again; max_tool_rounds"):
        ask.run("?", max_tool_rounds=3, backend=mock)
    assert len(mock.calls) == 4


def test_a_call_that_was_cut_is_an_error() -> None:
    cut = "<tool_call>\n" + '{"name": "add", "arguments": {"a": 1, "b": 2}}'
    mock = sgl.Mock([cut])
    with pytest.raises(sgl.ProgramError, match="call of 'add' was cut by max_tokens"):
        ask.run("?", max_tokens=5, backend=mock)


def test_a_result_that_cannot_be_told_ends_the_run() -> None:
    def odd(n: int) -> object:
        return object()

    with pytest.raises(sgl.ProgramError, match="tool 'odd' returned <object") as caught:
        ask.run("?", tools=[odd], backend=sgl.Mock([calls(("odd", {"n": 1}))]))
    assert isinstance(caught.value.__cause__, sgl.ToolError)


def test_calls_of_types_are_left_to_the_program() -> None:
    @sgl.function
    def program(s: Any) -> Any:
        s += sgl.user("What?")
        s += sgl.gen("x", tools=[Reply, add])
        (call,) = s.value("x_calls")
        s.messages([{"role": "tool", "content": "noted", "tool_call_id": call.id}])
        s += sgl.assistant(sgl.gen("y"))
        return call.value

    state = program.run(backend=sgl.Mock([calls(("Reply", {"text": "hi"})), "bye"]))
    assert state.ret_value == Reply(text="hi")
    assert roles(state) == "uata"
    assert state["x_calls"][0]["result"] is None
    assert state.messages()[1]["tool_calls"][0]["function"]["name"] == "Reply"


def test_calls_of_both_kinds_are_answered_as_far_as_they_can_be() -> None:
    text = calls(("add", {"a": 1}), ("Reply", {"text": "hi"}))
    state = ask.run("?", tools=[Reply, add], backend=sgl.Mock([text]))
    assert [call["result"] for call in state["x_calls"]] == ["3", None]
    assert roles(state) == "suata"


def test_a_choice_holds_for_the_first_turn() -> None:
    mock = sgl.Mock([calls(("add", {"a": 1})), "3"], constraints=["structural_tag"])
    ask.run("?", tool_choice=add, backend=mock)
    first, second = (json.loads(c.params.structural_tag)["format"] for c in mock.calls)  # type: ignore[union-attr]
    assert first["type"] == "tags_with_separator"
    assert len(first["tags"]) == 1
    assert second["type"] == "triggered_tags"


def test_a_required_call_that_does_not_come_is_an_error() -> None:
    with pytest.raises(sgl.ProgramError, match="tool_choice is 'required' and the model has call"):
        ask.run("?", tool_choice="required", backend=sgl.Mock(["no"]))


def test_without_choice_text_is_text() -> None:
    text = calls(("add", {"a": 1}))
    assert ask.run("?", tool_choice="none", backend=sgl.Mock([text]))["x"] == text


def test_a_typed_answer_comes_behind_the_calls() -> None:
    mock = sgl.Mock([calls(("add", {"a": 1})), '{"text": "3"}'],
                    constraints=["json_schema", "structural_tag"])  # fmt: skip
    state = ask.run("?", schema=Reply, backend=mock)
    assert state.value("x") == Reply(text="3")
    form = json.loads(mock.calls[0].params.structural_tag)["format"]  # type: ignore[union-attr]
    assert form["type"] == "or"


def test_later_gens_read_the_tools_too() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("What?") + sgl.assistant(sgl.gen("x", tools=[add]))
        s += sgl.user("And?") + sgl.assistant(sgl.gen("y"))

    mock = sgl.Mock(["a", "b"])
    program.run(backend=mock)
    assert mock.calls[1].prompt.text.startswith(mock.calls[0].prompt.text)
    assert mock.calls[1].prompt.tools is not None
    assert mock.calls[1].prompt.tools.choice == "none"


def test_forks_and_batches_run_their_tools() -> None:
    @sgl.function
    def program(s: Any, n: int) -> list[str]:
        s += sgl.user(f"What of {n}?")
        forks = s.fork(2)
        forks += lambda i: sgl.assistant(sgl.gen("x", tools=[add]))
        forks.join()
        return list(s["x"])

    def script(prompt: Any, params: Any) -> str:
        return "done" if "<tool_response>" in prompt.text else calls(("add", {"a": 1}))

    states = program.run_batch([{"n": i} for i in range(4)], backend=sgl.Mock(script))
    assert [state.ret_value for state in states] == [["done", "done"]] * 4
    assert states[0]["x_calls"][1][0]["result"] == "3"


def test_a_results_file_keeps_the_calls_as_data(tmp_path: Any) -> None:
    @sgl.function
    def program(s: Any, n: int) -> str:
        s += sgl.user(f"What of {n}?") + sgl.assistant(sgl.gen("x", tools=[add]))
        return str(s["x"])

    def script(prompt: Any, params: Any) -> str:
        return "done" if "<tool_response>" in prompt.text else calls(("add", {"a": 1}))

    items, file = [{"n": 1}, {"n": 2}], tmp_path / "results.jsonl"
    first = program.run_batch(items, backend=sgl.Mock(script), results_file=file)
    again = program.run_batch(items, backend=sgl.Mock([]), results_file=file)
    assert [s["x_calls"] for s in again] == [s["x_calls"] for s in first]
    assert again[0].value("x_calls") == again[0]["x_calls"]
    assert again[0].messages() == first[0].messages()


def test_reasoning_is_kept_apart() -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("What?")
        gen = sgl.gen("x", tools=[add])
        s += sgl.assistant(sgl.separate_reasoning(gen, model_type="qwen3"))

    mock = sgl.Mock(["<think>\nhm\n</think>\n" + calls(("add", {"a": 1})), "<think>so</think>3"])
    state = program.run(backend=mock)
    assert (state["x"], state["x_calls"][0]["result"]) == ("3", "3")
    assert "hm" not in state.text()


def test_the_text_streams_and_the_variable_comes_whole() -> None:
    mock = sgl.Mock(["One moment. " + calls(("add", {"a": 1})), "It is 3."])
    state = ask.run("?", stream=True, backend=mock)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text()
    again = ask.run("?", stream=True, backend=sgl.Mock([calls(("add", {"a": 1})), "It is 3."]))
    assert "".join(again.text_iter("x")) == "It is 3."


def test_it_is_recorded_and_replayed(tmp_path: Any) -> None:
    script = ["One. " + calls(("add", {"a": 3})), "Done"]
    with sgl.Recorder(sgl.Mock(script, tool_format="hermes"), tmp_path / "calls.jsonl") as recorder:
        recorded = ask.run("?", backend=recorder)
    replayed = ask.run("?", backend=sgl.Replay(tmp_path / "calls.jsonl"))
    assert replayed.messages() == recorded.messages()


def test_it_is_explained_without_a_call_of_the_functions() -> None:
    mock = sgl.Mock([])
    plain = ask.explain("?", tools=[broken], backend=mock)
    assert len(plain.requests) == 1
    answers = {"x": [calls(("broken", {"text": "a"})), "done"]}
    assert [r.title for r in ask.explain("?", backend=mock, answers=answers).requests] == [
        "gen x", "tool x_calls", "gen x",
    ]  # fmt: skip
    assert mock.calls == []


def test_a_trace_has_the_calls() -> None:
    state = ask.run("?", trace=True, backend=sgl.Mock([calls(("add", {"a": 1})), "3"]))
    kinds = [span.kind for span in state.trace().spans]
    assert kinds.count("request") == 2


@sgl.function
def graph(s: Any) -> None:
    s += sgl.user("?") + sgl.assistant(sgl.gen("x", tools=[add]))


def test_graphs_and_servers_refuse_it_with_the_line() -> None:
    for make in (graph.trace, graph.compile):
        with pytest.raises(sgl.TraceError, match="which only a run knows; run the program itself"):
            make()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"tool_choice": "auto"}, TypeError, "tools is None"),
        ({"tools": [add], "tool_choice": "mul"}, ValueError, "use auto, required, none, or one of"),
        ({"tools": [add], "max_tool_rounds": 0}, ValueError, "max_tool_rounds is 0; it must be"),
        ({"tools": [add], "max_tool_rounds": True}, ValueError, "max_tool_rounds is True"),
        ({"tools": [add], "tool_timeout": -1}, ValueError, "tool_timeout is -1; give seconds"),
    ],
)
def test_bad_options_are_named(options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        sgl.gen("x", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 2}, "fork the state instead"),
        ({"regex": "a"}, "regex cannot be given with tools"),
        ({"one_of": ["a"]}, "one_of cannot be given with tools"),
    ],
)
def test_what_tools_exclude_is_named(options: Any, said: str) -> None:
    with pytest.raises(sgl.ProgramError, match=said):
        ask.run("?", backend=sgl.Mock(["a"]), **options)


def test_a_state_without_turns_is_told_to_have_them() -> None:
    @sgl.function
    def bare(s: Any) -> None:
        s += "Q: " + sgl.gen("x", tools=[add])

    @sgl.function
    def inside(s: Any) -> None:
        s += sgl.user(sgl.gen("x", tools=[add]))

    with pytest.raises(sgl.ProgramError, match=r"needs turns, and this state has none"):
        bare.run(backend=sgl.Mock(["a"]))
    with pytest.raises(sgl.ProgramError, match=r"stands in a turn of role 'user'; close it"):
        inside.run(backend=sgl.Mock(["a"]))


# Histories: what the model says in each turn, and what has to become of it.

good = st.builds(lambda a, b: ("add", {"a": a, "b": b}), st.integers(-9, 9), st.integers(-9, 9))
bad = st.sampled_from([("add", {"a": "x"}), ("add", {}), ("broken", {"text": "t"}),
                       ("later", {"city": 3}), ("add", {"a": 1, "c": 2})])  # fmt: skip
turns = st.lists(st.lists(st.one_of(good, bad), min_size=1, max_size=4), max_size=4)


@settings(max_examples=40, deadline=None)
@given(turns, st.integers(1, 4), st.booleans())
def test_histories_of_calls(made: list[Any], limit: int, in_loop: bool) -> None:
    script = [calls(*turn) for turn in made] + ["end"]
    mock = sgl.Mock(script)
    if in_loop:
        limit = 8

    def run() -> Any:
        if in_loop:
            return asyncio.run(aask.arun("?", backend=mock))
        return ask.run("?", backend=mock, max_tool_rounds=limit)

    if len(made) > limit:
        with pytest.raises(sgl.ProgramError, match="max_tool_rounds"):
            run()
        assert len(mock.calls) == limit + 1
        return
    state = run()
    flat = [call for turn in made for call in turn]
    assert [(c["name"], c["arguments"]) for c in state["x_calls"]] == flat
    for (name, given_), call in zip(flat, state["x_calls"]):
        fits = name == "add" and set(given_) <= {"a", "b"} and isinstance(given_.get("a"), int)
        assert call["result"] == (str(given_["a"] + given_.get("b", 2)) if fits else
                                  f"error: {call['error']}")  # fmt: skip
    assert state.ret_value == "end"
    assert [call.round for call in state.value("x_calls")] == [
        number for number, turn in enumerate(made) for _ in turn
    ]
    prompts = [call.prompt.text for call in mock.calls]
    assert all(b.startswith(a) for a, b in itertools.pairwise(prompts))
    messages = state.messages()
    answered = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    asked = [call["id"] for m in messages for call in m.get("tool_calls", ())]
    assert answered == asked == [call["id"] for call in state["x_calls"]]
    assert len(set(asked)) == len(asked)


def leaves(text: str) -> str:
    raise SystemExit(f"bye {text}")


async def interrupts(text: str) -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("tool", "said"), [(leaves, "SystemExit: bye you"), (interrupts, "KeyboardInterrupt")]
)
def test_a_tool_that_exits_ends_its_call_alone(tool: Any, said: str) -> None:
    replies = [calls((tool.__name__, {"text": "you"})), "done"]
    for state in (
        ask.run("?", tools=[tool], backend=sgl.Mock(replies)),
        asyncio.run(ask.arun("?", tools=[tool], backend=sgl.Mock(replies))),
    ):
        assert state["x"] == "done"
        assert state["x_calls"][0]["error"] == said
