"""join("concate_and_append"): what the parent goes on with, and what the runtime is sent."""

from __future__ import annotations

from typing import Any

import pytest
import sglang as sgl
from sglang.backend.base import Complete, Prompt
from sglang.backend.native.native_backend import NativeBackend
from sglang.ir.params import GenParams


def read(documents: list[str]) -> Any:
    @sgl.function
    def program(s: Any) -> None:
        s += "Read. "
        forks = s.fork(len(documents))
        forks += lambda i: documents[i]
        forks.join("concate_and_append")
        s += "Answer:" + sgl.gen("x")

    return program


def test_the_texts_follow_in_order_and_do_not_see_one_another() -> None:
    mock = sgl.Mock(["yes"])
    state = read(["one ", "", "three "]).run(backend=mock)
    assert state.text() == "Read. one three Answer:yes"
    prompt = mock.calls[-1].prompt
    assert [[prompt.text[a:b] for a, b in group] for group in prompt.parallel] == [
        ["one ", "three "]
    ]
    body = NativeBackend().request(Complete(prompt, GenParams()))
    assert body["parts"] == ["Read. ", ["one ", "three "], "Answer:"]
    assert "text" not in body


def test_it_waits_for_what_the_forks_write_without_a_thread() -> None:
    mock = sgl.Mock(lambda prompt, params: prompt.text[-1], delay=0.02)

    @sgl.function
    def program(s: Any) -> None:
        s += "x"
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sgl.gen("d")
        forks.join("concate_and_append")
        again = s.fork(2)
        again += lambda i: "ab"[i]
        again.join("concate_and_append")
        s += "!" + sgl.gen("end")

    state = program.run(backend=mock)
    assert state.text() == "x001122ab!!"
    body = NativeBackend().request(Complete(mock.calls[-1].prompt, GenParams()))
    assert body["parts"] == ["x", ["00", "11", "22"], "", ["a", "b"], "!"]


def test_whole_turns_can_be_joined() -> None:
    mock = sgl.Mock(["ok"])

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.system("Read.")
        forks = s.fork(2)
        forks += lambda i: sgl.user(f"document {i}")
        forks.join("concate_and_append")
        s += sgl.assistant(sgl.gen("x"))

    state = program.run(backend=mock)
    assert [m["content"] for m in state.messages()] == ["Read.", "document 0", "document 1", "ok"]


def test_a_fork_that_cannot_be_joined_is_an_error_with_the_line() -> None:
    @sgl.function
    def open_turn(s: Any) -> None:
        s += "x"
        forks = s.fork(2)
        forks[1] += sgl.user_begin() + "half"
        forks.join("concate_and_append")  # here
        s += "y"

    with pytest.raises(sgl.ProgramError, match=r"fork 1 ends in another turn.*test_parallel_join"):
        open_turn.run(backend=sgl.Mock())

    @sgl.function
    def nested(s: Any) -> None:
        (fork,) = s.fork(1)
        inner = fork.fork(2)
        inner += "x"
        inner.join("concate_and_append")
        fork += "y"
        fork.sync()
        s_forks = s.fork(1)
        s_forks[0] += "z"
        group = type(s_forks)([fork], s)
        group.join("concate_and_append")

    with pytest.raises(sgl.ProgramError, match="a join of its own"):
        nested.run(backend=sgl.Mock())


def test_a_failing_fork_fails_the_join() -> None:
    @sgl.function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.join("concate_and_append")
        s += "y"

    with pytest.raises(sgl.ProgramError, match="no model"):
        program.run(backend=sgl.Mock([ValueError("no model"), "a"]))


def test_a_prompt_without_groups_is_plain_text() -> None:
    assert NativeBackend().request(Complete(Prompt("a"), GenParams()))["text"] == "a"


def test_what_is_appended_to_a_fork_after_the_join_is_not_joined() -> None:
    @sgl.function
    def program(s: Any) -> None:
        forks = s.fork(2)
        forks += "a" + sgl.gen("x")
        forks.join("concate_and_append")
        forks += "later"
        s += "."

    assert program.run(backend=sgl.Mock(["1", "1"], delay=0.02)).text() == "a1a1."
