"""Config: every setting of the runtime, frozen and nested. Each part of the runtime gets only its
section.

The command line, ``sglang.Engine(...)`` and ``sglang.Runtime(...)`` are derived from these fields.
A field is a flag (``max_running_requests`` is ``--max-running-requests``), and its help text is
declared with it.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.config.applications_section import ApplicationsConfig
from sglang.srt.config.batches_section import BatchesConfig
from sglang.srt.config.inferlets_section import InferletsConfig
from sglang.srt.config.kv_events_section import KvEventsConfig
from sglang.srt.config.parallel_section import ParallelConfig
from sglang.srt.config.program_gate_section import ProgramGateConfig
from sglang.srt.config.routing_section import RoutingConfig
from sglang.srt.config.sections import (
    JSON_WHITESPACE,
    EdgeConfig,
    GrammarConfig,
    LoraConfig,
    MediaConfig,
    MemoryConfig,
    ModelConfig,
    OperationsConfig,
    ScheduleConfig,
    ServerConfig,
    SpeculationConfig,
    ToolboxConfig,
)
from sglang.srt.config.translation import FLAGS, add_upstream_arguments, translate
from sglang.srt.config.translation import option as _flag
from sglang.srt.config.upstream import ABSENT_VALUES, MEANS, VALUES
from sglang.srt.core.nearest import nearest

log = logging.getLogger("sglang.srt.config")

__all__ = [
    "JSON_WHITESPACE",
    "ApplicationsConfig",
    "BatchesConfig",
    "Config",
    "EdgeConfig",
    "GrammarConfig",
    "InferletsConfig",
    "KvEventsConfig",
    "LoraConfig",
    "MediaConfig",
    "MemoryConfig",
    "ModelConfig",
    "OperationsConfig",
    "ParallelConfig",
    "ProgramGateConfig",
    "RoutingConfig",
    "ScheduleConfig",
    "ServerConfig",
    "SpeculationConfig",
    "ToolboxConfig",
    "add_arguments",
    "from_arguments",
]
_SECRET = ("api_key", "admin_api_key", "ssl_keyfile_password")
_NEVER_EMPTY = {
    "model_path": "leave it out for the embedded sglang-tiny",
    "host": "give an address; 0.0.0.0 is every address of this machine",
    "api_key": "give a key, or leave it out for a server that is open to everybody",
    "admin_api_key": "give a key, or leave it out",
    "api_keys_file": "give a path, or leave it out for a server without such keys",
    "allowed_hosts": "give names, or leave it out",
    "allowed_media_domains": "give hosts, or leave it out",
    "served_model_name": "give a name, or leave it out for the model's path",
    "ssl_certfile": "give a path, or leave it out for a server without TLS",
    "ssl_ca_certs": "give a path, or leave it out for clients without a certificate",
}
"""Flags whose empty value, as of a variable that is not set, would open a door or be taken for no
value, and what to do."""
_POSITIVE = (
    "max_connections", "max_header_bytes", "header_timeout", "body_timeout", "keep_alive_timeout",
    "stream_write_timeout",
)  # fmt: skip


@dataclass(frozen=True)
class Config:
    """All sections. ``Config.of(port=1, page_size=16)`` finds the section of each name."""

    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    grammar: GrammarConfig = field(default_factory=GrammarConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    edge: EdgeConfig = field(default_factory=EdgeConfig)
    operations: OperationsConfig = field(default_factory=OperationsConfig)
    toolbox: ToolboxConfig = field(default_factory=ToolboxConfig)
    programs: ProgramGateConfig = field(default_factory=ProgramGateConfig)
    applications: ApplicationsConfig = field(default_factory=ApplicationsConfig)
    routing: RoutingConfig = field(default_factory=RoutingConfig)
    kv_events: KvEventsConfig = field(default_factory=KvEventsConfig)
    inferlets: InferletsConfig = field(default_factory=InferletsConfig)
    batches: BatchesConfig = field(default_factory=BatchesConfig)

    @staticmethod
    def of(**settings: Any) -> Config:
        """Return a Config of settings, which may have their names here or upstream's. One warning
        lists the settings without effect.

        Raises TypeError for an unknown name or a value of the wrong type. Raises ValueError for a
        value out of range, or of a feature that does not exist here.
        """
        settings, notes = translate(settings)
        if notes:
            log.warning("accepted, and without effect here: %s", "; ".join(notes))
        sections: dict[str, dict[str, Any]] = {name: {} for name, _ in _sections()}
        where = {f.name: name for name, cls in _sections() for f in dataclasses.fields(cls)}
        several = {
            f.name: f.metadata["choices"] is not None
            for _, cls in _sections()
            for f in dataclasses.fields(cls)
            if isinstance(f.default, tuple)
        }
        for name, value in settings.items():
            if name not in where:
                meant = nearest(name, where)
                hint = f"; did you mean {meant!r}?" if meant else ""
                raise TypeError(f"unknown setting {name!r}{hint}")
            if name in several:
                value = _several(value, commas=several[name])
            sections[where[name]][name] = value
        config = Config(**{name: cls(**sections[name]) for name, cls in _sections()})
        config.verify()
        return config

    def verify(self) -> None:
        """Raise TypeError or ValueError with the flag, its value and its limit, if a value is
        invalid."""
        for name, cls in _sections():
            for f in dataclasses.fields(cls):
                value, choices = getattr(getattr(self, name), f.name), f.metadata["choices"]
                _verify_type(f, value)
                if isinstance(value, tuple) and choices:
                    _verify_names(f, value)
                elif choices and value not in choices:
                    raise ValueError(f"{_flag(f.name)} is {value!r}; use one of {choices}")
        chunk = self.schedule.chunked_prefill_size
        checks = [
            ("page_size", self.memory.page_size, self.memory.page_size >= 1, "at least 1"),
            ("max_total_tokens", self.memory.max_total_tokens,
             self.memory.max_total_tokens >= 0, "0 or more"),
            ("mem_fraction_static", self.memory.mem_fraction_static,
             0 <= self.memory.mem_fraction_static < 1, "in [0, 1)"),
            ("hicache_ratio", self.memory.hicache_ratio,
             0 < self.memory.hicache_ratio <= 1e9, "above 0, and at most 1e9"),
            ("hicache_size", self.memory.hicache_size,
             0 <= self.memory.hicache_size <= 1e9, "from 0 to 1e9"),
            ("hicache_storage_size", self.memory.hicache_storage_size,
             0 <= self.memory.hicache_storage_size <= 1e9, "from 0 to 1e9"),
            ("context_length", self.model.context_length,
             self.model.context_length >= 0, "0 or more"),
            ("random_seed", self.model.random_seed,
             -(2**63) <= self.model.random_seed < 2**63, "a whole number of 64 bits"),
            ("max_running_requests", self.schedule.max_running_requests,
             self.schedule.max_running_requests >= 1, "at least 1"),
            ("max_queued_requests", self.schedule.max_queued_requests,
             self.schedule.max_queued_requests >= 1, "at least 1"),
            ("chunked_prefill_size", chunk, chunk >= 1 or chunk == -1, "at least 1, or -1"),
            ("max_overtakes", self.schedule.max_overtakes,
             self.schedule.max_overtakes >= 0, "0 or more"),
            ("latency_target_ms", self.schedule.latency_target_ms,
             0 < self.schedule.latency_target_ms <= 1e9, "above 0, and at most 1e9"),
            ("port", self.server.port, 0 <= self.server.port < 65536, "in [0, 65535]"),
            ("stream_interval", self.server.stream_interval,
             self.server.stream_interval >= 1, "at least 1"),
            ("max_body_bytes", self.server.max_body_bytes,
             self.server.max_body_bytes >= 1, "at least 1"),
            ("max_tokenized_bytes", self.server.max_tokenized_bytes,
             self.server.max_tokenized_bytes >= 1, "at least 1"),
            ("response_store_bytes", self.server.response_store_bytes,
             self.server.response_store_bytes >= 0, "0 or more"),
            ("max_parked_per_key", self.server.max_parked_per_key,
             self.server.max_parked_per_key >= 0, "0 or more"),
            ("max_parked_bytes", self.server.max_parked_bytes,
             self.server.max_parked_bytes >= 0, "0 or more"),
            ("threads", self.model.threads, self.model.threads >= 0, "0 or more"),
            ("cuda_graph_max_bs", self.model.cuda_graph_max_bs,
             self.model.cuda_graph_max_bs >= 1, "at least 1"),
            ("max_engine_restarts", self.operations.max_engine_restarts,
             self.operations.max_engine_restarts >= 0, "0 or more"),
            ("max_resumes", self.operations.max_resumes,
             self.operations.max_resumes >= 0, "0 or more"),
            ("watchdog_timeout", self.operations.watchdog_timeout,
             0 <= self.operations.watchdog_timeout < math.inf, "0 or more, and finite"),
            ("drain_timeout", self.operations.drain_timeout,
             0 <= self.operations.drain_timeout <= 86400, "from 0 to 86400"),
            ("exit_with_parent", self.operations.exit_with_parent,
             self.operations.exit_with_parent >= 0, "0 or more"),
        ]  # fmt: skip
        for name in _POSITIVE:
            value = getattr(self.edge, name)
            checks.append((name, value, 0 < value < math.inf, "above 0, and finite"))
        for name, value, good, limit in checks:
            if not good:
                raise ValueError(f"{_flag(name)} is {value}; it must be {limit}")
        for section in (
            self.parallel, self.memory, self.grammar, self.speculation, self.media, self.toolbox,
            self.programs, self.applications, self.routing, self.kv_events, self.inferlets,
            self.batches,
            self.lora,
        ):  # fmt: skip
            section.verify()

    def public(self) -> Mapping[str, Any]:
        """Return the settings by name, without secrets."""
        return {name: value for name, value in self.settings().items() if name not in _SECRET}

    def settings(self) -> Mapping[str, Any]:
        """Return all settings by name, without sections."""
        return {
            f.name: getattr(getattr(self, name), f.name)
            for name, cls in _sections()
            for f in dataclasses.fields(cls)
        }


def _sections() -> Iterator[tuple[str, Any]]:
    """Yield the name and class of each section."""
    for f in dataclasses.fields(Config):
        yield f.name, f.default_factory


def _several(value: Any, commas: bool) -> Any:
    """Return the entries of a setting that takes several. ``value`` is a list of texts, or a dict,
    whose entries become NAME=VALUE. ``commas``: the entries are names, and one text may have
    several of them."""
    if isinstance(value, Mapping):
        return tuple(f"{name}={entry}" for name, entry in value.items())
    if commas and isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, set, tuple)):
        return value
    if not commas or not all(isinstance(entry, str) for entry in value):
        return tuple(value)
    return tuple(name for entry in value for name in entry.replace(",", " ").split())


def _verify_names(f: dataclasses.Field[Any], names: tuple[str, ...]) -> None:
    known = f.metadata["choices"]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"{_flag(f.name)} names {', '.join(map(repr, unknown))}; known are {', '.join(known)}"
        )


def _verify_type(f: dataclasses.Field[Any], value: Any) -> None:
    wanted = type(f.default)
    accepted = (int, float) if wanted is float else (wanted,)
    # bool is an int to isinstance: max_running_requests=True is a mistake all the same.
    if not isinstance(value, accepted) or (isinstance(value, bool) and wanted is not bool):
        raise TypeError(f"{_flag(f.name)} is {value!r}; it must be of type {wanted.__name__}")
    if isinstance(value, tuple) and not all(isinstance(entry, str) for entry in value):
        raise TypeError(f"{_flag(f.name)} is {value!r}; it must be a list of texts")


def add_arguments(parser: argparse.ArgumentParser, sections: Sequence[str] = ()) -> None:
    """Add a flag for each field, grouped by section. Upstream's other flags are accepted but not
    shown in the help. ``sections``: names of the sections to add; by default all."""
    for name, cls in _sections():
        if sections and name not in sections:
            continue
        group = parser.add_argument_group(name, (cls.__doc__ or "").strip())
        for f in dataclasses.fields(cls):
            meta = f.metadata
            option = _flag(f.name)
            if isinstance(f.default, bool):
                group.add_argument(option, help=meta["help"], default=f.default,
                                   action=argparse.BooleanOptionalAction)  # fmt: skip
            else:
                shown = "" if f.default in ("", None, ()) else f" (default: {f.default})"
                choices, metavar = meta["choices"], None
                if f.name in VALUES or f.name in ABSENT_VALUES:  # Config.of knows more values
                    metavar = "{" + ",".join(choices) + "}" if choices else None
                    choices = None
                if choices and isinstance(f.default, tuple):  # names, with commas or without
                    metavar, choices = f"{{{','.join(choices)}}}", None
                if metavar is None and choices is None:
                    metavar = f.name.split("_")[-1].upper()
                several: dict[str, Any] = {"nargs": "*"} if isinstance(f.default, tuple) else {}
                default = argparse.SUPPRESS if f.name in _NEVER_EMPTY else f.default
                group.add_argument(option, help=meta["help"] + shown, default=default,
                                   type=meta["type"] or str, choices=choices,
                                   metavar=metavar, **several)  # fmt: skip
    types = {f.name: f.metadata["type"] for _, cls in _sections() for f in dataclasses.fields(cls)}
    add_upstream_arguments(parser, types)


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument ``MODEL`` without a flag, as in ``serve MODEL``: the same as ``--model-path
    MODEL``."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="the same as --model-path MODEL")


def from_arguments(namespace: argparse.Namespace) -> Config:
    """Return the Config of a parsed command line. Raises ValueError as ``Config.of`` does, and if
    ``MODEL`` and ``--model-path`` name two models."""
    model = getattr(namespace, "model", None)  # see add_model_argument
    if model is not None:
        path = getattr(namespace, "model_path", model)
        if path != model:
            raise ValueError(f"MODEL is {model!r} and --model-path is {path!r}; give one of them.")
        namespace.model_path = model
    for name, advice in _NEVER_EMPTY.items():
        value = vars(namespace).get(name)
        if value is not None and not value.strip(" \t\r\n,"):
            raise ValueError(f"{_flag(name)} is {value!r}; {advice}")
    names = {f.name for _, cls in _sections() for f in dataclasses.fields(cls)}
    names |= {*FLAGS, *MEANS}
    return Config.of(**{k: v for k, v in vars(namespace).items() if k in names})
