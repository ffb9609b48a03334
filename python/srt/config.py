"""Config: every setting of the runtime, frozen and nested; each part receives only its section.

The command line, ``sglang.Engine(...)`` and ``sglang.Runtime(...)`` are derived from these fields:
a field is a flag (``max_running_requests`` is ``--max-running-requests``), its help is beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

POLICIES = ("lpm", "dfs-weight", "fcfs", "random", "priority")
LOAD_FORMATS = ("auto", "safetensors", "dummy")
DTYPES = ("auto", "float32", "bfloat16", "float16")
GRAMMAR_BACKENDS = ("auto", "fsm", "interegular", "llguidance", "outlines")
JUMP_FORWARD = ("exact", "string", "off")
LOG_LEVELS = ("debug", "info", "warning", "error")


def flag(
    default: Any,
    help: str,
    *,
    choices: Sequence[Any] | None = None,
    type: Any = None,
    alias: str | None = None,
) -> Any:
    """A dataclass field that is also a command-line flag."""
    meta = {"help": help, "choices": choices, "type": type, "alias": alias}
    return field(default=default, metadata=meta)


@dataclass(frozen=True)
class ModelConfig:
    """Which weights, read how, on what device."""

    model_path: str = flag("", "local directory or hub id; omitted: the embedded sglang-tiny")
    tokenizer_path: str = flag("", "directory or hub id of the tokenizer, if not the model's")
    revision: str = flag("", "hub revision: a branch, tag or commit")
    load_format: str = flag("auto", "dummy draws random weights", choices=LOAD_FORMATS)
    dtype: str = flag("auto", "auto: the checkpoint's", choices=DTYPES)
    device: str = flag("auto", "auto: cuda where there is one, else cpu")
    context_length: int = flag(0, "longest sequence in tokens; 0: the model's", type=int)
    random_seed: int = flag(0, "seed for dummy weights and for requests without one", type=int)
    attention_backend: str = flag("native", "attention implementation", choices=("native",))
    threads: int = flag(0, "CPU threads for tensor work; 0: torch's choice", type=int)


@dataclass(frozen=True)
class MemoryConfig:
    """The KV cache."""

    page_size: int = flag(1, "tokens a page", type=int)
    max_total_tokens: int = flag(0, "KV cache size in tokens; 0: by memory", type=int)
    mem_fraction_static: float = flag(
        0.0, "share of memory for weights and KV; 0: 0.85 on a GPU, 0.3 on a CPU", type=float
    )
    disable_radix_cache: bool = flag(False, "keep no KV between requests")


@dataclass(frozen=True)
class ScheduleConfig:
    """Who runs when."""

    schedule_policy: str = flag("lpm", "order of waiting requests", choices=POLICIES)
    max_running_requests: int = flag(256, "requests computed at once", type=int)
    max_queued_requests: int = flag(4096, "requests waiting before 429", type=int)
    chunked_prefill_size: int = flag(2048, "prompt tokens a pass; -1: unlimited", type=int)
    max_overtakes: int = flag(
        128, "later arrivals a waiting request lets pass before it goes first", type=int
    )


@dataclass(frozen=True)
class GrammarConfig:
    """Constrained decoding."""

    grammar_backend: str = flag(
        "auto",
        "what carries constraints; auto: the compressed FSM for regexes, llguidance for the rest",
        choices=GRAMMAR_BACKENDS,
    )
    jump_forward: str = flag(
        "exact",
        "forced text in one pass; string: retokenised and unverified, as in the SGLang paper",
        choices=JUMP_FORWARD,
    )
    disable_jump_forward: bool = flag(False, "the same as --jump-forward off")
    constrained_json_whitespace_pattern: str = flag(
        "", "regex allowed between two tokens of JSON; default: none, JSON is compact"
    )

    @property
    def jumps(self) -> str:
        """How forced text is written: "exact", "string" or "off"."""
        return "off" if self.disable_jump_forward else self.jump_forward


@dataclass(frozen=True)
class ServerConfig:
    """HTTP."""

    host: str = flag("127.0.0.1", "address to listen on")
    port: int = flag(30000, "port to listen on", type=int)
    api_key: str = flag("", "required as 'Authorization: Bearer KEY' on every route, if set")
    served_model_name: str = flag("", "name shown by /v1/models; default: the model path")
    chat_template: str = flag("", "path of a jinja2 chat template, if not the model's own")
    stream_interval: int = flag(1, "tokens between two stream chunks", type=int)
    log_level: str = flag("info", "least severe messages logged", choices=LOG_LEVELS)
    log_requests: bool = flag(False, "log one line a request")
    skip_server_warmup: bool = flag(False, "report ready without a first forward pass")
    enable_metrics: bool = flag(True, "accepted for compatibility: /metrics is always served")
    max_body_bytes: int = flag(16 << 20, "largest request body", type=int)


@dataclass(frozen=True)
class Config:
    """All sections. ``Config.of(port=1, page_size=16)`` finds each name's section."""

    model: ModelConfig = field(default_factory=ModelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    grammar: GrammarConfig = field(default_factory=GrammarConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

    @staticmethod
    def of(**settings: Any) -> Config:
        """Raises TypeError for an unknown name or a value of the wrong type, ValueError for a
        value out of range.
        """
        sections: dict[str, dict[str, Any]] = {name: {} for name, _ in _sections()}
        where = {f.name: name for name, cls in _sections() for f in dataclasses.fields(cls)}
        for name, value in settings.items():
            if name not in where:
                near = difflib.get_close_matches(name, where, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"unknown setting {name!r}{hint}")
            sections[where[name]][name] = value
        config = Config(**{name: cls(**sections[name]) for name, cls in _sections()})
        config.verify()
        return config

    def verify(self) -> None:
        """Raise TypeError or ValueError, naming the flag, its value and its limit."""
        for name, cls in _sections():
            for f in dataclasses.fields(cls):
                value, choices = getattr(getattr(self, name), f.name), f.metadata["choices"]
                _verify_type(f, value)
                if choices and value not in choices:
                    raise ValueError(f"{_flag(f.name)} is {value!r}; use one of {choices}")
        chunk = self.schedule.chunked_prefill_size
        checks = [
            ("page_size", self.memory.page_size, self.memory.page_size >= 1, "at least 1"),
            ("max_total_tokens", self.memory.max_total_tokens,
             self.memory.max_total_tokens >= 0, "0 or more"),
            ("mem_fraction_static", self.memory.mem_fraction_static,
             0 <= self.memory.mem_fraction_static < 1, "in [0, 1)"),
            ("context_length", self.model.context_length,
             self.model.context_length >= 0, "0 or more"),
            ("max_running_requests", self.schedule.max_running_requests,
             self.schedule.max_running_requests >= 1, "at least 1"),
            ("max_queued_requests", self.schedule.max_queued_requests,
             self.schedule.max_queued_requests >= 1, "at least 1"),
            ("chunked_prefill_size", chunk, chunk >= 1 or chunk == -1, "at least 1, or -1"),
            ("max_overtakes", self.schedule.max_overtakes,
             self.schedule.max_overtakes >= 0, "0 or more"),
            ("port", self.server.port, 0 <= self.server.port < 65536, "in [0, 65535]"),
            ("stream_interval", self.server.stream_interval,
             self.server.stream_interval >= 1, "at least 1"),
            ("max_body_bytes", self.server.max_body_bytes,
             self.server.max_body_bytes >= 1, "at least 1"),
            ("threads", self.model.threads, self.model.threads >= 0, "0 or more"),
        ]  # fmt: skip
        for name, value, good, limit in checks:
            if not good:
                raise ValueError(f"{_flag(name)} is {value}; it must be {limit}")

    def settings(self) -> Mapping[str, Any]:
        """All settings by name, without sections."""
        return {
            f.name: getattr(getattr(self, name), f.name)
            for name, cls in _sections()
            for f in dataclasses.fields(cls)
        }


def _sections() -> Iterator[tuple[str, Any]]:
    yield from (
        ("model", ModelConfig),
        ("memory", MemoryConfig),
        ("schedule", ScheduleConfig),
        ("grammar", GrammarConfig),
        ("server", ServerConfig),
    )


def _verify_type(f: dataclasses.Field[Any], value: Any) -> None:
    wanted = type(f.default)
    accepted = (int, float) if wanted is float else (wanted,)
    # bool is an int to isinstance: max_running_requests=True is a mistake all the same.
    if not isinstance(value, accepted) or (isinstance(value, bool) and wanted is not bool):
        raise TypeError(f"{_flag(f.name)} is {value!r}; it must be of type {wanted.__name__}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag a field, grouped by section."""
    for name, cls in _sections():
        group = parser.add_argument_group(name, (cls.__doc__ or "").strip())
        for f in dataclasses.fields(cls):
            meta = f.metadata
            names = [_flag(f.name)] + ([meta["alias"]] if meta["alias"] else [])
            if isinstance(f.default, bool):
                group.add_argument(*names, help=meta["help"], default=f.default,
                                   action=argparse.BooleanOptionalAction)  # fmt: skip
            else:
                shown = "" if f.default in ("", None) else f" (default: {f.default})"
                metavar = None if meta["choices"] else f.name.split("_")[-1].upper()
                group.add_argument(*names, help=meta["help"] + shown, default=f.default,
                                   type=meta["type"] or str, choices=meta["choices"],
                                   metavar=metavar)  # fmt: skip


def from_arguments(namespace: argparse.Namespace) -> Config:
    """The Config of a parsed command line. Raises ValueError as ``Config.of`` does."""
    names = {f.name for _, cls in _sections() for f in dataclasses.fields(cls)}
    return Config.of(**{k: v for k, v in vars(namespace).items() if k in names})
