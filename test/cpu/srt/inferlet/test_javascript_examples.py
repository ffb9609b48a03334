"""Examples in JavaScript: the texts, scores and passes of those in Python."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")

from helpers.guest_bench import javascript
from helpers.guest_pair import LEGS, NO_MODEL, PROMPT, GuestPair, tool_server
from helpers.paths import ROOT
from sglang.srt.inferlet.program_limits import Rights

pytestmark = [pytest.mark.timeout(300), NO_MODEL]  # the runner may have to be built


def image(name: Any) -> Any:
    return javascript((ROOT / "examples" / "inferlets" / "js" / f"{name}.js").read_text())


@pytest.fixture(scope="module", params=[1, 4], ids=["page-1", "page-4"])
def pair(request: pytest.FixtureRequest) -> GuestPair:
    return GuestPair(request.param, image)


def test_text_completion(pair: GuestPair) -> None:
    assert len(pair.play("text_completion", PROMPT, "12")) > 10


@pytest.mark.parametrize("width", ["2", "3"])
def test_beam_search(pair: GuestPair, width: str) -> None:
    found = pair.play("beam_search", PROMPT, width, "8")
    assert len(found) == int(width)
    assert all(score < 0 and text for score, text in found)


def test_agent_react(pair: GuestPair) -> None:
    with tool_server() as tool:
        arguments = f"http://{tool}/search", LEGS, "3", "10"
        found = pair.play("agent_react", *arguments, rights=Rights(local=(tool,)))
        assert found["calls"] >= 1
        assert "See: about " in found["text"]
        refused = pair.play("agent_react", *arguments)
    assert "See: error denied" in refused["text"]
