"""Engines on a cluster, without one: resources, flags, and a machine that has no Ray."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from sglang.srt.commands import engine_command
from sglang.srt.config import Config, from_arguments
from sglang.srt.config.command_line import Parser
from sglang.srt.launchers.engines_on_ray import ClusterPlan, flags_of, run_on_ray
from sglang.srt.launchers.placement import EngineResources, missing
from sglang.srt.remote.curve_keys import write_keys

MACHINES = [{"CPU": 8.0}, {"CPU": 2.0, "GPU": 4.0}]


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (EngineResources(3, 4.0), "CPU: 12 on one machine, and the largest has 8"),
        (EngineResources(8, 0.25, 1.0), "GPU: 8 on one machine, and the largest has 4"),
        (EngineResources(5, 2.0, 1.0), "CPU: 10 on one machine, and the largest has 8; GPU: 5 on"),
        (EngineResources(4, 1.0, 1.0), "no machine has all of CPU 4, GPU 4"),
        (EngineResources(4, 1.0), "CPU 4 on one machine; of the cluster CPU 3.5 are free now"),
    ],
)
def test_what_is_missing_is_named(resources: EngineResources, reason: str) -> None:
    assert missing(resources.bundle, MACHINES, {"CPU": 3.5}).startswith(reason)


def test_a_cluster_without_machines() -> None:
    found = missing({"CPU": 1.0}, [], {})
    assert found == "CPU: 1 on one machine, and the largest has 0"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"threads": 2, "max_total_tokens": 4096, "model_path": "a b", "random_seed": -5},
        {"disable_radix_cache": True, "lora_paths": ("a=b", "c=d"), "mem_fraction_static": 0.5},
        {"tp_size": 2, "kv_cache_dtype": "int8", "log_level": "debug", "hicache_ratio": 3.0},
    ],
)
def test_flags_give_the_settings_that_they_were_made_of(settings: dict[str, Any]) -> None:
    config = Config.of(**settings)
    parser = Parser()
    engine_command.add_parser_arguments(parser)
    assert from_arguments(parser.parse_args(flags_of(config))) == config


def test_a_machine_without_ray_is_told_what_to_install(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = str(write_keys(tmp_path)[0])
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run_on_ray(Config(), ClusterPlan("auto", 1, keys, 1.0, [])) == 1
    assert "--launcher ray needs the extra ray: pip install -e '.[ray]'" in capsys.readouterr().err
