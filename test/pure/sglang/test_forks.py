"""Forks: what they share, in which order, how many, and what is left of them."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from typing import Any

import pytest
import sglang as sgl
from helpers.counted import reaches
from sglang.backend.global_settings import global_config
from sglang.backend.worker_threads import WORKERS, Workers
from sglang.errors import Cancelled


def test_only_what_is_read_is_asked_for() -> None:
    """A runtime shares what requests begin with as it computes them: it needs no word ahead."""
    mock = sgl.Mock(lambda prompt, params: prompt.text[-1])

    @sgl.function
    def program(s):
        s += "Shared. "
        forks = s.fork(3)
        forks += lambda i: f"branch {i}" + sgl.gen("x")
        forks.join()
        idle = s.fork(2)
        idle.join()

    state = program.run(backend=mock)
    assert state["x"] == ["0", "1", "2"]
    assert [call.kind for call in mock.calls] == ["gen"] * 3
    assert all(call.prompt.text.startswith("Shared. branch") for call in mock.calls)


def test_join_gathers_what_the_forks_have_made_in_order() -> None:
    mock = sgl.Mock({"0:": "zero", "1:": "one", "2:": "two"})

    @sgl.function
    def program(s):
        s["old"] = "kept"
        with s.fork(3) as forks:
            for i in range(3):
                forks[i] += f"{i}:" + sgl.gen("x")
            forks[1]["only"] = 7
            forks[0]["old"] = "changed"
        return [fork["x"] for fork in forks]

    state = program.run(backend=mock)
    assert state["x"] == state.ret_value == ["zero", "one", "two"]
    assert state["only"] == [None, 7, None]
    assert state["old"] == ["changed", "kept", "kept"]


def test_each_round_of_a_loop_joins_its_own_variables() -> None:
    @sgl.function
    def program(s):
        s += "go"
        rounds = []
        for _ in range(3):
            forks = s.fork(2)
            forks += sgl.gen("score")
            forks.join()
            rounds.append(s["score"])
        return rounds

    drawn = iter("aabbcc")
    expected = [["a", "a"], ["b", "b"], ["c", "c"]]
    mock = sgl.Mock(lambda prompt, params: next(drawn))
    assert program.run(backend=mock).ret_value == expected
    drawn = iter("aabbcc")
    assert program.compile().run(backend=mock).ret_value == expected


def test_forking_does_not_wait_for_what_was_appended() -> None:
    release = threading.Event()

    def script(prompt, params):
        assert release.wait(60)
        return "B"

    @sgl.function
    def program(s):
        s += "A" + sgl.gen("b")
        fork = s.fork(1)[0]
        fork += "C" + sgl.gen("d")
        assert "b" in fork
        assert "d" in fork
        assert "e" not in fork
        release.set()
        return fork["b"], fork["d"], fork.text()

    assert program.run(backend=sgl.Mock(script)).ret_value == ("B", "B", "ABCB")


def test_a_copy_goes_its_own_way() -> None:
    mock = sgl.Mock(["one", "two"])

    @sgl.function
    def program(s):
        s += "base "
        with s.copy() as other:
            other += sgl.gen("x")
            assert other.text() == "base one"
        assert "x" not in s
        s += sgl.gen("x")

    assert program.run(backend=mock).text() == "base two"


def test_a_fork_inside_a_role_and_a_scope_continues_both() -> None:
    mock = sgl.Mock({"a": "1", "b": "2"})

    @sgl.function
    def program(s):
        s += sgl.user_begin() + "pick "
        forks = s.fork(2)
        forks += ["a", "b"]
        forks += sgl.user_end()
        forks += sgl.assistant(sgl.gen("x"))
        return [fork.messages()[0]["content"] for fork in forks]

    assert program.run(backend=mock).ret_value == ["pick a", "pick b"]


def test_nested_forks() -> None:
    @sgl.function
    def program(s):
        s += "r"
        outer = s.fork(4)
        inner = []
        for i, branch in enumerate(outer):
            branch += f".{i}"
            group = branch.fork(4)
            group += lambda j: f".{j}=" + sgl.gen("leaf")
            inner.append(group)
        for group in inner:
            group.join()
        outer.join()
        return s["leaf"]

    state = program.run(backend=sgl.Mock(lambda prompt, params: prompt.text))
    assert state.ret_value == [[f"r.{i}.{j}=" for j in range(4)] for i in range(4)]


def test_hundreds_of_branches_wait_together() -> None:
    """All must be in the backend at once: none may wait for a thread that another one holds."""
    size = 150
    everybody = threading.Barrier(size)

    def script(prompt, params):
        everybody.wait(60)
        return "x"

    @sgl.function
    def program(s):
        s += "go"
        forks = s.fork(size)
        forks += lambda i: str(i) + sgl.gen("x")
        forks.join()

    assert program.run(backend=sgl.Mock(script))["x"] == ["x"] * size


def test_more_branches_than_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_config, "max_threads", 4)
    most = 0

    def script(prompt, params):
        nonlocal most
        most = max(most, WORKERS.count)
        return prompt.text[-3:]

    @sgl.function
    def program(s):
        s += "go"
        forks = s.fork(300)
        forks += lambda i: f"{i:03}" + sgl.gen("x")
        deeper = [fork.fork(2) for fork in forks]
        for group in deeper:
            group += sgl.gen("y")
            group.join()
        forks.join()

    assert reaches(lambda: not WORKERS.count)  # threads of earlier programs end
    state = program.run(backend=sgl.Mock(script))
    assert state["x"] == [f"{i:03}" for i in range(300)]
    assert most <= 4


@pytest.mark.slow
def test_a_chain_of_forks_that_all_wait_for_the_first() -> None:
    """Depth costs no recursion and no thread."""

    @sgl.function
    def program(s):
        s += sgl.gen("a")
        tip = s
        for _ in range(1500):
            tip = tip.fork(1)[0]
            tip += "."
        return tip.text()

    text = program.run(backend=sgl.Mock(["x"], delay=0.2)).ret_value
    assert text == "x" + "." * 1500
    with pytest.raises(sgl.ProgramError, match="no"):
        program.run(backend=sgl.Mock([ValueError("no")], delay=0.2))


@pytest.mark.slow
def test_forks_that_are_dropped_are_forgotten() -> None:
    @sgl.function
    def program(s):
        for _ in range(50):
            forks = s.fork(20)
            forks += sgl.gen("x")
            forks.join()
            with s.copy() as other:
                other += "x"
        del forks, other
        gc.collect()
        return len(s._executor.run.members())

    assert program.run(backend=sgl.Mock(lambda prompt, params: "x")).ret_value == 1


@pytest.mark.slow
def test_the_failure_of_a_dropped_fork_is_not_forgotten() -> None:
    @sgl.function
    def program(s):
        s.fork(1)[0].__iadd__(sgl.gen("x"))
        gc.collect()

    with pytest.raises(sgl.ProgramError, match="lost"):
        program.run(backend=sgl.Mock([ValueError("lost")], delay=0.02))


def test_usage_counts_forks() -> None:
    @sgl.function
    def program(s):
        s += "one two three"
        forks = s.fork(3)
        forks += sgl.gen("x")
        forks.join()

    usage = program.run(backend=sgl.Mock(lambda prompt, params: "a b")).usage
    assert (usage.calls, usage.completion_tokens) == (3, 6)
    assert usage.prompt_tokens == 9
    assert usage.cached_tokens == 6


def test_idle_workers_end_and_are_reused() -> None:
    workers = Workers(idle=0.1)
    done = threading.Semaphore(0)
    for _ in range(20):
        workers.submit(done.release)
        assert done.acquire(timeout=60)
        assert reaches(lambda: workers._idle == workers.count)
        assert workers.count <= 1
    assert reaches(lambda: workers.count == 0)


def test_when_no_thread_can_be_had_the_caller_does_the_work(monkeypatch) -> None:
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ran = []
    Workers().submit(lambda: ran.append(threading.get_ident()))
    assert ran == [threading.get_ident()]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_state_is_not_copied_by_other_means(copied: Any) -> None:
    """copy.copy gave a second name of one state: what one appended, both had."""

    @sgl.function
    def program(s):
        s += "text"
        copied(s)

    with pytest.raises(TypeError, match=r"s\.fork\(\) go on from it"):
        program.run(backend=sgl.Mock([]))


def test_what_failed_is_told_before_what_that_has_cancelled() -> None:
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks[0] += "first" + sgl.gen("x")
        forks[0].sync()
        forks[1] += "second" + sgl.gen("x")

    script = {"first": Cancelled("nothing needs it any more"), "second": OSError("gone")}
    with pytest.raises(sgl.ProgramError, match="OSError: gone"):
        program.run(backend=sgl.Mock(script))
