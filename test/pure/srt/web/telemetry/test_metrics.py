"""Metrics: the names that dashboards know, what they count, and labels that stay few."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import Served, serve_text
from helpers.paths import ROOT
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from sglang.srt.config import Config
from sglang.srt.web.telemetry.engine_metrics import MetricFamilies
from sglang.srt.web.telemetry.gateway_metrics import GatewayMetrics

DASHBOARD = ROOT / "docs" / "grafana" / "sglang.json"
GREEDY = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}

# Names that gateways and published dashboards read.
KNOWN = (
    "num_running_reqs", "num_queue_reqs", "num_grammar_queue_reqs", "num_used_tokens",
    "token_usage", "gen_throughput", "cache_hit_rate", "max_total_num_tokens",
    "prompt_tokens_total", "generation_tokens_total", "cached_tokens_total", "num_requests_total",
    "num_aborted_requests_total", "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket", "e2e_request_latency_seconds_bucket",
    "queue_time_seconds_bucket", "cache_config_info",
)  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), running=2, queued=4) as server:
        yield server


Values = dict[tuple[str, str], float]


def read(served: Served) -> Values:
    """Every sample, by its name without the prefix and the labels besides the model's name."""
    found = {}
    for family in text_string_to_metric_families(served.client.get("/metrics").text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "sglang-tiny"
            assert sample.name.startswith("sglang:")
            name = sample.name.removeprefix("sglang:")
            found[name, ",".join(f"{k}={v}" for k, v in sorted(labels.items()))] = sample.value
    return found


def test_a_gateway_reads_pages_and_adapters() -> None:
    registry = CollectorRegistry()
    gateway = GatewayMetrics(MetricFamilies(registry, "one"), "one")
    for adapters in (["b", "a"], ["a"], []):
        gateway.read(16, 1600, 4, adapters)
    gateway.read(16, 1600, 4, ["b", "a"])
    labels = {"model_name": "one", "page_size": "16", "num_pages": "100"}
    assert registry.get_sample_value("sglang:cache_config_info", labels) == 1
    [family] = [one for one in registry.collect() if one.name == "sglang:lora_requests_info"]
    [sample] = family.samples
    assert sample.labels == {
        "model_name": "one", "max_lora": "4", "running_lora_adapters": "a,b",
        "waiting_lora_adapters": "",
    }  # fmt: skip
    assert sample.value > 1e9


def grown(before: Values, after: Values, name: str, labels: str = "") -> float:
    return after[name, labels] - before.get((name, labels), 0.0)


def generate(served: Served, **body: Any) -> Any:
    sampling = {**GREEDY, **body.pop("sampling_params", {})}
    return served.client.post("/generate", json={"sampling_params": sampling, **body})


def test_the_known_names_are_there(served: Served) -> None:
    generate(served, text="warm")
    names = {name for name, _ in read(served)}
    assert set(KNOWN) <= names


def test_answers_are_counted_by_route_and_status(served: Served) -> None:
    before = read(served)
    generate(served, text="a")
    generate(served, text="")
    for name in ("x", "y", "z"):
        served.client.get(f"/no/such/{name}")
        served.client.get(f"/v1/models/{name}")
    after = read(served)
    for count, labels in (
        (1, "route=/generate,status=200"), (1, "route=/generate,status=400"),
        (3, "route=other,status=404"), (3, "route=/v1/models/{name:path},status=404"),
    ):  # fmt: skip
        assert grown(before, after, "http_requests_total", labels) == count
    assert not [labels for _, labels in after if "such" in labels]


def test_what_ends_how(served: Served) -> None:
    before = read(served)
    reply = generate(served, text="b", sampling_params={"n": 3})
    assert reply.status_code == 200, reply.text
    served.worker.seconds = 0.01
    with served.client.stream(
        "POST", "/generate",
        json={"text": "c", "stream": True, "rid": "end me",
              "sampling_params": {**GREEDY, "max_new_tokens": 500}},
    ) as reply:  # fmt: skip
        rows = reply.iter_lines()
        next(rows)
        assert grown(before, read(served), "num_open_streams") == 1
        served.client.post("/abort_request", json={"rid": "end me"})
        list(rows)
    connection = served.open({"text": "d", "sampling_params": {**GREEDY, "max_new_tokens": 500}})
    while not served.client.stats()["running"]:
        time.sleep(0.005)
    connection.close()
    served.client.idle()
    served.worker.seconds = 0.0
    after = read(served)
    assert grown(before, after, "finish_reasons_total", "reason=length") == 3
    assert grown(before, after, "finish_reasons_total", "reason=abort") == 1
    assert grown(before, after, "num_requests_total") == 4
    assert grown(before, after, "num_aborted_requests_total") == 2
    assert after["num_open_streams", ""] == 0
    assert grown(before, after, "queue_time_seconds_count") == 2


def test_what_is_turned_away_is_counted(served: Served) -> None:
    before, served.worker.seconds = read(served), 0.01
    sampling = {**GREEDY, "max_new_tokens": 500, "n": 3}
    connection = served.open({"text": "e", "sampling_params": sampling})
    while served.state.runtime.completion.pending < 3:
        time.sleep(0.01)
    assert generate(served, text="e", sampling_params={"n": 4}).status_code == 429
    connection.close()
    served.client.idle()
    served.worker.seconds = 0.0
    assert grown(before, read(served), "num_rejected_requests_total") == 1


def test_what_the_engine_counts_grows_over_its_end(served: Served) -> None:
    metrics = served.state.metrics
    before = read(served)
    generate(served, text="the same words again and again", sampling_params={"temperature": 1})
    after = read(served)
    passes = grown(before, after, "forward_passes_total")
    assert passes > 0
    assert grown(before, after, "computed_tokens_total") > passes
    metrics.engine.read({})  # lost
    assert b'sglang:engine_up{model_name="sglang-tiny"} 0.0' in metrics.render()
    more = after["forward_passes_total", ""] + 3  # more than there were, as if it had gone on
    metrics.engine.restarted("0")
    metrics.engine.read({"0": {"passes": more, "evicted_tokens": 5.0}})  # a new one
    metrics.engine.read({"0": {"passes": more + 1, "evicted_tokens": 5.0}})
    found = re.search(r"forward_passes_total\{.*\} ([0-9.]+)", metrics.render().decode())
    assert found is not None
    assert float(found[1]) == after["forward_passes_total", ""] + more + 1
    metrics.engine.restarted("0")
    metrics.engine.read({"0": served.client.stats()})


def test_evictions_are_counted(served: Served) -> None:
    before = read(served)
    for start in range(8):
        generate(served, input_ids=[(start * 37 + i) % 250 for i in range(900)])
    assert grown(before, read(served), "evicted_tokens_total") > 1000


def test_a_tenant_is_a_label_only_where_its_key_is_known(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"name": "ann", "key": "ann-key"}, {"name": "ben", "key": "b"}]))
    config = Config.of(api_keys_file=str(keys), admin_api_key="root")
    with serve_text(tmp_path, config) as served:
        served.client.headers["Authorization"] = "Bearer root"
        for key in ("ann-key", "nobody's", "made up"):
            served.client.post(
                "/generate", json={"text": "a", "sampling_params": GREEDY},
                headers={"Authorization": f"Bearer {key}"},
            )  # fmt: skip
        found = read(served)
        tenants = {labels for name, labels in found if name == "tenant_requests_total"}
        assert tenants <= {"tenant=ann", "tenant=admin"}
        assert found["tenant_requests_total", "tenant=ann"] == 1
        assert found["tenant_tokens_total", "tenant=ann"] == 7
        body = {"input": "a", "background": True, "max_output_tokens": 5, "ignore_eos": True}
        served.client.headers["Authorization"] = "Bearer ann-key"
        answer = served.client.post("/v1/responses", json=body).json()
        deadline = time.monotonic() + 60
        while answer["status"] in ("queued", "in_progress"):
            assert time.monotonic() < deadline
            answer = served.client.get(f"/v1/responses/{answer['id']}").json()
        served.client.headers["Authorization"] = "Bearer root"
        spent = read(served)["tenant_tokens_total", "tenant=ann"] - 7
        assert spent > 5
        assert spent == read(served)["prompt_tokens_total", ""] - 1 + 5
        assert found["http_requests_total", "route=/generate,status=401"] == 2


def expressions(node: Any) -> Iterator[str]:
    """Every query of a dashboard."""
    if isinstance(node, dict):
        if isinstance(node.get("expr"), str):
            yield node["expr"]
        for value in node.values():
            yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


def test_the_dashboard_asks_for_what_there_is(served: Served) -> None:
    generate(served, text="f")
    samples = [
        (sample.name, set(sample.labels))
        for family in text_string_to_metric_families(served.client.get("/metrics").text)
        for sample in family.samples
    ]
    labels: dict[str, set[str]] = {}
    for name, names in samples:
        labels[name] = labels.get(name, set()) | names
    queries = list(expressions(json.loads(DASHBOARD.read_text())))
    assert len(queries) >= 15
    for query in queries:
        read = re.findall(r"sglang:\w+", query)
        assert read, query
        assert not [name for name in read if name not in labels], query
        for group in re.findall(r"by \(([^)]*)\)", query):
            wanted = {label.strip() for label in group.split(",")}
            assert wanted <= labels[read[0]], query


def test_what_failed_at_the_start_is_shown(tmp_path: Path) -> None:
    facts: dict[str, Any] = {
        "attention": "triton",
        "graph_rows": 64,
        "fallbacks": ("flashinfer failed", "less"),
    }
    with serve_text(tmp_path, **facts) as served:
        values = read(served)
        info = served.client.get("/get_server_info").json()
    assert values["cuda_graph_max_rows", ""] == 64.0
    assert values["num_fallbacks", ""] == 2.0
    assert {name: info[name] for name in facts} == {**facts, "fallbacks": [*facts["fallbacks"]]}
