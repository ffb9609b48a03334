"""The benchmark of JSON decoding, tiny: it measures every row, and finds answers that differ."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from sglang import Engine

from benchmark.json_decode.__main__ import main
from benchmark.json_decode.sides import Failed, run
from benchmark.json_decode.workloads import CHARACTER_SCHEMA, WORKLOADS

TINY = ["--num-requests", "2", "--rounds", "1", "--no-string"]


def test_every_row_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmark.json_decode.__main__.EQUAL_TOKENS", 8)
    out = tmp_path / "rows.jsonl"
    names = ["city", "nothing"]
    # A limit may be missed on a busy machine.
    main([*TINY, "--workloads", *names, "--output-file", str(out)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["row"] for row in rows[:2]] == names
    assert len(rows) == 2 * len(names) + 1 + 2
    tokens = {row["row"]: row["figures"] for row in rows if row["table"] == "tokens of the batch"}
    for name, figures in tokens.items():
        assert figures["answers cut"]["median"] == 0
        saved = figures["passes, off"]["median"] - figures["passes"]["median"]
        assert (saved > 0) == (name != "nothing")
    equal = rows[-2]["figures"]
    assert equal["passes"]["median"] == equal["passes, free"]["median"]
    assert "limits missed" in capsys.readouterr().out


def test_answers_that_differ_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Engine.generate

    def generate(self: Engine, prompts: list[str], sampling: list[dict[str, Any]]) -> Any:
        answers = asked(self, prompts, sampling)
        if self._runtime and self._runtime.config.grammar.jumps == "exact":
            answers[-1]["output_ids"] = answers[-1]["output_ids"][:-1]
        return answers

    monkeypatch.setattr(Engine, "generate", generate)
    assert main([*TINY, "--workloads", "nothing", "--parts", "jump"]) == 1
    assert "nothing, round 0, request 1" in capsys.readouterr().err


def test_a_request_that_fails_is_no_answer() -> None:
    class Broken:
        def flush_cache(self) -> None: ...

        def generate(self, prompts: Sequence[str], sampling: Any) -> list[dict[str, Any]]:
            return [{"meta_info": {"finish_reason": {"type": "error", "message": "no way on"}}}]

    with pytest.raises(Failed, match="no way on"):
        run(Broken(), ["a"], [{}])


def test_the_prompts_differ_and_the_constraints_compile() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(CHARACTER_SCHEMA))
    for workload in WORKLOADS.values():
        assert len({workload.prompt(i) for i in range(64)}) == 64
        if workload.constraint[0] == "regex":
            re.compile(workload.constraint[1])
