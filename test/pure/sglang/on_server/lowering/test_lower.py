"""Lowering: what each node becomes, and what only a plain run can do."""

from __future__ import annotations

import dataclasses
import json

import pytest
import sglang as sgl
from sglang.backend.base import Complete, Prompt
from sglang.backend.mock import Mock
from sglang.backend.native.native_backend import NativeBackend
from sglang.errors import ProgramError, UnsupportedHere
from sglang.ir.choices import ChoicesMethod
from sglang.ir.params import DEFAULTS, to_wire
from sglang.on_server.lowering import lower as lowering
from sglang.on_server.lowering.lower import lower


def lowered(program, backend=None, tools=(), **arguments):
    graph = program.compile().graph
    return lower(graph, arguments, backend or Mock(), DEFAULTS, tools)


def steps(program, stream=0, **options):
    found = lowered(program, **options).submission["streams"][stream]["steps"]
    return [{key: value for key, value in step.items() if key != "at"} for step in found]


def ops(program, stream=0, **options):
    return [step["op"] for step in steps(program, stream, **options)]


@pytest.mark.parametrize("template", ["qwen", "mistral", "gemma-it", "llama-2-chat", "chatml"])
def test_roles_are_rendered_as_in_a_run(template):
    @sgl.function
    def program(s):
        forks = s.fork(1)
        for fork in forks:
            fork += sgl.user("u1") + sgl.assistant("a1")
            fork += sgl.user("u2")
        s += sgl.system("sys") + sgl.user("u1") + sgl.assistant("a1")

    backend = Mock(chat_template=template)
    main, branch = (steps(program, n, backend=backend) for n in (0, 1))
    assert branch[0]["text"] == sgl.function(
        lambda s: s.__iadd__(sgl.user("u1") + sgl.assistant("a1") + sgl.user("u2")) and None
    ).run(backend=backend).text()  # fmt: skip
    assert main[-1]["text"] == program.run(backend=backend).text()


def test_one_of_has_room_for_its_texts():
    @sgl.function
    def program(s):
        s += "A:" + sgl.gen("a", one_of=["x" * 300, "y"], stop="x")

    (_, gen) = steps(program, backend=Mock(constraints=("choices",)))
    assert gen["body"]["sampling_params"]["max_new_tokens"] == 301
    assert gen["body"]["sampling_params"]["stop"] == ["<|im_end|>"]


def test_gen_has_the_body_of_a_run():
    @sgl.function
    def program(s):
        s += sgl.user("q")
        s += sgl.assistant(sgl.gen("a", max_tokens=3, stop="x", seed=1, lora_path="ad", regex="b+"))

    backend = Mock(constraints=("regex",))
    program.run(backend=backend, temperature=0.5)
    (call,) = backend.calls
    graph = program.compile().graph
    found = lower(graph, {}, backend, dataclasses.replace(DEFAULTS, temperature=0.5))
    (gen,) = [s for s in found.submission["streams"][0]["steps"] if s["op"] == "gen"]
    assert call.params is not None
    assert gen["body"] == to_wire(call.params)
    assert gen["body"]["sampling_params"]["stop"] == ["x", "<|im_end|>"]
    assert gen["body"]["sampling_params"]["sampling_seed"] == 1
    assert found.calls == {0: (gen["number"],)}


def test_adapter_stays_in_the_body():
    request = NativeBackend().request(Complete(Prompt("x", lora_path="ad"), DEFAULTS))
    assert set(request) - set(lowering.PROMPT_FIELDS) == {"lora_path", "sampling_params"}


def test_neighbouring_texts_are_one_step_but_for_ends():
    @sgl.function
    def program(s):
        s += "a"
        s += "b"
        forks = s.fork(2)
        for fork in forks:
            fork += "c"
        forks.join("concate_and_append")
        forks[0] += "later"
        s += "d"

    assert [step.get("text") for step in steps(program)] == ["ab", None, None, "d"]
    assert [step["text"] for step in steps(program, 1)] == ["c", "later"]
    join = steps(program)[2]
    assert join["ends"] == [steps(program, 1)[0]["number"], steps(program, 2)[0]["number"]]


def test_empty_branch_ends_with_its_begin():
    @sgl.function
    def program(s):
        s.fork(1).join()

    streams = lowered(program).submission["streams"]
    assert streams[1]["begin"] == {"fork": 0, "index": 0, "number": 1}
    assert streams[0]["steps"][1]["ends"] == [1]


def test_reasoning_makes_several_steps_of_one_node():
    @sgl.function
    def program(s):
        s += "q"
        s += sgl.separate_reasoning("a" + sgl.gen("x") + "b" + sgl.gen("y"), "qwen3")
        s += s["x"]
        s += s["y_reasoning_content"]

    found = steps(program)
    assert [step["op"] for step in found] == ["text", "gen", "text", "gen", "value", "value"]
    assert found[0]["text"] == "qa"
    assert [step.get("reasoning") for step in found[1:4:2]] == ["qwen3", "qwen3"]
    assert found[4]["of"] == {"step": found[1]["number"], "name": "x"}
    assert found[5]["of"] == {"step": found[3]["number"], "name": "y_reasoning_content"}
    numbers = [step["number"] for step in found]
    assert len(set(numbers)) == len(numbers)


def test_values_are_references():
    @sgl.function
    def program(s, q, unused="x"):
        s["list"] = [q, 1, True, None, 0.5, ["n"]]
        s["none"] = None
        s["own"] = {"no": "json"}
        s += sgl.gen("a")
        s["t"] = sgl.transforms.strip().of("a")
        s += q

    found = lowered(program, q="text", unused="y")
    first, none, own, gen, transform, value = found.submission["streams"][0]["steps"]
    assert first["value"] == [{"argument": "q"}, 1, True, None, 0.5, ["n"]]
    assert (none["op"], none["name"], none["value"]) == ("set", "none", None)
    assert (own["op"], own["text"]) == ("text", "")
    assert transform["of"] == {"step": gen["number"], "name": "a"}
    assert value["of"] == {"argument": "q"}
    assert found.submission["arguments"] == {"q": "text"}
    assert gen["at"] == ["test_lower.py", gen["at"][1]]
    json.dumps(found.submission)


def test_tools_say_where_they_run():
    def calc(text):
        return text

    @sgl.function
    def program(s):
        s += sgl.gen("a") + sgl.tool("n", calc, of="a", timeout=3)

    own, there = lowered(program), lowered(program, tools=["calc"])
    (client,) = [s for s in own.submission["streams"][0]["steps"] if s["op"] == "tool"]
    (server,) = [s for s in there.submission["streams"][0]["steps"] if s["op"] == "tool"]
    assert (client["where"], client.get("timeout"), own.tools) == ("client", None, {1: "n"})
    assert (server["where"], server.get("timeout"), there.tools) == ("server", 3, {})


def test_what_only_a_run_can_do_is_refused_with_the_line():
    @sgl.function
    def method(s):
        s += "q" + sgl.select("x", ["a", "b"], choices_method=ChoicesMethod("mine", max))  # type: ignore[arg-type]

    @sgl.function
    def constraint(s):
        s += sgl.gen("x", regex="a+")

    @sgl.function
    def ahead(s):
        s += sgl.gen("x", max_tokens=0, return_logprob=True)

    @sgl.function
    def beside(s):
        forks = s.fork(2)
        for fork in forks:
            fork += "c"
        forks.join("concate_and_append")
        s += sgl.select("x", ["a", "b"])

    @sgl.function
    def own_value(s):
        forks = s.fork(2)
        for fork in forks:
            fork["d"] = {"a": 1}
            fork += sgl.gen("x")
        forks.join()
        s["t"] = sgl.transforms.join().of("d")

    for program, message in [
        (method, "'mine' is the program's own"),
        (constraint, "does not enforce regex"),
        (ahead, "looks one token ahead"),
        (beside, "select cannot score after"),
        (own_value, "cannot be sent to a server"),
    ]:
        with pytest.raises(ProgramError, match=message) as caught:
            lowered(program)
        assert caught.value.filename == __file__
    with pytest.raises(UnsupportedHere):
        lowered(method)


def test_wrong_argument_is_the_error_of_a_run():
    @sgl.function
    def program(s, q):
        s += q

    with pytest.raises(ProgramError, match="cannot append int 3"):
        lowered(program, q=3)


def test_argument_may_be_an_expression():
    @sgl.function
    def program(s, q):
        s += "Q" + q

    found = steps(program, q="a" + sgl.gen("x") + "b")
    assert [step["op"] for step in found] == ["text", "gen", "text"]


def test_too_many_steps_are_refused(monkeypatch):
    monkeypatch.setattr(lowering, "MOST_STEPS", 3)

    @sgl.function
    def program(s):
        for n in range(3):
            s[f"v{n}"] = n

    with pytest.raises(ProgramError, match="more than 3 steps; submit it in several parts"):
        lowered(program)
