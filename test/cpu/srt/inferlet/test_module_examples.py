"""Examples in C, Rust and AssemblyScript, as the committed modules: the texts and scores of
those in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")

from helpers.guest_bench import compiled
from helpers.guest_pair import LEGS, NO_MODEL, PROMPT, GuestPair, tool_server
from helpers.paths import ROOT
from sglang.srt.inferlet.program_limits import Rights

pytestmark = [pytest.mark.timeout(300), NO_MODEL]
LANGUAGES = ("c", "rust", "assemblyscript")
TEXTS = [
    (),
    (PROMPT, "12"),
    ('a "quoted" \\ text\tof é, 中 and 🙂', "9"),
    ("Hello", "0"),
]


class ModulePair(GuestPair):
    """``exact``: whether a fraction is written as the number that it is."""

    def __init__(self, language: str, page_size: int, folder: Path) -> None:
        self.exact = language != "c"

        def image(name: Any) -> Any:
            path = folder / f"{name}.wasm"
            if not path.exists():
                path.write_bytes((ROOT / "examples/inferlets" / language / path.name).read_bytes())
            return compiled(path)

        super().__init__(page_size, image)


@pytest.fixture(scope="module", params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[1, 4], ids=["page-1", "page-4"])
def pair(
    language: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ModulePair:
    return ModulePair(language, request.param, tmp_path_factory.mktemp(language))


@pytest.mark.parametrize("arguments", TEXTS)
def test_text_completion(pair: ModulePair, arguments: tuple[str, ...]) -> None:
    found = pair.play("text_completion", *arguments)
    assert bool(found) == (arguments != ("Hello", "0"))


@pytest.mark.parametrize("width", ["1", "3"])
def test_beam_search(pair: ModulePair, width: str) -> None:
    found = pair.play("beam_search", PROMPT, width, "8", exact=pair.exact)
    assert len(found) == int(width)
    assert all(score < 0 and text for score, text in found)


def test_agent_react(pair: ModulePair) -> None:
    with tool_server() as tool:
        arguments = f"http://{tool}/search", LEGS, "3", "10"
        found = pair.play("agent_react", *arguments, rights=Rights(local=(tool,)))
        assert found["calls"] >= 1
        assert "See: about " in found["text"]
        refused = pair.play("agent_react", *arguments)
        quoted = pair.play(
            "agent_react", arguments[0], 'What is "red"?\nAct: a b/ü?\nSee:', "1", "2"
        )
    assert "See: error denied" in refused["text"]
    assert quoted["tokens"]
