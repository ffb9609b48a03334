"""The Helm chart: what it renders is valid, and names only flags, paths and metrics that exist."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from helpers.go_template import Chart, TemplateFailure
from helpers.paths import ROOT
from jsonschema import Draft7Validator
from sglang.srt.commands import drain_command
from sglang.srt.config import Config, add_arguments, from_arguments
from sglang.srt.config.command_line import Parser
from sglang.srt.web.routes import ROUTES
from sglang.srt.web.telemetry.engine_metrics import EngineMetrics, MetricFamilies

DIRECTORY = ROOT / "deploy" / "helm" / "sglang"
CHART = Chart(DIRECTORY)
SCHEMA = Draft7Validator(json.loads((DIRECTORY / "values.schema.json").read_text(encoding="utf-8")))
IMAGE = {"image": {"repository": "models.example/sglang", "tag": "1"}}
ALL = {
    **IMAGE,
    "model": {"path": "/models/one", "servedName": "one"},
    "server": {"port": 31000, "extraArgs": ["--page-size", "16"],
               "env": [{"name": "A", "value": "b"}]},
    "keysSecret": "keys",
    "autoscaling": {"enabled": True},
    "inferencePool": {"enabled": True, "picker": {"name": "epp"}},
    "kvEvents": {"enabled": True},
    "imagePullSecrets": [{"name": "pull"}],
    "podLabels": {"team": "a"}, "podAnnotations": {"note": "b"}, "nodeSelector": {"gpu": "yes"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}], "affinity": {"nodeAffinity": {}},
    "volumes": [{"name": "m", "emptyDir": {}}],
    "volumeMounts": [{"name": "m", "mountPath": "/models"}],
    "resources": {"limits": {"cpu": "4"}}, "serviceAccountName": "runner",
}  # fmt: skip
GROUPS = {"nodes": 2, "server": {"extraArgs": ["--tp-size", "2"]}}


def values(*changes: dict[str, Any]) -> dict[str, Any]:
    """The chart's own values with changes, merged as Helm does."""
    found = yaml.safe_load((DIRECTORY / "values.yaml").read_text(encoding="utf-8"))

    def merge(into: dict[str, Any], change: dict[str, Any]) -> None:
        for name, value in change.items():
            if isinstance(value, dict) and isinstance(into.get(name), dict):
                merge(into[name], value)
            else:
                into[name] = copy.deepcopy(value)

    for change in changes:
        merge(found, change)
    SCHEMA.validate(found)
    return found


def rendered(*changes: dict[str, Any]) -> dict[str, Any]:
    return CHART.render(values(*changes))


def templates(objects: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods' templates, the serving one first."""
    if "Deployment" in objects:
        return [objects["Deployment"]["spec"]["template"]]
    group = objects["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def containers(objects: dict[str, Any]) -> list[dict[str, Any]]:
    found = [template["spec"]["containers"] for template in templates(objects)]
    assert all(len(one) == 1 for one in found)
    return [container for [container] in found]


CASES: list[tuple[dict[str, Any], ...]] = [(IMAGE,), (ALL,), (IMAGE, GROUPS), (ALL, GROUPS)]


def test_one_node_is_a_deployment_several_a_leader_worker_set() -> None:
    plain = {"Service", "PodDisruptionBudget"}
    extra = {"HorizontalPodAutoscaler", "InferencePool"}
    assert [set(rendered(*case)) for case in CASES] == [
        {"Deployment", *plain}, {"Deployment", *plain, *extra},
        {"LeaderWorkerSet", *plain}, {"LeaderWorkerSet", *plain, *extra},
    ]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_server_takes_every_flag_of_the_chart(case: tuple[dict[str, Any], ...]) -> None:
    for rank, container in enumerate(containers(rendered(*case))):
        assert container["command"] == ["sglang"]
        assert container["args"][0] == "serve"
        words = [
            word.replace("$(LWS_LEADER_ADDRESS)", "leader").replace("$(LWS_WORKER_INDEX)", "1")
            for word in container["args"]
        ]
        assert not any("$(" in word for word in words)
        parser = Parser()
        add_arguments(parser)
        config: Config = from_arguments(parser.parse_args(words[1:]))
        assert config.server.host == "0.0.0.0"
        assert config.operations.drain_timeout == 120
        assert config.kv_events.settings.enabled == (case[0] is ALL)
        assert config.parallel.node_rank == rank
        assert config.parallel.nnodes == (2 if GROUPS in case else 1)


@pytest.mark.parametrize("case", CASES)
def test_every_probe_and_hook_exists(case: tuple[dict[str, Any], ...]) -> None:
    paths = {route.path for route in ROUTES if route.method == "GET"}
    objects = rendered(*case)
    serving, *workers = containers(objects)
    ports = {port["name"]: port["containerPort"] for port in serving["ports"]}
    for name, path in (
        ("startupProbe", "/startupz"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz"),
    ):  # fmt: skip
        assert serving[name]["httpGet"] == {"path": path, "port": "http"}
        assert path in paths
    assert f"--port={ports['http']}" in serving["args"]
    for container in (serving, *workers):
        shell, flag, line = container["lifecycle"]["preStop"]["exec"]["command"]
        assert (shell, flag) == ("sh", "-c")
        sleep, command = line.split("; ")
        assert sleep == "sleep 5"
        program, verb, *words = command.split()
        assert (program, verb) == ("sglang", "drain")
        parser = Parser()
        drain_command.add_parser_arguments(parser)
        parsed = parser.parse_args(words)
        assert parsed.wait
        assert parsed.url.endswith(f":{ports['http']}")
    for annotation in [templates(objects)[0]["metadata"]["annotations"]]:
        assert annotation["prometheus.io/path"] in paths
        assert annotation["prometheus.io/port"] == str(ports["http"])


@pytest.mark.parametrize("case", CASES)
def test_selectors_find_the_serving_pods_alone(case: tuple[dict[str, Any], ...]) -> None:
    objects = rendered(*case)
    serving, *others = [template["metadata"]["labels"] for template in templates(objects)]
    selectors = [objects["Service"]["spec"]["selector"]]
    selectors.append(objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])
    if "Deployment" in objects:
        selectors.append(objects["Deployment"]["spec"]["selector"]["matchLabels"])
    if "InferencePool" in objects:
        pool = objects["InferencePool"]["spec"]
        selectors.append(pool["selector"]["matchLabels"])
        assert f"--port={pool['targetPorts'][0]['number']}" in containers(objects)[0]["args"]
    for selector in selectors:
        assert selector.items() <= serving.items()
        assert not any(selector.items() <= labels.items() for labels in others)


@pytest.mark.parametrize("case", CASES)
def test_the_grace_is_longer_than_the_drain(case: tuple[dict[str, Any], ...]) -> None:
    for template in templates(rendered(*case)):
        assert template["spec"]["terminationGracePeriodSeconds"] > 5 + 120
    with pytest.raises(TemplateFailure, match=r"is 140; it must be more than 140.*: raise it"):
        rendered(*case, {"terminationGracePeriodSeconds": 140})
    with pytest.raises(TemplateFailure, match="is 150; it must be more than 320"):
        rendered(*case, {"drain": {"timeoutSeconds": 300}})


def test_the_autoscaler_reads_metrics_that_exist() -> None:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    EngineMetrics(MetricFamilies(registry, "one"))
    names = {family.name.replace(":", "_") for family in registry.collect()}
    scaler = rendered(ALL)["HorizontalPodAutoscaler"]["spec"]
    metrics = [metric["pods"]["metric"]["name"] for metric in scaler["metrics"]]
    assert metrics == ["sglang_num_queue_reqs", "sglang_token_usage"]
    assert names >= set(metrics)
    assert "replicas" not in rendered(ALL)["Deployment"]["spec"]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TemplateFailure, match=r"image\.repository is empty; name an image"):
        rendered()
    with pytest.raises(TemplateFailure, match=r"picker\.name is empty; name the Service"):
        rendered(IMAGE, {"inferencePool": {"enabled": True}})


@pytest.mark.parametrize(
    "wrong",
    [{"nodes": 0}, {"server": {"port": 70000}}, {"drain": {"timeoutSeconds": -1}},
     {"server": {"extraArgs": "--tp-size 2"}}, {"unknown": 1}, {"model": {"name": "x"}},
     {"inferencePool": {"failureMode": "open"}}, {"kvEvents": {"topic": "it's"}}],
)  # fmt: skip
def test_wrong_values_do_not_fit_the_schema(wrong: dict[str, Any]) -> None:
    found = yaml.safe_load((DIRECTORY / "values.yaml").read_text(encoding="utf-8"))
    for name, value in wrong.items():
        found[name] = {**found.get(name, {}), **value} if isinstance(value, dict) else value
    assert list(SCHEMA.iter_errors(found))


def test_the_schema_knows_every_value() -> None:
    def compared(schema: dict[str, Any], given: Any) -> None:
        if isinstance(given, dict) and "properties" in schema:
            assert set(given) <= set(schema["properties"])
            for name, value in given.items():
                compared(schema["properties"][name], value)

    Draft7Validator.check_schema(SCHEMA.schema)
    compared(SCHEMA.schema, values())
