"""A failure is raised where its result is read, with the program's own line, and leaves nothing."""

from __future__ import annotations

import inspect
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sglang as sgl
from sglang.errors import UnknownVariable


def line_of(function: object, mark: str) -> int:
    source, start = inspect.getsourcelines(function.func)  # type: ignore[attr-defined]
    return start + next(i for i, line in enumerate(source) if mark in line)


def at(program: object, mark: str) -> str:
    """A pattern of the end of an error's message."""
    return re.escape(f"at {__file__}:{line_of(program, mark)}") + "$"


def worker_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("sglang")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = len(worker_threads())
    yield
    deadline = time.monotonic() + 60
    while len(worker_threads()) > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(worker_threads()) <= before


@sgl.function
def failing(s, read=True):
    s += "one" + sgl.gen("a")
    s += "two"
    s += sgl.gen("b")  # fails
    s += sgl.gen("c")
    if read:
        s["c"]
    return "reached"


def script() -> list:
    return ["fine", OSError("cable cut"), "never"]


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("use_thread", [True, False])
def test_the_real_error_with_the_programs_line(read: bool, use_thread: bool) -> None:
    mock = sgl.Mock(script())
    with pytest.raises(sgl.ProgramError, match=at(failing, "# fails")) as caught:
        failing.run(read=read, backend=mock, use_thread=use_thread)
    assert "OSError: cable cut" in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)
    assert not isinstance(caught.value, KeyError)
    assert caught.value.line == line_of(failing, "# fails")
    assert caught.value.filename == __file__
    assert len(mock.calls) == 2  # no call after the failure was made


def test_a_backends_own_error_keeps_its_words() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("a")  # refused

    refusal = sgl.BackendError("the runtime answered 400: regex is not available", 400)
    with pytest.raises(sgl.ProgramError, match="regex is not available " + at(program, "refused")):
        program.run(backend=sgl.Mock([refusal]))


def test_what_was_complete_stays_readable() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("a")
        s += sgl.gen("b")  # fails
        assert s.error() is not None
        assert s["a"] == "fine"
        s += sgl.gen("a")
        for read in (
            lambda: s["a"],
            lambda: s["b"],
            s.text,
            s.messages,
            lambda: list(s.text_iter()),
        ):
            with pytest.raises(sgl.ProgramError, match=at(program, "# fails")):
                read()
        s.sync()

    # A failure that the program has seen and lived with is not raised again.
    state = program.run(backend=sgl.Mock(["fine", ValueError("no")]))
    assert isinstance(state.error(), sgl.ProgramError)


def test_lines_of_roles_calls_scopes_and_group_appends() -> None:
    @sgl.function
    def role(s):
        s.assistant(sgl.gen("a"))  # here

    @sgl.function
    def block(s):
        with s.user(), s.assistant():  # here
            pass

    @sgl.function
    def group(s):
        forks = s.fork(2)
        forks += sgl.gen("a")  # here
        forks.join()

    for program, backend in [
        (role, sgl.Mock([ValueError("no")])),
        (block, sgl.Mock()),
        (group, sgl.Mock([ValueError("no")] * 2)),
    ]:
        with pytest.raises(sgl.ProgramError, match=at(program, "# here")):
            program.run(backend=backend)


def test_an_unknown_variable_is_named() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("answer")
        return s["anwser"]

    with pytest.raises(UnknownVariable, match=r"no variable 'anwser'.*\['answer'\]"):
        program.run(backend=sgl.Mock(["x"]))


def test_a_programs_exception_is_unchanged_and_ends_the_rest() -> None:
    mock = sgl.Mock(lambda prompt, params: "x", delay=0.02)

    @sgl.function
    def program(s):
        forks = s.fork(3)
        for _ in range(1000):
            s += sgl.gen("a")
            forks += sgl.gen("b")
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        program.run(backend=mock)
    asked = len(mock.calls)
    time.sleep(0.1)
    assert len(mock.calls) <= asked + 4


def test_a_join_raises_the_forks_error() -> None:
    @sgl.function
    def program(s):
        forks = s.fork(8)
        for i, fork in enumerate(forks):
            fork += f"{i}:" + sgl.gen("x")  # fork
        forks.join()

    def script(prompt, params):
        return ValueError("five") if prompt.text == "5:" else "x"

    with pytest.raises(sgl.ProgramError, match="five " + at(program, "# fork")):
        program.run(backend=sgl.Mock(script))


def test_a_forks_error_that_nobody_read_ends_the_run() -> None:
    @sgl.function
    def program(s, handle):
        fork = s.fork(1)[0]
        fork += sgl.gen("x")  # lost
        if handle:
            with pytest.raises(sgl.ProgramError):
                fork["x"]

    with pytest.raises(sgl.ProgramError, match=at(program, "# lost")):
        program.run(False, backend=sgl.Mock([ValueError("no")]))
    program.run(True, backend=sgl.Mock([ValueError("no")]))


def test_forks_of_a_failed_state_fail_with_its_error() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("a")  # parent
        forks = s.fork(3)
        grandchildren = forks[1].fork(2)
        grandchildren += sgl.gen("b")
        with pytest.raises(sgl.ProgramError, match=at(program, "# parent")):
            grandchildren[0]["b"]
        late = s.fork(2)
        late += "x"
        late.join()

    with pytest.raises(sgl.ProgramError, match=at(program, "# parent")):
        program.run(backend=sgl.Mock([ValueError("no")], delay=0.02))


@pytest.mark.parametrize(
    ("append", "complaint"),
    [
        (lambda s: s.__iadd__(None), "write them without"),
        (lambda s: s.__iadd__(5), "cannot append int 5"),
        (lambda s: s.fork(0), "at least 1"),
        (lambda s: s.fork(2, [1, 2]), "position_ids_offset"),
        (lambda s: s.fork(2).join("both"), "gather_variable"),
        (lambda s: s.fork(2).__iadd__(["a"]), "list of 1 was appended to 2"),
        (lambda s: s.fork(2).__setitem__(0, s), "cannot be replaced"),
    ],
)
def test_misuse_is_refused_at_once(append, complaint: str) -> None:
    @sgl.function
    def program(s):
        append(s)

    with pytest.raises((TypeError, ValueError, sgl.Unsupported), match=complaint):
        program.run(backend=sgl.Mock())


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        (sgl.user_begin() + sgl.assistant_begin(), "begins inside role 'user'"),
        (sgl.user_end(), "ends, but the open role is None"),
    ],
)
def test_roles_out_of_order(nodes, complaint: str) -> None:
    @sgl.function
    def program(s):
        s += nodes

    with pytest.raises(sgl.ProgramError, match=complaint):
        program.run(backend=sgl.Mock())


def test_a_role_the_template_lacks() -> None:
    from sglang.ir.chat_template import ChatTemplate

    mock = sgl.Mock()
    mock.chat_template = ChatTemplate("plain", {"user": ("U:", "\n")})

    @sgl.function
    def program(s):
        s += sgl.system("x")

    with pytest.raises(sgl.ProgramError, match="template 'plain' has no role 'system'"):
        program.run(backend=mock)


def test_a_backend_names_what_it_lacks() -> None:
    from sglang.backend.base import Backend

    @sgl.function
    def program(s):
        s += sgl.select("x", ["a", "b"])

    with pytest.raises(sgl.ProgramError, match="has no select; use gen"):
        program.run(backend=Backend())


def with_argument(name: str) -> sgl.SglFunction:
    names: dict[str, Callable[..., None]] = {}
    exec(f"def program(s, {name}): s += str({name})", names)
    return sgl.function(names["program"])


@pytest.mark.parametrize("name", ["stream", "backend"])
def test_an_argument_named_as_an_option_is_told_apart(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = with_argument(name)
    both: dict[str, Any] = {"backend": sgl.Mock(), name: "x"}
    with pytest.raises(TypeError, match=f"'{name}' is an argument of program and an option of run"):
        program.run(**both)
    monkeypatch.setattr(sgl.global_config, "default_backend", sgl.Mock())
    assert program.run("x").text() == program.bind(**{name: "x"}).run().text() == "x"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (lambda s: s.fork("a"), "fork size is 'a'; give a whole number"),
        (lambda s: s.fork(2.0), "fork size is 2.0; give a whole number"),
        (lambda s: sgl.RuntimeEndpoint(31999), "the runtime is 31999; give its URL"),  # type: ignore[arg-type]
        (lambda s: sgl.function(lambda s: None).run_batch(None), "batch are None; give a list of"),  # type: ignore[call-overload]
        (lambda s: sgl.image(""), "the image is ''; give a path"),
        (lambda s: sgl.function(lambda self, s: None), "a method is no program: write a function"),
    ],
)
def test_what_is_of_the_wrong_kind_is_named(wrong: Callable[..., None], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        sgl.function(lambda s: wrong(s)).run(backend=sgl.Mock())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("regex", "a+"),
        ("dtype", int),
        ("json_schema", {"type": "object"}),
        ("schema", int),
        ("ebnf", 'root ::= "a"'),
        ("structural_tag", {"structures": [], "triggers": []}),
        ("one_of", ["a", "b"]),
        ("n", 2),
        ("tools", []),
        ("tool_choice", "auto"),
        ("max_tool_rounds", 2),
        ("tool_timeout", 1.0),
    ],
)
def test_choices_stand_beside_no_constraint_n_or_tools(name: str, value: object) -> None:
    beside: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} is .*, beside choices.*one_of="):
        sgl.gen("x", choices=["a", "b"], **beside)


def test_choices_take_what_changes_no_score() -> None:
    node = sgl.gen("x", 8, choices=["a", "b"], n=1, stop="\n", temperature=0, seed=3)
    assert node == sgl.select("x", ["a", "b"])
