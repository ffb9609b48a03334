"""``kv_hints`` of /generate: each action is answered, and keeps what it says it keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.hints import KEEPING, emptied, hints
from helpers.http_server import Served, is_error, serve_text
from sglang.srt.config import Config
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.parking.kv_hints import KvHintAction, KvHints
from sglang.srt.runtime.parking.parked_store import MOST_DEADLINE

PROMPT = "the lazy dog"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("toy"), Config.of(max_parked_per_key=2)) as served:
        yield served


@pytest.fixture(autouse=True)
def clean(served: Served) -> Iterator[None]:
    yield from emptied(served)


def body(kv_hints: dict[str, Any], text: str = PROMPT, **more: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": 1, "ignore_eos": True}
    return {"text": text, "sampling_params": sampling, "kv_hints": kv_hints, **more}


def generate(served: Served, sent: dict[str, Any]) -> dict[str, Any]:
    reply = served.client.post("/generate", json=sent)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def outcomes(found: dict[str, Any]) -> list[tuple[str, str]]:
    answers = found["meta_info"]["kv_hints"]
    assert all(bool(answer["reason"]) == (answer["outcome"] != "accepted") for answer in answers)
    return [(answer["action_id"], answer["outcome"]) for answer in answers]


@pytest.mark.parametrize(("kind", "outcome"), KEEPING)
def test_a_kept_context_goes_on_with_its_own_tokens(
    served: Served, kind: str, outcome: str
) -> None:
    found = generate(served, body(hints(kind, ttl_seconds=60)))
    assert outcomes(found) == [("a0", outcome)]
    store = served.state.runtime.parked
    assert store.counts()["parked"] == 1
    before = store.resumed
    after = generate(served, body(hints(), text=PROMPT + found["text"] + " so"))
    assert after["meta_info"]["cached_tokens"] > 0
    assert store.resumed == before + 1
    assert "kv_hints" not in after["meta_info"], "no action, no answer"


def test_demoted_contexts_expect_no_use_long_ones_are_clipped(served: Served) -> None:
    assert outcomes(generate(served, body(hints("kv.demote")))) == [("a0", "accepted")]
    [claim] = [one.facts.claim for one in served.state.runtime.parked._all()]
    assert (claim.expected, claim.tool) == (MOST_DEADLINE, "kv.demote")
    found = generate(served, body(hints("kv.retain", ttl_seconds=2 * MOST_DEADLINE), "another"))
    assert outcomes(found) == [("a0", "clipped")]
    assert max(one.facts.claim.deadline for one in served.state.runtime.parked._all()) == (
        MOST_DEADLINE
    )


def test_an_unsupported_hint_is_rejected_and_changes_no_answer(served: Served) -> None:
    plain = generate(served, body(hints()))
    found = generate(served, body(hints("kv.share", "kv.prefetch", "x", "kv.retain", "kv.pin")))
    assert found["output_ids"] == plain["output_ids"]
    assert [outcome for _, outcome in outcomes(found)] == [
        "rejected", "rejected", "rejected", "accepted", "rejected",
    ]  # fmt: skip
    served.client.post("/abort_request", json={"abort_all": True})
    parked = generate(served, body(hints("kv.retain"), park={"tool": "t"}))
    assert outcomes(parked) == [("a0", "rejected")]
    handle = parked["meta_info"]["finish_reason"]["resume"]
    resumed = generate(served, {"resume": handle, "kv_hints": hints("kv.retain")})
    assert outcomes(resumed) == [("a0", "rejected")]
    for _ in range(2):
        generate(served, body(hints(), text="one", park={"tool": "t"}))
    assert outcomes(generate(served, body(hints("kv.retain")))) == [("a0", "rejected")], "no room"


def test_a_stream_has_the_answers_at_its_end(served: Served) -> None:
    sent = body(hints("kv.retain"), stream=True)
    with served.client.stream("POST", "/generate", json=sent) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith("data: {")]
    assert '"kv_hints":[{"action_id":"a0","outcome":"accepted"' in lines[-1].replace(" ", "")
    assert not any("kv_hints" in line for line in lines[:-1])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"protocol_version": "9"}, "kv_hints.protocol_version"),
        ({"message_id": "m" * 2000}, "kv_hints.message_id"),
        ({"actions": hints(*["kv.retain"] * 17)["actions"]}, "kv_hints.actions"),
        ({"actions": hints("x" * 2000)["actions"]}, "kv_hints.actions[0].action_type"),
        (hints("kv.pin", ttl_seconds=-1), "kv_hints.actions[0].payload.ttl_seconds"),
        (hints("kv.pin", ttl_seconds="1"), "kv_hints.actions[0].payload.ttl_seconds"),
        (hints("kv.pin", expected_seconds=True), "kv_hints.actions[0].payload.expected_seconds"),
    ],
)
def test_a_bad_envelope_is_refused(served: Served, change: dict[str, Any], param: str) -> None:
    reply = served.client.post("/generate", json=body({**hints("kv.retain"), **change}))
    assert is_error(reply, 400)["param"] == param


def test_hints_are_for_one_text(served: Served) -> None:
    reply = served.client.post("/generate", json=body(hints("kv.retain"), text=["a", "b"]))  # type: ignore[arg-type]
    assert is_error(reply, 400)["param"] == "kv_hints"


@pytest.mark.parametrize("seconds", [math.nan, -math.inf])
def test_seconds_that_json_cannot_say_are_refused_too(seconds: float) -> None:
    """``sglang.Engine`` takes them."""
    action = KvHintAction(
        action_id="a", action_type="kv.retain", action_version="1.0",
        payload={"ttl_seconds": seconds},
    )  # fmt: skip
    with pytest.raises(RequestError, match="give a number of seconds from 0 on"):
        KvHints(protocol_version="0.1", message_id="m", actions=[action]).verify()
