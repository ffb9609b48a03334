"""``sglang inferlet launch``: which words are the command's, and which the program's."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.backend.engine import sandbox_command
from sglang.srt.cli import main

LIMIT, KEY = ["--limit", "turn_cpu=0.5"], ["--api-key", "secret", "--url", "http://there"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The key and the body of each run that is started; a run has no events."""
    found: list[tuple[str, Any]] = []

    class Client:
        def __init__(self, url: str, key: str, *, verify: bool) -> None:
            assert (url, verify) == ("http://there", True)
            self._key = key

        def launch(self, program: str, *arguments: str, **fields: Any) -> str:
            assert program == "ID"
            found.append((self._key, {"arguments": list(arguments), **fields}))
            return "run"

        def events(self, run: str, after: int = -1) -> list[Any]:
            return []

    monkeypatch.setattr(sandbox_command, "InferletClient", Client)
    return found


@pytest.mark.parametrize(
    "words", [[*LIMIT, *KEY, "ID"], ["ID", *LIMIT, *KEY], [*LIMIT, "ID", *KEY]]
)
@pytest.mark.parametrize("program", [[], ["a", "--limit", "x=1", "--", "-b"]])
def test_options_are_read_up_to_the_dashes(
    sent: list[tuple[str, Any]], words: list[str], program: list[str]
) -> None:
    assert main(["inferlet", "launch", *words, "--", *program]) == 0
    assert main(["inferlet", "launch", *words]) == 0
    assert sent == [
        ("secret", {"arguments": program, "turn_cpu": 0.5}),
        ("secret", {"arguments": [], "turn_cpu": 0.5}),
    ]


def test_words_of_the_program_need_the_dashes(
    sent: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["inferlet", "launch", "ID", *KEY, "lamps"])
    assert "lamps: what is for the program stands behind --" in capsys.readouterr().err
    assert sent == []
