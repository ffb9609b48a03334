"""sglang chaos: the plan is its seed's, every end is counted, and a bundle does the work again."""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.backend.mock import Mock
from sglang.errors import BackendError, ProgramError, ServerFailed
from sglang.srt.cli import main
from sglang.terminal import run_command
from sglang.terminal.chaos import chaos_run, chaos_work, crash_bundle, replay_command
from sglang.terminal.chaos.chaos_command import report
from sglang.terminal.chaos.chaos_run import FAILED, NEVER, OTHER, RIGHT, ChaosRun, Tally
from sglang.terminal.chaos.chaos_stage import filler_length
from sglang.terminal.chaos.chaos_work import ProgramWork, RequestWork, read_requests, work_of
from sglang.terminal.chaos.crash_bundle import FAILURE, CrashBundle, load_bundle
from sglang.terminal.chaos.cut_proxy import CutProxy
from sglang.terminal.chaos.fault_plan import FAULTS, MIN_SECONDS, PlannedFault, fault_plan

PROGRAM = """
import sglang as sgl

@sgl.function
def f(s, word: str):
    s += word + ": " + sgl.gen("x")
"""

# The plan


@given(
    st.integers(),
    st.floats(0.1, 500),
    st.floats(0.5, 50),
    st.lists(st.sampled_from(list(FAULTS)), min_size=1, max_size=4, unique=True),
)
def test_plan_is_ordered_and_fair(seed: int, seconds: float, every: float, kinds: Any) -> None:
    plan = fault_plan(seed, seconds, every, kinds)
    assert plan == fault_plan(seed, seconds, every, kinds)
    times = [0.0, *(fault.at for fault in plan)]
    assert all(b - a >= MIN_SECONDS - 0.002 for a, b in pairwise(times))
    assert all(fault.at <= seconds for fault in plan)
    counts = [sum(fault.kind == kind for fault in plan) for kind in kinds]
    assert max(counts) - min(counts) <= 1
    assert all((fault.seconds > 0) == (fault.kind == "squeeze") for fault in plan)
    assert all(2 <= fault.requests <= 8 for fault in plan)


def test_plans_of_two_seeds_differ() -> None:
    assert fault_plan(1, 100, 5, list(FAULTS)) != fault_plan(2, 100, 5, list(FAULTS))


@pytest.mark.parametrize(
    ("seconds", "every", "kinds", "message"),
    [
        (0, 5, ["cut"], "more than 0"),
        (1e9, 5, ["cut"], "at most a week"),
        (float("nan"), 5, ["cut"], "more than 0"),
        (9, 0.1, ["cut"], "at least 0.5"),
        (9, 5, ["burn"], "'burn' is unknown"),
        (9, 5, [], "no fault is left"),
    ],
)
def test_plan_refuses(seconds: float, every: float, kinds: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fault_plan(0, seconds, every, kinds)


# A run


class Stage:
    """Makes nothing, and keeps what was to be made."""

    backend: Any = None

    def __init__(self) -> None:
        self.hits: list[str] = []

    def hit(self, fault: PlannedFault) -> None:
        self.hits.append(fault.kind)


class Work:
    """Answers of a script after two quiet rounds; an exception is raised."""

    pieces = 1

    def __init__(self, *answers: Any) -> None:
        self._answers, self._lock, self.done = list(answers), threading.Lock(), 0

    def do(self, backend: Any, number: int) -> str:
        with self._lock:
            self.done += 1
            if self.done <= 2:
                return "right"
            answer = self._answers.pop(0) if self._answers else "right"
        if isinstance(answer, BaseException):
            raise answer
        return str(answer)

    def data(self) -> dict[str, Any]:
        return {"requests": [{}]}


def run(work: Work, clients: int = 1, faults: Any = (), seconds: float = 0.05) -> Any:
    stage = Stage()
    tally = ChaosRun(work, stage, clients, lambda line: None).run(faults, seconds)
    return tally, stage


def test_right_answers_are_no_loss() -> None:
    tally, stage = run(Work(), 3, [PlannedFault(0.0, "cut"), PlannedFault(0.01, "kill")])
    assert stage.hits == ["cut", "kill"]
    assert (tally.lost, set(tally.ends)) == (0, {RIGHT})
    assert report(tally, {"cut": 1, "kill": 1})[-1] == "lost:   nothing"


def test_every_loss_is_counted() -> None:
    tally, _ = run(Work("wrong", BackendError("no"), ValueError("own")))
    assert (tally.ends[OTHER], tally.ends[FAILED], tally.lost) == (1, 2, 3)
    assert [one["error"] for one in tally.failures] == ["", "BackendError: no", "ValueError: own"]
    assert tally.failures[0] == {
        "piece": 0, "way": OTHER, "error": "", "expected": "right", "found": "wrong",
    }  # fmt: skip
    assert report(tally, {})[-1] == "lost:   3"


def test_a_refusal_for_the_moment_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_run, "AGAIN_SECONDS", 0.001)
    tally, _ = run(Work(ServerFailed("later", 503), ServerFailed("later", 429)))
    assert (tally.again, tally.lost) == (2, 0)
    tally, _ = run(Work(ServerFailed("broken", 500)))
    assert (tally.again, tally.ends[FAILED]) == (0, 1)


def test_a_piece_without_an_end_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos_run, "END_SECONDS", 0.05)
    stays = threading.Event()

    class Hanging(Work):
        def do(self, backend: Any, number: int) -> str:
            answer = super().do(backend, number)
            if self.done > 2:
                stays.wait(20)
            return answer

    tally, _ = run(Hanging())
    stays.set()
    assert tally.ends[NEVER] == 1


def test_answers_that_vary_are_not_compared() -> None:
    class Varying(Work):
        def do(self, backend: Any, number: int) -> str:
            super().do(backend, number)
            return str(self.done)

    tally, _ = run(Varying())
    assert (tally.compared, tally.lost) == (False, 0)
    assert any("not compared" in line for line in report(tally, {}))


# Work and bundles


def new_folder(parent: Path) -> Path:
    folder = parent / "again"
    folder.mkdir()
    return folder


def test_program_work_makes_itself_again(tmp_path: Path) -> None:
    file = tmp_path / "chaos_program_of_test.py"
    file.write_text(PROGRAM)
    work = ProgramWork(f"{file}:f", {"word": "a"}, {"max_tokens": 3})
    again = work_of(json.loads(json.dumps(work.data())), new_folder(tmp_path))
    mock = Mock(lambda prompt, params: f"{params.temperature}")
    assert work.do(mock, 0) == again.do(mock, 0) == "a: 0"


def test_requests_are_read_from_lines(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": "b"}\n')
    work = read_requests(str(path))
    assert (work.pieces, work.data()) == (2, {"requests": [{"text": "a"}, {"text": "b"}]})
    for text, message in (("", "0 requests"), ("[]\n", "no JSON object"), ("{\n", ":1 is not JS")):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_requests(str(path))


def test_a_bundle_is_read_as_it_was_written_without_keys(tmp_path: Path) -> None:
    path = str(tmp_path / "b.json")
    bundle = CrashBundle(work={"requests": [{"text": "a"}]}, settings={"api_key": "s3cret", "a": 1},
                         server={"admin_api_key": "s3cret", "max_total_tokens": 5},
                         faults=fault_plan(0, 60, 5, list(FAULTS)), clients=3, seconds=60.0,
                         failures=[dict.fromkeys(FAILURE, "") | {"piece": 0}])  # fmt: skip
    bundle.save(path)
    assert "s3cret" not in Path(path).read_text()
    assert Path(path).stat().st_mode & 0o077 == 0
    found = load_bundle(path)
    assert (found.faults, found.clients, found.settings) == (bundle.faults, 3, {"a": 1})
    assert found.server == {"max_total_tokens": 5}
    assert found.differences() == []
    found.versions["torch"] = "0.0.1"
    assert any(line.startswith("torch is ") for line in found.differences())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no bundle"),
        ("[]", "no bundle of format 1"),
        ('{"sglang_bundle": 2}', "no bundle of format 1"),
        ('{"sglang_bundle": 1, "work": {}}', "is damaged"),
        ('{"sglang_bundle": 1, "work": {}, "settings": {}, "more": 1}', "is damaged"),
        ('{"sglang_bundle": 1, "work": {}, "settings": []}', "is damaged: settings: Input should"),
        ('{"sglang_bundle": 1, "work": {}, "settings": {}, "clients": "x"}', "damaged: clients"),
        ('{"sglang_bundle": 1, "work": {}, "settings": {}, "versions": [1]}', "damaged: versions"),
        ('{"sglang_bundle": 1, "work": {}, "settings": {}, "failures": [{"piece": 0}]}',
         "failures.0 has no 'way'"),
        ('{"sglang_bundle": 1, "work": {}, "settings": {}, "faults": [{"kind": "cut"}]}',
         "damaged: faults.0.at"),
        ('{"sglang_bundle": 1, "work": {}, "settings": {}, "faults": [{"at": 1, "kind": "burn"}]}',
         "a fault 'burn'"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_bundle_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_bundle(str(path))
    assert main(["replay", str(path)]) == 2


def test_a_bundle_in_place_of_a_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text("x" * 9999)
    path.chmod(0o644)
    CrashBundle(work={"requests": [{"text": "a"}]}, settings={}).save(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_bundle(str(path)).work == {"requests": [{"text": "a"}]}


def test_files_of_chaos_are_read_no_further_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_bundle, "MAX_BYTES", 9)
    monkeypatch.setattr(chaos_work, "MAX_REQUEST_BYTES", 9)
    path = tmp_path / "file"
    path.write_text(json.dumps("x" * 8))
    names = [str(path), *(["/dev/zero"] if Path("/dev/zero").exists() else [])]
    for name in names:
        for read in (load_bundle, read_requests):
            with pytest.raises(ValueError, match=f"{name} has more than 9 bytes"):
                read(name)


def test_a_line_of_requests_is_named(tmp_path: Path) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text('{"text": "a"}\n\n' + "[" * 100_000)
    with pytest.raises(ValueError, match=f"{path}:3 is not JSON"):
        read_requests(str(path))


def test_an_exception_of_a_program_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "raising_of_test.py"
    file.write_text("import sglang as sgl\n\n@sgl.function\ndef f(s):\n    {}['x']\n")
    work = ProgramWork(f"{file}:f", {}, {})
    with pytest.raises(ProgramError, match=f"KeyError: 'x' at {file}:5"):
        work.do(Mock(), 0)


def test_a_replay_leaves_no_source_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, path = tmp_path / "replayed_of_test.py", str(tmp_path / "b.json")
    file.write_text(PROGRAM)
    CrashBundle(ProgramWork(f"{file}:f", {"word": "a"}, {}).data(), settings={}).save(path)
    answers = []

    def perform(work: Any, *_: Any) -> Tally:
        answers.append(work.do(Mock(["fine"]), 0))
        answers.extend(one.name for one in folder.glob("*/*.py"))
        return Tally()

    folder = new_folder(tmp_path)
    monkeypatch.setattr(replay_command, "perform", perform)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert main(["replay", path]) == 0
    assert answers == ["a: fine", file.name]
    assert list(folder.iterdir()) == []


def test_once_compares_with_what_is_known() -> None:
    work = RequestWork([{"text": "a"}, {"text": "b"}, {"text": "c"}])

    class Backend:
        def call_stream(self, body: Any) -> Any:
            if body["text"] == "c":
                raise BackendError("no c")
            yield {"text": body["text"].upper()}

    stage = Stage()
    stage.backend = Backend()
    tally = ChaosRun(work, stage, 1, lambda line: None).once({0: "A", 1: "X"})
    assert (tally.ends[RIGHT], tally.ends[OTHER], tally.ends[FAILED]) == (1, 1, 1)


def test_run_writes_a_bundle_of_its_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, path = tmp_path / "failing_of_test.py", tmp_path / "b.json"
    file.write_text(PROGRAM)
    monkeypatch.setattr(run_command, "open_backend", lambda _: Mock([BackendError("no luck")]))
    words = ["run", f"{file}:f", "word=a", "--param", "seed=7", "--setting", "random_seed=3"]
    assert main([*words, "--bundle", str(path)]) == 1
    assert f"again: sglang replay {path}" in capsys.readouterr().err
    bundle = load_bundle(str(path))
    assert bundle.work["values"] == {"word": "a"}
    assert bundle.work["params"] == {"temperature": 0, "seed": 7}
    assert bundle.settings == {"random_seed": 3}
    assert "no luck" in bundle.failures[0]["error"]
    mock = Mock(["fine"])
    assert work_of(bundle.work, tmp_path).do(mock, 0) == "a: fine"


# The command and the proxy


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url", "http://h", "--faults", "kill"], "leave --url out"),
        (["--url", "http://h", "--model", "m"], "leave them out"),
        (["--faults", "burn"], "'burn' is unknown"),
        (["--clients", "0"], "give 1 to 256"),
        (["--seconds", "0"], "more than 0"),
        (["--seconds", "0.1"], "give more seconds"),
        (["f.py:f", "--requests", "x"], "two kinds of work"),
        (["--requests", "/nowhere"], "No such file"),
        (["--url", "https://h", "--faults", "cut"], "plain proxy"),
    ],
)
def test_chaos_refuses(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", *words]) == 2
    assert message in capsys.readouterr().err


def test_proxy_passes_on_and_cuts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = CutProxy("127.0.0.1", listener.getsockname()[1])
        try:
            port = int(proxy.url.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.settimeout(10)
                server, _ = listener.accept()
                with server:
                    server.settimeout(10)
                    client.sendall(b"there")
                    assert server.recv(9) == b"there"
                    server.sendall(b"back")
                    assert client.recv(9) == b"back"
                    proxy.cut()
                    for end in (client, server):
                        with suppress(ConnectionResetError):
                            assert end.recv(9) == b""
            assert proxy.cuts == 1
        finally:
            proxy.close()


def test_failures_that_are_kept_are_few() -> None:
    tally = Tally()
    for number in range(100):
        tally.add(number, FAILED, "")
    assert (tally.lost, len(tally.failures)) == (100, chaos_run.KEPT)


@pytest.mark.parametrize(
    ("info", "requests", "length"),
    [
        ({"max_total_num_tokens": 4096, "context_length": 2048}, 8, 512),
        ({"max_total_num_tokens": 4096, "context_length": 512}, 2, 256),
        ({"max_total_num_tokens": 10**6, "context_length": 10**6}, 2, 4096),
        ({"max_total_num_tokens": 64, "context_length": 64}, 8, 16),
        ({}, 2, 2048),
    ],
)
def test_fillers_fit_cache_and_context(info: Any, requests: int, length: int) -> None:
    assert filler_length(info, requests) == length
