"""The declared calls: their number, their schema, the table of the docs, and how they are read."""

from __future__ import annotations

import base64

import jsonschema
import msgspec
import pytest
from helpers.paths import ROOT
from sglang.srt.inferlet import call_reading, calls
from sglang.srt.inferlet.call_reading import BadCall
from sglang.srt.inferlet.traits import SUPERTRAITS, closed


def test_calls_are_the_papers_42() -> None:
    assert len(calls.CALLS) == 42
    assert len({kind.__struct_config__.tag for kind in calls.CALLS + calls.MORE}) == 42 + len(
        calls.MORE
    )
    assert sum(kind.trait not in ("", "lease") for kind in calls.CALLS) == 20


def test_calls_name_known_traits() -> None:
    assert {kind.trait for kind in call_reading.BY_NAME.values()} - {""} <= set(SUPERTRAITS)


def test_traits_bring_their_supertraits() -> None:
    assert closed({"tokenize"}) == {"tokenize", "input_text", "forward", "allocate"}
    assert closed({"lease"}) == {"lease"}


def test_table_of_the_docs_is_of_the_declarations() -> None:
    text = (ROOT / "docs" / "inferlets.md").read_text(encoding="utf-8")
    assert call_reading.table() in text
    assert call_reading.table(calls.MORE) in text


TURN = [
    {"call": "create_queue", "id": 1, "queue": 0},
    {"call": "alloc_kvpage", "id": 2, "queue": 0, "pages": [0, 1]},
    {"call": "send_blob", "id": 3, "blob": base64.b64encode(b"\0\1").decode()},
    {"call": "get_next_dist", "id": 4, "queue": 0, "emb": 3, "k": -2},
]


def test_schema_accepts_a_turn_and_refuses_a_wrong_one() -> None:
    schema = call_reading.schema()
    jsonschema.validate(TURN, schema)
    for wrong in (
        {"call": "no_call", "id": 1},
        {**TURN[1], "pages": [-1]},
        {**TURN[0], "queue": None},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate([wrong], schema)


def test_text_and_data_are_read_alike() -> None:
    text = call_reading.read_text(msgspec.json.encode(TURN))
    data = [call_reading.read({**one, "blob": b"\0\1"} if "blob" in one else one) for one in TURN]
    assert text == data
    read = [call for call in data if not isinstance(call, call_reading.BadCall)]
    assert [calls.name_of(call) for call in read] == [one["call"] for one in TURN]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"call": "forwrad", "id": 3}, "did you mean 'forward'"),
        ({"call": "forward", "id": 3}, "queue"),
        ({"call": "forward", "id": 3, "queue": 1 << 20}, "$.queue"),
        ({"call": "forward", "id": 3, "queue": 0, "ikv": [2, -2]}, "$.ikv[1]"),
        ({"call": "alloc_kvpage", "id": 3, "queue": 0, "pages": "x"}, "$.pages"),
        ({"call": "sleep", "id": 3, "seconds": -1.0}, "$.seconds"),
        ([], "no call"),
    ],
)
def test_wrong_call_is_refused_alone(data: object, message: str) -> None:
    found = call_reading.read(data)
    assert isinstance(found, call_reading.BadCall)
    assert message in found.message
    if isinstance(data, dict):
        assert found.id == 3
        good, bad = call_reading.read_text(msgspec.json.encode([TURN[0], data]))
        assert isinstance(good, calls.CreateQueueCall)
        assert isinstance(bad, call_reading.BadCall)


def test_names_are_searched_for_few_calls_of_a_turn() -> None:
    turn = [{"call": "forwrad", "id": number} for number in range(call_reading.HINTED + 3)]
    found = call_reading.read_text(msgspec.json.encode(turn))
    hints = ["did you mean" in call.message for call in found if isinstance(call, BadCall)]
    assert hints == [True] * call_reading.HINTED + [False] * 3
