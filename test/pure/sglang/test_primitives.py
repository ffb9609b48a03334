"""Every primitive of the language, on the mock backend."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect

import pytest
import sglang as sgl
from helpers.fake_program_server import FakeProgramServer
from sglang.backend.base import Prompt
from sglang.backend.output_constraint import constraint_of
from sglang.ir.nodes import Chain, ConstantText, Gen, Select
from sglang.ir.params import DEFAULTS, NAMES, GenParams, to_wire


def test_text_and_gen_follow_one_another() -> None:
    mock = sgl.Mock({"France is": " Paris", "It has": " many people"})

    @sgl.function
    def program(s, country):
        s += "The capital of " + country + " is" + sgl.gen("capital") + "."
        s += " It has" + sgl.gen("size")
        assert s["capital"] == " Paris"
        return len(s["size"])

    state = program.run(country="France", backend=mock)
    assert state.text() == "The capital of France is Paris. It has many people"
    assert state.ret_value == len(" many people")
    assert [call.prompt.text for call in mock.calls] == [
        "The capital of France is",
        "The capital of France is Paris. It has",
    ]


def test_gen_passes_its_parameters_and_inherits_the_rest() -> None:
    mock = sgl.Mock(["x", "y"], chat_template="default")

    @sgl.function
    def program(s):
        s += sgl.gen("a", 7, temperature=0.5, stop=["\n", "."], top_k=3, seed=9, min_tokens=2)
        s += sgl.gen("b")

    program.run(backend=mock, max_new_tokens=11, stop="!", presence_penalty=0.5)
    first, second = (call.params for call in mock.calls)
    assert first == dataclasses.replace(
        DEFAULTS, max_new_tokens=7, temperature=0.5, stop=("\n", "."), top_k=3, seed=9,
        min_new_tokens=2, presence_penalty=0.5,
    )  # fmt: skip
    assert second == dataclasses.replace(
        DEFAULTS, max_new_tokens=11, stop=("!",), presence_penalty=0.5
    )


def test_gen_accepts_exactly_the_declared_parameters() -> None:
    renamed = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
    accepted = inspect.signature(sgl.gen).parameters
    selecting = {"name", "choices", "choices_method"}
    other = selecting | {"tools", "tool_choice", "max_tool_rounds", "tool_timeout"}
    names = {renamed.get(n, n) for n in accepted} - other
    assert names == set(NAMES)
    assert set(NAMES) <= set(inspect.signature(sgl.SglFunction.run).parameters)


def test_the_wire_has_the_native_names() -> None:
    params = GenParams(
        seed=3, stop="a", dtype=int, logit_bias={5: 1.0}, return_logprob=True, top_p=0.5
    )
    constraint = constraint_of(params)
    assert constraint is not None
    body = to_wire(constraint.resolve(params))
    assert body == {
        "return_logprob": True,
        "sampling_params": {
            "sampling_seed": 3,
            "stop": ["a", " ", "\n"],
            "regex": "[-+]?[0-9]{1,20}[ \n]?",
            "logit_bias": {"5": 1.0},
            "top_p": 0.5,
        },
    }
    schema = to_wire(GenParams(json_schema={"type": "object"}))["sampling_params"]["json_schema"]
    assert schema == '{"type": "object"}'


def test_stops_of_the_chat_template_join_those_of_gen() -> None:
    mock = sgl.Mock(["x"])

    @sgl.function
    def program(s):
        s += sgl.gen("a", stop="\n")

    program.run(backend=mock)
    assert mock.calls[0].params is not None
    assert mock.calls[0].params.stop == ("\n", "<|im_end|>")


def test_n_gives_a_list_and_the_first_goes_on() -> None:
    mock = sgl.Mock([("one", "two", "three")])

    @sgl.function
    def program(s):
        s += "Count: " + sgl.gen("x", n=3)

    state = program.run(backend=mock)
    assert state["x"] == ["one", "two", "three"]
    assert state.text() == "Count: one"
    assert [meta["completion_tokens"] for meta in state.get_meta_info("x")] == [1, 1, 1]


def test_select_and_gen_with_choices_are_the_same() -> None:
    choices = ["yes", "no"]
    assert sgl.gen("a", choices=choices) == sgl.select("a", choices)
    mock = sgl.Mock(["no", "yes"])

    @sgl.function
    def program(s):
        s += "Sure? " + sgl.select("a", choices) + " Really? "
        s += sgl.gen("b", choices=choices, choices_method=sgl.greedy_token_selection)

    state = program.run(backend=mock)
    assert (state["a"], state["b"]) == ("no", "yes")
    assert state.text() == "Sure? no Really? yes"
    meta = state.get_meta_info("a")
    assert meta["normalized_prompt_logprobs"][1] > meta["normalized_prompt_logprobs"][0]
    assert "greedy_logprob_matrix" in state.get_meta_info("b")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"choices": []}, "at least one"),
        ({"choices": "yes"}, "give a list"),
        ({"choices": ["a", ""]}, "not empty"),
        ({"choices": ["a"], "temperature": 0.7}, "leave it at 0"),
        ({"choices": ["a"], "choices_method": "best"}, "token_length_normalized"),
    ],
)
def test_a_wrong_select_is_refused_where_it_is_written(arguments: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        sgl.select("x", **arguments)


def test_roles_as_calls_and_as_blocks() -> None:
    mock = sgl.Mock(["Hello.", "Bye."])

    @sgl.function
    def program(s):
        s += sgl.system("Be brief.")
        s += sgl.user("Hi " + "there")
        s.assistant(sgl.gen("a"))
        with s.user():
            s += "Go"
        with s.assistant():
            s += sgl.gen("b")

    state = program.run(backend=mock)
    assert state.text() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi there<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nGo<|im_end|>\n"
        "<|im_start|>assistant\nBye.<|im_end|>\n"
    )
    assert [m["role"] for m in state.messages()] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert state.messages()[-1] == {"role": "assistant", "content": "Bye."}
    # The backend is also given the conversation, for those that take messages.
    assert mock.calls[1].prompt.messages == (*state.messages()[:4],)


def test_a_role_block_is_closed_when_its_body_raises() -> None:
    mock = sgl.Mock(["Hello."])

    @sgl.function
    def program(s):
        try:
            with s.user():
                s += "Hi"
                raise KeyError("mine")
        except KeyError:
            pass
        s += sgl.assistant(sgl.gen("a"))

    assert [m["role"] for m in program.run(backend=mock).messages()] == ["user", "assistant"]


def test_begin_and_end_nodes() -> None:
    mock = sgl.Mock(["Hello."])

    @sgl.function
    def program(s):
        s += sgl.user_begin()
        s += "Hi" + sgl.user_end() + sgl.assistant_begin() + sgl.gen("a") + sgl.assistant_end()

    assert program.run(backend=mock).messages() == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
    ]


def test_a_default_system_prompt_is_put_first() -> None:
    mock = sgl.Mock(["x"], chat_template="qwen")

    @sgl.function
    def program(s):
        s += sgl.user("Hi") + sgl.assistant(sgl.gen("a"))

    assert program.run(backend=mock).messages()[0]["role"] == "system"


def test_a_folded_system_message_opens_the_user_turn_once() -> None:
    mock = sgl.Mock(["x"], chat_template="llama-2-chat")

    @sgl.function
    def program(s):
        s += sgl.system("Be brief.") + sgl.user("Hi") + sgl.assistant(sgl.gen("a"))
        s += sgl.user("Go")

    assert program.run(backend=mock).text() == (
        "[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]x </s><s>[INST] Go [/INST]"
    )


def test_variables_scopes_and_membership() -> None:
    mock = sgl.Mock(["cat"])

    @sgl.function
    def program(s):
        with s.var_scope("line"):
            s += "A " + sgl.gen("animal") + "!"
        assert "line" in s
        assert "animal" in s
        assert "other" not in s
        s["mine"] = 5
        s.set_var("yours", [1])
        return s["line"]

    state = program.run(backend=mock)
    assert state.ret_value == state["line"] == "A cat!"
    assert (state["mine"], state.get_var("yours")) == (5, [1])
    assert state.get_meta_info("mine") == {}
    assert state.get_meta_info("animal")["finish_reason"]["type"] == "stop"


def test_scopes_of_one_name_may_be_inside_of_one_another() -> None:
    @sgl.function
    def program(s, depth):
        with s.var_scope("item"):
            s += f"<{depth}"
            if depth:
                inner = program(s, depth - 1)
            s += ">"
        return [s["item"], *(inner if depth else ())]

    want = ["<2<1<0>>>", "<1<0>>", "<0>"]
    backend = FakeProgramServer()
    assert program.run(2, backend=backend).ret_value == want
    assert program.compile(depth=2).run(backend=backend).ret_value == want
    assert program.run(2, backend=backend, on="server").ret_value == want


def test_reading_waits_for_the_last_assignment_of_a_name() -> None:
    mock = sgl.Mock([str(i) for i in range(50)], delay=0.001)

    @sgl.function
    def program(s):
        seen = []
        for _ in range(50):
            s += sgl.gen("x")
            seen.append(s["x"])
        return seen

    assert program.run(backend=mock).ret_value == [str(i) for i in range(50)]


def test_appending_does_not_wait_and_reading_does() -> None:
    import threading

    asked, answer = threading.Event(), threading.Event()

    def script(prompt: Prompt, params: GenParams) -> str:
        asked.set()
        assert answer.wait(60)
        return "done"

    @sgl.function
    def program(s):
        s += "Go: " + sgl.gen("x")
        assert asked.wait(60)  # runs although its result is not read
        s += " and on"
        answer.set()
        return s["x"]

    assert program.run(backend=sgl.Mock(script)).text() == "Go: done and on"


def test_without_threads_everything_runs_where_it_is_appended() -> None:
    import threading

    threads = set()

    def script(prompt: Prompt, params: GenParams) -> str:
        threads.add(threading.get_ident())
        return "x"

    @sgl.function
    def program(s):
        s += "a" + sgl.gen("a")
        forks = s.fork(3)
        forks += sgl.gen("b")
        forks.join()

    state = program.run(backend=sgl.Mock(script), use_thread=False)
    assert state["b"] == ["x", "x", "x"]
    assert threads == {threading.get_ident()}


def test_functions_nest_and_bind() -> None:
    mock = sgl.Mock({"2+2": "4", "3+3": "6"})

    @sgl.function
    def question(s, text, end="\n"):
        s += "Q: " + text + " A: " + sgl.gen("answer") + end
        return s["answer"]

    @sgl.function(num_api_spec_tokens=8)
    def outer(s):
        first = question(s, "2+2")
        second = question.bind(end="")(s, "3+3")
        return first, second

    state = outer(backend=mock)
    assert state.ret_value == ("4", "6")
    assert state.text() == "Q: 2+2 A: 4\nQ: 3+3 A: 6"
    assert outer.bind().num_api_spec_tokens == 8
    with pytest.raises(TypeError, match="no argument 'nope'"):
        question.bind(nope=1)


def test_the_default_backend() -> None:
    mock = sgl.Mock(["x"])

    @sgl.function
    def program(s):
        s += sgl.gen("a")

    with pytest.raises(ValueError, match="set_default_backend"):
        program.run()
    sgl.set_default_backend(mock)
    try:
        assert program.run()["a"] == "x"
        sgl.flush_cache()
        assert mock.flushes == 1
        assert sgl.get_server_info()["calls"] == 1
    finally:
        sgl.set_default_backend(None)
    with pytest.raises(TypeError, match="not a backend"):
        program.run(backend="gpt")


def test_an_argument_named_as_a_generation_parameter() -> None:
    @sgl.function
    def program(s, n):
        s += "x" * n

    assert program.run(3, backend=sgl.Mock()).text() == "xxx"
    assert program.bind(n=2).run(backend=sgl.Mock()).text() == "xx"
    assert program.run_batch([{"n": 1}], backend=sgl.Mock())[0].text() == "x"
    assert program.run(n=3, backend=sgl.Mock()).text() == "xxx"
    for run in (program.run_batch, program.plan):
        with pytest.raises(TypeError, match=r"'n' is an argument of program; give it in each item"):
            run([{"n": 1}], n=2, backend=sgl.Mock())


def test_a_parameter_of_the_program_wins() -> None:
    @sgl.function
    def vote(s, question, n=5, max_tokens=3, temperature=0.0):
        s += question + ":" + sgl.gen("votes", n=2, max_tokens=max_tokens)
        s["all"] = [n, max_tokens, temperature]

    mock = sgl.Mock({"Q:": ["a b c d", "e"]})
    state = vote.run("Q", n=3, temperature=0.7, top_p=0.5, max_new_tokens=9, backend=mock)
    assert state["all"] == [3, 3, 0.7]
    sent = mock.calls[-1].params
    assert sent is not None
    assert (sent.n, sent.max_new_tokens, sent.temperature, sent.top_p) == (2, 3, 1.0, 0.5)
    assert vote.run("Q", max_tokens=1, backend=mock)["all"] == [5, 1, 0.0]
    assert vote.run("Q", max_tokens=1, backend=mock)["votes"] == ["a", "e"]
    (state,) = vote.run_batch([{"question": "Q", "n": 4}], top_p=0.5, backend=mock)
    assert state["all"] == [4, 3, 0.0]


def test_a_parameter_of_the_program_wins_in_nested_runs() -> None:
    @sgl.function
    def inner(s, n=1):
        s += "n" * n

    @sgl.function
    def outer(s):
        s += inner.run(n=2).text() + inner(n=3).text()

    assert outer.run(backend=sgl.Mock()).text() == "nnnnn"
    assert asyncio.run(inner.arun(n=2, backend=sgl.Mock())).text() == "nn"


def test_a_parameter_of_a_compiled_program_wins() -> None:
    @sgl.function
    def program(s, n):
        s += "n is " + n

    assert program.compile().run(n="3", backend=sgl.Mock()).text() == "n is 3"


def test_nodes_are_plain_data() -> None:
    node = "a" + sgl.gen("x", temperature=0.0) + "b" + sgl.select("y", ["1", "2"])
    assert isinstance(node, Chain)
    assert [type(part) for part in node.flat()] == [ConstantText, Gen, ConstantText, Select]
    assert node == "a" + sgl.gen("x", temperature=0.0) + "b" + sgl.select("y", ["1", "2"])
    with pytest.raises(TypeError, match="cannot append int 5"):
        sgl.gen("x") + 5


def test_a_program_needs_its_state_first() -> None:
    with pytest.raises(ValueError, match="must be s"):

        @sgl.function
        def program(question, s):
            pass


def test_every_export_can_be_imported() -> None:
    for name in sgl.__all__:
        if name != "Engine":  # needs the runtime's packages
            assert getattr(sgl, name) is not None
    with pytest.raises(AttributeError, match="nope"):
        _ = sgl.nope
