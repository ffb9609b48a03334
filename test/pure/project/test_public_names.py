"""Public interface: names, signatures, flags, routes and errors that users had are still there."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from helpers.paths import TESTS

from tools.public_names import MODULES, accepts_no_more, interface, lost

BEFORE = TESTS / "data" / "public_names.json"

# Losses that were decided, by sentence, with the reason.
SETTINGS_NOW = (
    "--fp8-gemm-backend: default is 'auto'; it was None",
    "--crash-dump-folder: default is ''; it was None",
    "--dist-init-addr: default is ''; it was None",
    "--dist-timeout: default is 300; it was None",
    "--kv-events-config: default is ''; it was None",
    "--nnodes: default is 1; it was None",
    "--node-rank: default is 0; it was None",
    "--tp-size: default is 1; it was None",
    "--tp: name is tp_size; it was tp",
    "--tensor-parallel-size: name is tp_size; it was tensor_parallel_size",
    "--pp-size: default is 1; it was None",
    "--pp: name is pp_size; it was pp",
    "--pipeline-parallel-size: name is pp_size; it was pipeline_parallel_size",
    "--base-gpu-id: default is 0; it was None",
    "--dp-size: default is 1; it was None",
    "--dp: name is dp_size; it was dp",
    "--data-parallel-size: name is dp_size; it was data_parallel_size",
)
DECIDED: dict[str, str] = {
    f"{command} {flag}": "it was without effect or refused, and is a setting now"
    for flag in SETTINGS_NOW
    for command in (
        "python -m sglang.bench_offline_throughput", "python -m sglang.bench_one_batch",
        "python -m sglang.launch_server", "sglang doctor", "sglang serve",
    )
}  # fmt: skip
DECIDED["route GET /page/{name} is gone"] = "its files lie in folders: GET /page/{name:path}"


@cache
def before() -> Any:
    return json.loads(BEFORE.read_text(encoding="utf-8"))


def test_nothing_public_is_lost() -> None:
    found = set(lost(before(), interface()))
    vanished = sorted(found - DECIDED.keys())
    assert not vanished, "users had this and have it no longer:\n" + "\n".join(vanished)
    assert DECIDED.keys() <= found, "lost no longer: remove it from DECIDED"


def test_the_list_has_what_a_user_sees() -> None:
    known = before()
    assert {"gen", "Engine", "ProgramError"} <= known["modules"]["sglang"].keys()
    assert "sglang.lang.interpreter" in known["modules"]
    assert "--model-path" in known["commands"]["sglang serve"]
    assert "POST /v1/chat/completions" in known["routes"]
    assert "sglang.errors.RateLimited" in known["errors"]


@pytest.mark.slow
def test_a_missing_module_is_a_loss_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "sglang.lang.no_such_package.api"
    monkeypatch.setitem(MODULES, name, "gen")
    assert name not in interface()["modules"]
    monkeypatch.setitem(MODULES, "sglang.version", "gen __version__")
    assert interface()["modules"]["sglang.version"].keys() == {"__version__"}


def without(path: str) -> Callable[[Any], None]:
    *outer, last = path.split("|")

    def change(document: Any) -> None:
        for key in outer:
            document = document[key]
        del document[last]

    return change


def routed(document: Any) -> None:
    document["routes"]["POST /generate"]["request"].remove("sampling_params")


def chosen(document: Any) -> None:
    document["commands"]["sglang serve"]["--schedule-policy"]["choices"].remove("lpm")


def based(document: Any) -> None:
    document["errors"]["sglang.TraceError"].remove("TypeError")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without("modules|sglang.lang.ir"), "module sglang.lang.ir is gone"),
        (without("modules|sglang|gen"), "sglang.gen is gone"),
        (without("modules|sglang|SglFunction|run"), "sglang.SglFunction.run is gone"),
        (without("commands|sglang trace"), "command sglang trace is gone"),
        (without("commands|sglang serve|--host"), "sglang serve --host is gone"),
        (chosen, "sglang serve --schedule-policy takes no lpm any more"),
        (without("errors|sglang.TraceError"), "error sglang.TraceError is gone"),
        (based, "error sglang.TraceError is no TypeError any more"),
        (without("routes|GET /health"), "route GET /health is gone"),
        (routed, "POST /generate: request has no sampling_params"),
    ],
)
def test_a_planted_loss_is_told(change: Callable[[Any], None], sentence: str) -> None:
    now = copy.deepcopy(before())
    change(now)
    assert sentence in lost(before(), now)


@pytest.mark.parametrize(
    ("had", "has", "sentence"),
    [
        ("a b", "a", "argument 2 was b"),
        ("a b", "b a", "argument 1 was a"),
        ("a b=1", "a * b=1", "argument 2 was b"),
        ("a=1", "a", "parameter a is required; its default was 1"),
        ("a=1", "a=2", "default of a is 2; it was 1"),
        ("a", "a b", "parameter b is new and required"),
        ("* a=1", "* b=1", "parameter a is gone"),
        ("a **more", "a", "takes no other arguments any more"),
    ],
)
def test_a_narrower_signature_is_told(had: str, has: str, sentence: str) -> None:
    assert any(sentence in one for one in accepts_no_more("f", had.split(), has.split()))


@pytest.mark.parametrize(
    ("had", "has"),
    [
        ("a", "a b=1"),
        ("a * b=1", "a b=1"),
        ("* a=1", "* c=2 a=1"),
        ("a * b=1", "a **more"),
        ("a=...", "a=1"),
    ],
)
def test_a_wider_signature_passes(had: str, has: str) -> None:
    assert list(accepts_no_more("f", had.split(), has.split())) == []
