"""The operator's tools: definitions, child processes, deadlines."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from sglang.srt.config import Config, ToolboxConfig
from sglang.srt.runtime.toolbox.tool_child import MAX_RESULT_CHARS
from sglang.srt.runtime.toolbox.tool_definitions import definition_of, definitions_of
from sglang.srt.runtime.toolbox.tool_processes import Toolbox, ToolboxError, ToolResult

MODULE = '''
import asyncio, json, os, signal, subprocess, sys, threading, time


def add(a: int, b: int = 2) -> int:
    """Sum of two numbers.

    Not for the model.
    """
    print("printed")
    return a + b


async def later(text: str) -> dict:
    await asyncio.sleep(0)
    return {"text": text, "read": sys.stdin.read(), "key": os.environ.get("SGLANG_API_KEY")}


def wait(path: str):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open(path, "w").write(f"{os.getpid()} {child.pid}")
    time.sleep(60)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def large(count: int):
    return "x" * count


def fail():
    raise KeyError("lost")


def process():
    return os.getpid()


def fork(path: str):
    found = os.fork()
    if not found:
        open(path, "w").write(str(os.getpid()))
    return "parent" if found else "child"


def fork_and_fail(path: str):
    if fork(path) == "child":
        raise KeyError("child")
    return "parent"


def scribble(text: str):
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2:
            try:
                os.write(fd, text.encode())
            except OSError:
                pass


def scribble_later(text: str):
    threading.Timer(0.3, scribble, [text]).start()


def leave() -> list[int]:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    return [os.getpid(), subprocess.Popen(command).pid]


def surrogate():
    return "a\\ud800b"


def surrogates():
    return {"a\\udfff": 1}


def raise_surrogate():
    raise ValueError("a\\ud800b")


def raise_long():
    raise ValueError("x" * 200_000)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raise_mute():
    raise Mute


def infinite():
    return [float("inf")]


def no_json():
    return {1, 2}


TOOLS = [add, later, wait, die, large, fail, process, fork, fork_and_fail, scribble, scribble_later,
         leave, surrogate, surrogates, raise_surrogate, raise_long, raise_mute, infinite, no_json]
FEW = [add]
'''


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "operators_tools.py"
    path.write_text(MODULE)
    return str(path)


Ran = list[tuple[str, float, bool]]


def with_toolbox(
    spec: str, use: Callable[[Toolbox], Awaitable[Any]], ran: Ran | None = None, **options: Any
) -> Any:
    """Return what ``use`` does with a toolbox that has started."""

    async def main() -> Any:
        def note(*call: Any) -> None:
            if ran is not None:
                ran.append(call)

        toolbox = Toolbox(ToolboxConfig(toolbox=spec, **options), note)
        try:
            await toolbox.start()
            return await use(toolbox)
        finally:
            await toolbox.close()

    return asyncio.run(main())


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ended(*pids: int) -> bool:
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, pids))


def test_calls_give_texts_or_say_what_went_wrong(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_API_KEY", "secret")

    async def use(toolbox: Toolbox) -> None:
        assert toolbox.tools["add"]["function"]["description"] == "Sum of two numbers."
        call = toolbox.call
        assert await call("add", '{"a": 40}') == ToolResult("42")
        later = json.loads((await call("later", '{"text": "é"}')).text)
        assert later == {"text": "é", "read": "", "key": None}
        for name, arguments, said in (
            ("add", '{"a": 1, "c": 2}', "the arguments do not fit: got an unexpected"),
            ("add", '{"a": ', "the arguments do not fit: "),
            ("add", "[1]", "the arguments are [1]; they must be a JSON object"),
            ("fail", "", "KeyError: 'lost'"),
            ("large", f'{{"count": {MAX_RESULT_CHARS + 1}}}', "the result has 65537 characters"),
        ):
            text, failed = await call(name, arguments)
            assert failed
            assert text.startswith(f"Error: {said}")
        assert len((await call("large", f'{{"count": {MAX_RESULT_CHARS}}}')).text) == 1 << 16

    ran: Ran = []
    with_toolbox(module, use, ran)
    assert [(name, failed) for name, _, failed in ran] == [
        ("add", False), ("later", False), ("add", True), ("add", True), ("add", True),
        ("fail", True), ("large", True), ("large", False),
    ]  # fmt: skip


def test_a_late_call_ends_with_all_its_processes(module: str, tmp_path: Path) -> None:
    async def use(toolbox: Toolbox) -> ToolResult:
        result = await toolbox.call("wait", json.dumps({"path": str(tmp_path / "pids")}))
        assert (await toolbox.call("add", '{"a": 1}')).text == "3", "another process takes over"
        return result

    # A call that comes first starts the process too, which a busy machine takes a while for.
    result = with_toolbox(module, use, toolbox_timeout=4.0)
    assert result == ToolResult("Error: wait took more than 4 s and was ended.", True)
    pids = (tmp_path / "pids").read_text().split()
    assert ended(*map(int, pids))


def test_the_start_of_a_process_counts_for_its_call(
    module: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow = tmp_path / "slow"
    Path(module).write_text(
        f"import os, pathlib, time\nslow = pathlib.Path({str(slow)!r})\nif slow.exists():\n"
        f"    slow.write_text(str(os.getpid()))\n    time.sleep(5)\n{MODULE}"
    )

    async def use(toolbox: Toolbox) -> ToolResult:
        await toolbox.call("die", "")
        slow.touch()
        return await toolbox.call("add", '{"a": 1}')

    result = with_toolbox(module, use, toolbox_timeout=2.0)
    assert result == ToolResult("Error: the process of add was not ready in 2 s.", True)
    assert "tool add: no process was ready in --toolbox-timeout" in caplog.text
    pid = slow.read_text()
    assert not pid or ended(int(pid)), "its process is ended too"


def test_a_start_later_than_a_calls_deadline_is_told(
    module: str, caplog: pytest.LogCaptureFixture
) -> None:
    Path(module).write_text(f"import time\ntime.sleep(0.5)\n{MODULE}")

    async def use(toolbox: Toolbox) -> None:
        assert "add" in toolbox.tools

    with_toolbox(module, use, toolbox_timeout=60.0)
    assert "raise --toolbox-timeout" not in caplog.text
    with_toolbox(module, use, toolbox_timeout=0.5)
    assert "later than the 0.5 s of --toolbox-timeout" in caplog.text
    assert "raise --toolbox-timeout" in caplog.text


def test_a_process_that_dies_is_replaced(module: str) -> None:
    async def use(toolbox: Toolbox) -> None:
        first = (await toolbox.call("process", "")).text
        assert (await toolbox.call("process", "")).text == first
        assert await toolbox.call("die", "") == ToolResult(
            "Error: the process of die has ended without a result.", True
        )
        second = (await toolbox.call("process", "")).text
        assert second != first
        os.kill(int(second), 9)
        assert ended(int(second))
        await asyncio.sleep(0.1)
        third = await toolbox.call("process", "")
        assert not third.failed
        assert third.text != second

    with_toolbox(module, use)


def test_a_cancelled_call_ends_its_process(module: str, tmp_path: Path) -> None:
    path = tmp_path / "pids"

    async def use(toolbox: Toolbox) -> None:
        task = asyncio.create_task(toolbox.call("wait", json.dumps({"path": str(path)})))
        while not path.exists() or len(path.read_text().split()) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(ended, *map(int, path.read_text().split()))
        assert not (await toolbox.call("add", '{"a": 1}')).failed

    ran: Ran = []
    with_toolbox(module, use, ran)
    assert [failed for _, _, failed in ran] == [True, False]


def test_a_call_cancelled_as_its_turn_comes_runs_no_tool() -> None:
    async def main(steps: int) -> None:
        toolbox = Toolbox(ToolboxConfig(toolbox="none", toolbox_processes=1))
        forever = asyncio.Event()

        async def in_child(name: str, arguments: str) -> ToolResult:
            await forever.wait()
            raise AssertionError

        toolbox._in_child = in_child  # type: ignore[method-assign]
        await toolbox._slots.acquire()
        call = asyncio.ensure_future(toolbox.call("a", "{}"))
        for _ in range(4):
            await asyncio.sleep(0)
        toolbox._slots.release()
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call}, timeout=2)
        assert call.cancelled(), f"the cancel {steps} steps behind the release was dropped"
        await asyncio.sleep(0)
        await asyncio.wait_for(toolbox._slots.acquire(), 2)

    for steps in range(8):
        asyncio.run(main(steps))


def test_the_number_of_processes_is_bounded(module: str) -> None:
    async def use(toolbox: Toolbox) -> set[str]:
        found = await asyncio.gather(*(toolbox.call("process", "") for _ in range(12)))
        return {result.text for result in found}

    assert len(with_toolbox(module, use, toolbox_processes=2)) <= 2


def test_a_call_that_finds_no_process_says_so(module: str, tmp_path: Path) -> None:
    async def use(toolbox: Toolbox) -> list[ToolResult]:
        arguments = json.dumps({"path": str(tmp_path / "pids")})
        waiting = [toolbox.call("wait", arguments) for _ in range(2)]
        return list(await asyncio.gather(*waiting))

    results = with_toolbox(module, use, toolbox_timeout=1.0, toolbox_processes=1)
    assert any("busy" in result.text or "took more" in result.text for result in results)
    assert all(result.failed for result in results)


@pytest.mark.parametrize("tool", ["fork", "fork_and_fail"])
def test_a_fork_of_a_tool_gives_no_second_answer(module: str, tmp_path: Path, tool: str) -> None:
    path = tmp_path / "pid"

    async def use(toolbox: Toolbox) -> None:
        before = (await toolbox.call("process", "")).text
        result = await toolbox.call(tool, json.dumps({"path": str(path)}))
        assert result == ToolResult("parent")
        while not (path.exists() and path.read_text()):
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(ended, int(path.read_text()))
        assert await toolbox.call("add", '{"a": 1}') == ToolResult("3")
        assert (await toolbox.call("process", "")).text == before, "its process is used again"

    with_toolbox(module, use)


@pytest.mark.parametrize(
    "text",
    [
        '{"text": "forged"}\n', '{"number": "1", "text": "forged"}\n', "{}\n", "x", "\n",
        "[" * 100_000 + "\n",
    ],
)  # fmt: skip
def test_a_line_that_no_call_has_is_never_a_result(module: str, text: str) -> None:
    async def use(toolbox: Toolbox) -> None:
        before = (await toolbox.call("process", "")).text
        assert await toolbox.call("scribble", json.dumps({"text": text})) == ToolResult(
            "Error: the process of scribble has ended without a result.", True
        )
        assert await toolbox.call("add", '{"a": 1}') == ToolResult("3")
        assert (await toolbox.call("process", "")).text != before

    with_toolbox(module, use, toolbox_processes=1)


def test_an_idle_process_that_writes_is_ended(module: str) -> None:
    async def use(toolbox: Toolbox) -> None:
        first = int((await toolbox.call("process", "")).text)
        text = json.dumps({"text": '{"text": "forged"}\n'})
        assert await toolbox.call("scribble_later", text) == ToolResult("")
        assert await asyncio.to_thread(ended, first)
        assert await toolbox.call("add", '{"a": 1}') == ToolResult("3")

    with_toolbox(module, use)


def test_an_idle_process_that_wrote_just_now_gets_no_call(module: str) -> None:
    async def use(toolbox: Toolbox) -> None:
        text = json.dumps({"text": '{"text": "forged"}\n'})
        await toolbox.call("scribble_later", text)
        time.sleep(0.6)  # the event loop sees nothing meanwhile
        assert await toolbox.call("add", '{"a": 1}') == ToolResult("3")

    with_toolbox(module, use)


def test_an_idle_process_that_dies_ends_its_group(module: str) -> None:
    async def use(toolbox: Toolbox) -> None:
        first, left = json.loads((await toolbox.call("leave", "")).text)
        os.kill(first, 9)
        assert await asyncio.to_thread(ended, first, left)
        assert await toolbox.call("add", '{"a": 1}') == ToolResult("3")

    with_toolbox(module, use)


def test_a_group_whose_process_was_reaped_is_left(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = []

    async def use(toolbox: Toolbox) -> None:
        first = int((await toolbox.call("process", "")).text)
        os.kill(first, 9)
        await asyncio.to_thread(ended, first)
        await asyncio.sleep(0.2)
        monkeypatch.setattr(os, "killpg", lambda *call: killed.append(call))

    with_toolbox(module, use)
    assert killed == []


def test_results_that_are_no_text_or_json_are_told(module: str) -> None:
    async def use(toolbox: Toolbox) -> list[ToolResult]:
        names = ("surrogate", "surrogates", "raise_surrogate", "raise_long", "raise_mute",
                 "infinite", "no_json")  # fmt: skip
        found = [await toolbox.call(name, "") for name in names]
        return [*found, await toolbox.call("add", '{"a": 1, "\\ud800": 1}')]

    text, data, raised, long, mute, infinite, no_json, unfit = with_toolbox(module, use)
    assert text == ToolResult("a\ufffdb")
    assert data == ToolResult('{"a\ufffd": 1}')
    assert raised == ToolResult("Error: ValueError: a\ufffdb", True)
    assert len(long.text) == len("Error: ") + MAX_RESULT_CHARS
    assert mute == ToolResult("Error: Mute", True)
    assert infinite.text.startswith("Error: the result cannot become JSON: ValueError: Out of ")
    assert no_json.text.startswith("Error: the result cannot become JSON: TypeError: ")
    assert unfit.text.startswith("Error: the arguments do not fit: got an unexpected")


def test_no_process_is_left(module: str) -> None:
    async def use(toolbox: Toolbox) -> int:
        return int((await toolbox.call("process", "")).text)

    assert ended(with_toolbox(module, use))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{module}:MISSING", "AttributeError: "),
        ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("{folder}/missing.py", "FileNotFoundError: "),
        ("os:environ", "ValueError: environ of os is "),
        ("{module}:add", "ValueError: add of "),
    ],
)
def test_a_module_without_tools_is_refused(module: str, spec: str, said: str) -> None:
    async def use(toolbox: Toolbox) -> None:
        raise AssertionError("the toolbox has started")

    spec = spec.format(module=module, folder=Path(module).parent)
    with pytest.raises(ToolboxError) as caught:
        with_toolbox(spec, use)
    assert str(caught.value).startswith(f"--toolbox {spec}: {said}")


def test_a_list_of_the_module_may_be_named(module: str) -> None:
    async def use(toolbox: Toolbox) -> list[str]:
        return list(toolbox.tools)

    assert with_toolbox(f"{module}:FEW", use) == ["add"]


def test_definitions_follow_from_signatures() -> None:
    def search(
        query: Annotated[str, "what to look for"],
        kinds: list[Literal["page", "book"]],
        most: int | None = None,
        where: dict[str, float] = {},  # noqa: B006
        *,
        exact: bool = False,
        anything=print,
    ) -> str:
        """Search the
        library."""
        return ""

    assert definition_of(search) == {
        "type": "function",
        "function": {
            "name": "search",
            "strict": True,
            "description": "Search the library.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "what to look for"},
                    "kinds": {"type": "array", "items": {"enum": ["page", "book"]}},
                    "most": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                    "where": {
                        "type": "object",
                        "additionalProperties": {"type": "number"},
                        "default": {},
                    },
                    "exact": {"type": "boolean", "default": False},
                    "anything": {},
                },
                "required": ["query", "kinds"],
                "additionalProperties": False,
            },
        },
    }


def test_functions_that_no_call_fits_are_refused() -> None:
    def positional(a: int, /) -> None: ...
    def many(*a: int) -> None: ...
    def odd(a: bytes) -> None: ...
    def yields():
        yield 1

    def add(a: int) -> None: ...

    for functions, said in (
        ([positional], "parameter a of positional cannot be given by name"),
        ([many], "parameter a of many cannot be given by name"),
        ([odd], "parameter a of odd is annotated <class 'bytes'>"),
        ([yields], "yields yields"),
        ([lambda: 1], "is no function with a name"),
        ([3], "3 is no function with a name"),
        ([add, add], "TOOLS has two functions named add"),
        ([], r"TOOLS is \[\]; it must be a list"),
    ):
        with pytest.raises(ValueError, match=said):
            definitions_of(functions, "TOOLS")


def test_settings_out_of_range_are_refused() -> None:
    for settings, said in (
        ({"toolbox_timeout": 0.0}, "above 0, at most 86400"),
        ({"toolbox_timeout": float("nan")}, "above 0, at most 86400"),
        ({"toolbox_timeout": 86401.0}, "above 0, at most 86400"),
        ({"toolbox_processes": 0}, "from 1 to 256"),
        ({"toolbox_max_calls": 129}, "from 1 to 128"),
    ):
        with pytest.raises(ValueError, match=rf"--toolbox-\S+ is \S+; it must be {said}"):
            Config.of(**settings)
