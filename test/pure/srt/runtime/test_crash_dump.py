"""``--crash-dump-folder``: the requests of a lost engine, and the same requests read back."""

from __future__ import annotations

import asyncio
import errno
import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import Served, serve_text
from sglang.srt.config import Config
from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.engine.client import EngineLost
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.serving_engines import EngineLeft
from sglang.srt.runtime import crash_dump
from sglang.srt.runtime.caller import ANYBODY
from sglang.srt.runtime.crash_dump import CrashDump, body_of, changed_settings
from sglang.srt.runtime.generate_request import GenerateRequest, read_call
from sglang.srt.runtime.request_fields import convert
from sglang.srt.runtime.supervisor import EngineAbsent
from sglang.terminal.chaos.crash_bundle import load_bundle

PLAIN: dict[str, Any] = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}}
BODIES: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "sampled": {**PLAIN, "sampling_params": {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["a", "b"],
        "stop_token_ids": [3], "stop_regex": "a+", "logit_bias": {"5": 1.5}, "ignore_eos": True,
        "repetition_penalty": 1.2, "max_new_tokens": 9, "min_new_tokens": 2, "speculation": "off",
        "no_stop_trim": True, "skip_special_tokens": False, "frequency_penalty": 0.5}},
    "regex": {**PLAIN, "sampling_params": {"regex": "a|b"}},
    "schema": {**PLAIN, "sampling_params": {
        "json_schema": {"type": "object"}, "whitespace_pattern": ""}},
    "choices": {**PLAIN, "sampling_params": {"choices": ["x", "y"], "choices_scoring": "whole"}},
    "logprobs": {**PLAIN, "return_logprob": True, "logprob_start_len": 1, "top_logprobs_num": 3,
                 "token_ids_logprob": [5, 6], "masked_logprobs": True},
    "given": {**PLAIN, "output_ids": [4, 5]},
    "named": {**PLAIN, "priority": 3, "cache_salt": "x"},
}  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


def read(served: Served, body: dict[str, Any]) -> CompletionRequest:
    call = asyncio.run(read_call(served.state.runtime, convert(body, GenerateRequest), ANYBODY))
    return call.requests[0]


@pytest.mark.parametrize("name", BODIES)
def test_a_body_makes_the_same_request_again(served: Served, name: str) -> None:
    request = read(served, BODIES[name])
    body = json.loads(json.dumps(body_of(request)))
    assert replace(read(served, body), rid=request.rid) == request


def lose(dump: CrashDump, *lost: tuple[Any, EngineLost, CompletionRequest, str]) -> None:
    async def main() -> None:
        for one in lost:
            dump.note(*one)
        await dump.close()

    asyncio.run(main())


def test_one_file_for_each_lost_engine(served: Served, tmp_path: Path) -> None:
    config = Config.of(max_running_requests=3, api_key="s3cret", port=1234)
    first, other = EngineLost("the first died"), EngineLost("the other died")
    request = read(served, BODIES["sampled"])
    left = EngineLeft("it leaves")
    lose(
        CrashDump(tmp_path / "new", config),
        ("a", first, request, "so far"), ("b", other, request, ""), ("a", first, request, ""),
        ("c", left, request, ""), ("d", EngineAbsent("it is being started again"), request, ""),
    )  # fmt: skip
    bundles = [load_bundle(str(path)) for path in sorted((tmp_path / "new").iterdir())]
    found = {one.server["error"]: one for one in bundles}
    assert found.keys() == {"the first died", "the other died"}
    bundle = found["the first died"]
    assert bundle.work == {"requests": [json.loads(json.dumps(body_of(request)))] * 2}
    assert [one["found"] for one in bundle.failures] == ["so far", ""]
    assert bundle.settings == {"max_running_requests": 3}
    assert bundle.server["requests_left_out"] == 0
    assert "sglang" in bundle.versions
    path = next((tmp_path / "new").iterdir())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_is_bounded(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    request, lost = read(served, PLAIN), EngineLost("it died")
    seen = replace(request, media=(MediaSpan(0, 1, b"k", "image", (1, 1, 3), b"abc"),))
    monkeypatch.setattr(crash_dump, "MOST_TOKENS", 7)
    dump = CrashDump(tmp_path, Config.of())
    lose(dump, *[("a", lost, one, "") for one in (seen, request, request, request)])
    (path,) = tmp_path.iterdir()
    bundle = load_bundle(str(path))
    assert len(bundle.work["requests"]) == 2
    assert bundle.server["requests_left_out"] == 2
    monkeypatch.setattr(crash_dump, "MOST_FILES", 1)
    lose(dump, ("a", lost, request, ""))
    assert len(list(tmp_path.iterdir())) == 1
    assert "has 1 bundles" in caplog.text
    path.unlink()
    monkeypatch.setattr(crash_dump, "write_bundle", lambda *_: (_ for _ in ()).throw(OSError(28)))
    lose(dump, ("a", lost, request, ""))
    assert "could not be written" in caplog.text


def test_a_disk_that_is_full_keeps_no_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, parts: Any) -> None:
        path.write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(crash_dump, "write_bundle", refuse)
    dump = CrashDump(tmp_path, Config.of())
    with pytest.raises(OSError):
        dump._save(crash_dump._Lost("it died"))
    assert list(tmp_path.iterdir()) == []


def test_settings_that_were_changed_are_kept_without_secrets() -> None:
    config = Config.of(random_seed=5, api_key="s3cret", host="::", lora_paths=["a=b"])
    assert changed_settings(config) == {
        "random_seed": 5, "lora_paths": config.lora.lora_paths,
    }  # fmt: skip
