"""Children that hang, crash, hog or are killed: an error in time, and the next one is served."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from helpers.compiling import ODD, alive, answer, descriptors, odd_compiler
from helpers.paths import TESTS
from helpers.threads import running_threads
from helpers.waiting import until
from sglang.ir.constraint import Constraint
from sglang.srt.grammar import compile_plan, compile_worker
from sglang.srt.grammar import compile_process as process_module
from sglang.srt.grammar.compile_plan import CompilePlan
from sglang.srt.grammar.compile_worker import MAX_FRAME, PlanRequest
from sglang.srt.grammar.grammar_protocol import CompilerBusy

PYTHON = TESTS.parent / "python"
LIMIT = 1.5

pytestmark = [
    pytest.mark.slow,  # starts processes
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc"),
]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("signal 11", "ends the compile process (SIGSEGV)"),
        ("signal 9", "the compile process was lost (SIGKILL). Try again."),
        ("exit 3", "ends the compile process (status 3)"),
        (f"memory {3 << 30}", "takes too much memory"),
        ("deep", "nested too deeply"),
        ("raise x", "cannot be compiled: ValueError: x"),
        ("print", "nothing"),
        (f"large {compile_worker.MAX_PLAN + 1}", f"at most {compile_worker.MAX_PLAN}"),
    ],
)  # fmt: skip
def test_the_next_one_is_served_after(monkeypatch: Any, text: str, error: str) -> None:
    with odd_compiler(monkeypatch) as compiler:
        assert error in answer(compiler, text)
        assert answer(compiler, "good") == "good"
        assert compiler.killed == 0


def test_a_child_runs_the_parents_package(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch) as compiler:
        assert answer(compiler, "where") == compile_plan.__file__


def test_too_much_processor_time_is_the_constraints_fault(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch, seconds=LIMIT) as compiler:
        before = answer(compiler, "pid")
        assert answer(compiler, "burn") == (
            "regex takes more than 1.5 s of processor time to compile; simplify it."
        )
        assert answer(compiler, "burn").startswith("regex takes more")  # remembered
        assert (compiler.killed, compiler.failures) == (1, 2)
        assert not alive(int(before))
        until(lambda: compiler.pids)
        assert compiler.pids != [int(before)]
        assert answer(compiler, "good") == "good"


def test_lateness_is_the_machines_fault(monkeypatch: Any, tmp_path: Path) -> None:
    """The child waits for a gate and takes no processor time, as on a machine that is busy."""
    gate = tmp_path / "gate"
    with odd_compiler(monkeypatch, seconds=60, patience=LIMIT) as compiler:
        until(lambda: answer(compiler, "good") == "good")  # the child's start may be late, too
        constraint = Constraint("regex", f"gate {gate}")
        error = compiler.submit(constraint).exception(90)
        assert isinstance(error, CompilerBusy)
        assert "was not compiled within 1.5 s" in str(error)
        gate.touch()
        compiler.patience = compiler._processes[0].patience = 90
        assert compiler.submit(constraint).exception(90) is None  # the failure was not remembered


def test_a_late_start_is_the_machines_fault(monkeypatch: Any) -> None:
    """The child that starts late is kept: a later request finds it ready."""
    monkeypatch.setattr(process_module, "STARTING", 1e9)
    with odd_compiler(monkeypatch, patience=1000) as compiler:
        process = compiler._processes[0]
        process.start()
        process.patience = 1e-6
        error = compiler.submit(Constraint("regex", "a")).exception(90)
        assert isinstance(error, CompilerBusy)
        assert process.started == 1
        process.patience = 90
        assert answer(compiler, "a") == "a"
        assert process.started == 1


def test_a_child_stopped_while_it_starts_is_replaced(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch, patience=1000) as compiler:
        process = compiler._processes[0]
        process.start()
        os.kill(compiler.pids[0], signal.SIGSTOP)
        assert answer(compiler, "good") == "good"
        assert process.started == 2
        assert (compiler.killed, compiler.failures) == (0, 0)


def test_two_children_compile_at_once(monkeypatch: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with odd_compiler(monkeypatch, workers=2) as compiler:
        waiter = compiler.submit(Constraint("regex", f"gate {gate}"))
        assert answer(compiler, "good") == "good"
        assert not waiter.done()
        gate.touch()
        waiter.result(90)
        assert len(compiler.pids) == 2


def test_what_is_left_behind_is_bounded(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch) as compiler:
        before = answer(compiler, "pid")
        assert answer(compiler, f"keep {compile_worker.KEPT}").startswith("keep")
        until(lambda: not alive(int(before)))
        assert answer(compiler, "good") == "good"
        assert compiler.killed == 0


def test_killed_while_idle_the_constraint_is_tried_again(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch) as compiler:
        for text in "abc":
            answer(compiler, "warm")
            os.kill(compiler.pids[0], signal.SIGKILL)
            assert answer(compiler, text) == text
        assert (compiler.failures, compiler.killed) == (0, 0)


def test_killed_in_the_middle_it_may_be_tried_again(monkeypatch: Any, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with odd_compiler(monkeypatch) as compiler:
        waiter = compiler.submit(Constraint("regex", f"tell {told} sleep 60"))
        for times in (1, 2):  # tried again once
            until(lambda: told.exists() and len(told.read_text().split()) == times)  # noqa: B023
            os.kill(compiler.pids[0], signal.SIGKILL)
        error = waiter.exception(90)
        assert isinstance(error, CompilerBusy)
        assert "was lost (SIGKILL)" in str(error)
        assert compiler._failed.get(Constraint("regex", f"tell {told} sleep 60")) is None
        assert answer(compiler, "good") == "good"


@pytest.mark.parametrize("begun", [False, True])
def test_a_stopped_child_is_replaced(monkeypatch: Any, tmp_path: Path, begun: bool) -> None:
    told, gate = tmp_path / "told", tmp_path / "gate"
    with odd_compiler(monkeypatch, patience=1000) as compiler:
        assert answer(compiler, "a") == "a"
        pid = compiler.pids[0]
        if not begun:
            os.kill(pid, signal.SIGSTOP)
            gate.touch()
        # Longer than a pipe holds, so that writing must wait, too.
        text = f"tell {told} gate {gate}" + " " * 100_000
        waiter = compiler.submit(Constraint("json_schema", text))
        if begun:
            until(told.exists)
            os.kill(pid, signal.SIGSTOP)
            gate.touch()
        assert waiter.exception(90) is None
        assert (compiler.killed, compiler.failures) == (0, 0)
        assert not alive(pid)


def test_interrupts_are_not_the_childs(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch) as compiler:
        pid = answer(compiler, "pid")
        os.kill(int(pid), signal.SIGINT)
        assert answer(compiler, "good") == "good"
        assert str(compiler.pids[0]) == pid


def test_a_child_that_cannot_start_is_an_error(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch, planner="nowhere:make_plan") as compiler:
        assert "does not start: it ends with status 1. Try again." in answer(compiler, "a")


def test_a_child_that_could_not_start_is_tried_again(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch) as compiler:
        with monkeypatch.context() as broken:
            broken.setattr(sys, "executable", "/nonexistent/python")
            assert "No such file" in answer(compiler, "a")
        assert answer(compiler, "a") == "a"


def test_closing_gives_everything_back(monkeypatch: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with odd_compiler(monkeypatch) as compiler:
        answer(compiler, "a")  # opens for good what a first use opens
    descriptors_before, threads = descriptors(), running_threads()
    for _ in range(3):
        with odd_compiler(monkeypatch, workers=3) as compiler:
            compiler.close()  # nothing has been started yet
        with odd_compiler(monkeypatch, workers=3) as compiler:
            answer(compiler, "a")
            until(lambda: len(compiler.pids) == 3)
            running = compiler.submit(Constraint("regex", f"gate {gate}"))
            pids = compiler.pids
            compiler.close()
            compiler.close()
            assert "closed" in str(running.exception(0))
            assert "closed" in str(compiler.submit(Constraint("regex", "b")).exception(0))
            assert not any(alive(pid) for pid in pids)
            assert compiler.pids == []
            assert compiler.pending == 0
    until(lambda: descriptors() <= descriptors_before and running_threads() <= threads)


def test_several_compilers_do_not_disturb_each_other(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch) as one, odd_compiler(monkeypatch) as other:
        assert (answer(one, "a"), answer(other, "b")) == ("a", "b")
        assert one.pids != other.pids
        one.close()
        assert answer(other, "c") == "c"
        assert other.compiled == 2


# -- the end of the parent -----------------------------------------------------------------------


PARENT = """
import sys, time
from helpers.compiling import BYTES, ODD, answer
from sglang.srt.config import GrammarConfig
from sglang.ir.constraint import Constraint
from sglang.srt.grammar import grammar_compiler as module
from sglang.srt.grammar.grammar_compiler import GrammarCompiler
from helpers.compiling import build_nothing
module.build_grammar = build_nothing
module.warm_vocabulary = lambda vocabulary: None
compiler = GrammarCompiler(lambda: BYTES, GrammarConfig(), workers=1, seconds=1000,
                           patience={seconds}, planner=ODD)
answer(compiler, "a")
waiter = compiler.submit(Constraint("regex", "tell {told} {text}"))
while True:
    try:
        open({told!r})
        break
    except OSError:
        time.sleep(0.01)
print(*compiler.pids, flush=True)
{last}
"""


@contextmanager
def parent(told: Path, text: str, last: str, seconds: float) -> Iterator[Any]:
    code = PARENT.format(told=str(told), text=text, last=last, seconds=seconds)
    paths = os.pathsep.join([str(PYTHON), str(TESTS)])
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


@pytest.mark.parametrize("last", ["", "raise ValueError", "sys.exit(3)", "compiler.close()"])
def test_an_interpreter_that_ends_is_not_held_up(tmp_path: Path, last: str) -> None:
    with parent(tmp_path / "told", "sleep 1000", last, seconds=1000) as process:
        pid = int(process.stdout.readline())
        assert process.wait(60) == {"raise ValueError": 1, "sys.exit(3)": 3}.get(last, 0)
        until(lambda: not alive(pid))


@pytest.mark.parametrize("text", ["a", "sleep 1000"])
def test_a_child_outlives_no_killed_parent(tmp_path: Path, text: str) -> None:
    """Idle, it sees the end of its input; at work, that of its parent, and long before an alarm."""
    with parent(tmp_path / "told", text, "time.sleep(1000)", seconds=1000) as process:
        pid = int(process.stdout.readline())
        process.kill()
        process.wait(60)
        until(lambda: not alive(pid))


# -- the child's own protocol --------------------------------------------------------------------


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def talk(data: bytes, *flags: str) -> tuple[list[bytes], int]:
    """Frames that a child writes for this input, and its exit status."""
    done = subprocess.run(
        [sys.executable, "-m", "sglang.srt.grammar.compile_worker", "--planner", ODD, *flags],
        input=data, capture_output=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PYTHON), str(TESTS)])},
    )  # fmt: skip
    out, at = [], 0
    while at < len(done.stdout):
        size = int.from_bytes(done.stdout[at : at + 4], "little")
        out.append(done.stdout[at + 4 : at + 4 + size])
        at += 4 + size
    return out, done.returncode


def test_the_childs_frames() -> None:
    good = frame(msgspec.msgpack.encode(PlanRequest(Constraint("regex", "a"), "auto", "")))
    frames, status = talk(good + frame(b"\xc1garbage") + frame(b"") + good)
    assert status == 0
    assert frames[0::2][0] == b""
    assert [bool(one) for one in frames] == [False, *[False, True] * 4]
    plans = [msgspec.msgpack.decode(one, type=CompilePlan) for one in frames[2::2]]
    assert [made.strings for made in plans] == [("a",), (), (), ("a",)]
    assert all("cannot be compiled" in made.error for made in plans[1:3])


@pytest.mark.parametrize(
    "data",
    [b"", b"\1\0", frame(b"x" * 10)[:-1], (MAX_FRAME + 1).to_bytes(4, "little") + b"x"],
    ids=["nothing", "half a length", "half a frame", "too long"],
)  # fmt: skip
def test_the_child_ends_where_no_frame_follows(data: bytes) -> None:
    assert talk(data) == ([b""], 0)


def test_an_alarm_ends_a_child_at_work() -> None:
    data = frame(msgspec.msgpack.encode(PlanRequest(Constraint("regex", "sleep 1000"), "auto", "")))
    assert talk(data, "--patience", "0.1") == ([b"", b""], -signal.SIGALRM)


def test_the_child_imports_no_tensors() -> None:
    code = (
        "import json, sys; import sglang.srt.grammar.compile_worker as c; c.load(c.PLANNER);"
        "names = ('torch', 'transformers', 'tokenizers');"
        "print(json.dumps([name for name in names if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(PYTHON)},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == []
