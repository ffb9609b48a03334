"""Handshake of a front (a server) and an engine: their facts, and the reasons for a refusal.

The front sends HELLO with its expectations. The engine compares them with its facts (``refusal``),
and answers WELCOME with its facts, or REFUSED with the reason, which both log. The front compares
again, because it may have a later version that knows more reasons.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec
from sglang.srt.config import Config
from sglang.srt.core.messages import Event, Verb
from sglang.srt.core.version import __version__
from sglang.srt.engine.info import EngineInfo
from sglang.srt.remote.remote_frames import PROTOCOL

DIGITS = 16  # hexadecimal digits of a digest


class Arithmetic(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that logits depend on besides the weights. Engines with equal arithmetic compute the
    same text for the same request, so a request may move between them unnoticed.

    Attributes:
        version: version of the package.
        kernels: instruction set of the native kernels of a CPU, or "torch".
        ranks: processes that share each layer: they change the order of sums.
    """

    version: str = __version__
    dtype: str = ""
    kv_cache_dtype: str = ""
    quantization: str = ""
    device: str = ""
    kernels: str = ""
    attention: str = ""
    ranks: int = 1


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of an engine that do not change while it runs.

    Attributes:
        model: digest of the model's files, or of the seed of random weights.
        vocabulary: digest of the bytes of every token id (``vocabulary_digest``).
        messages: digest of the schema of verbs and events (``messages_digest``).
    """

    model: str
    vocabulary: str
    arithmetic: Arithmetic
    info: EngineInfo
    protocol: int = PROTOCOL
    messages: str = ""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a front expects of an engine. "", 0 and None: any value.

    Use ``Expected(vocabulary=vocabulary_digest(tokenizer.token_bytes))`` for the first engine of a
    front, and ``Expected.like(first.facts)`` for its other engines.
    """

    vocabulary: str = ""
    model: str = ""
    purpose: str = ""
    context_length: int = 0
    arithmetic: Arithmetic | None = None

    @staticmethod
    def like(facts: EngineFacts) -> Expected:
        """Return the facts that the other engines of the front must have."""
        return Expected(
            vocabulary=facts.vocabulary,
            model=facts.model,
            purpose=facts.info.purpose,
            context_length=facts.info.context_length,
            arithmetic=facts.arithmetic,
        )


class FrontHello(msgspec.Struct, frozen=True, kw_only=True):
    """First frame of a front.

    Attributes:
        name: host and process of the front, for the log.
        messages: digest of the schema of verbs and events.
    """

    name: str
    expected: Expected
    messages: str
    version: str = __version__


class EngineWelcome(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of an engine that accepts the front. ``epoch``: number of the session."""

    epoch: int
    facts: EngineFacts


def arithmetic_of(config: Config, info: EngineInfo) -> Arithmetic:
    return Arithmetic(
        dtype=info.dtype,
        kv_cache_dtype=config.memory.kv_cache_dtype,
        quantization=info.quantization,
        device=info.device,
        kernels=info.kernels,
        attention=info.attention,
        ranks=config.parallel.tp_size,
    )


def vocabulary_digest(token_bytes: Sequence[bytes]) -> str:
    """Return a digest of the bytes of all token ids. Texts, stops and grammars depend on these."""
    digest = sha256()
    for token in token_bytes:
        digest.update(len(token).to_bytes(4, "big"))
        digest.update(token)
    return digest.hexdigest()[:DIGITS]


@cache
def messages_digest() -> str:
    """Return a digest of the schema of verbs and events, which changes with every field."""
    _, schema = msgspec.json.schema_components([list[Verb], list[Event]])
    data = json.dumps(_undescribed(schema), sort_keys=True)
    return sha256(data.encode()).hexdigest()[:DIGITS]


def _undescribed(schema: Any) -> Any:
    """Return a schema without its docstrings."""
    if isinstance(schema, dict):
        return {k: _undescribed(v) for k, v in schema.items() if k != "description"}
    return [_undescribed(item) for item in schema] if isinstance(schema, list) else schema


def mismatch(protocol: int, messages: str, version: str) -> str:
    """Return the reason why this end and the other end cannot communicate, "" if they can. The
    arguments are the other end's facts."""
    if protocol != PROTOCOL:
        return f"it speaks protocol {protocol} and this end {PROTOCOL}; use one version of sglang"
    if messages != messages_digest():
        return (
            f"its messages differ: it is version {version} ({messages}) and this end "
            f"{__version__} ({messages_digest()}); use one version of sglang"
        )
    return ""


def refusal(facts: EngineFacts, expected: Expected) -> str:
    """Return the reason why an engine cannot serve a front, "" if it can. Different arithmetic is
    no reason."""
    pairs = (
        ("vocabulary", facts.vocabulary, expected.vocabulary, "give both one tokenizer"),
        ("model", facts.model, expected.model, "give all engines one model"),
        ("purpose", facts.info.purpose, expected.purpose, "give all engines one model"),
        ("context length", facts.info.context_length, expected.context_length,
         "give all engines one --context-length"),
    )  # fmt: skip
    for name, found, wanted, advice in pairs:
        if wanted and found != wanted:
            return f"its {name} is {found} ({facts.info.model_path}) and not {wanted}; {advice}"
    return ""


def differences(facts: EngineFacts, expected: Expected) -> list[str]:
    """Return the facts of the arithmetic that differ, each as a text. If there are none, texts are
    equal."""
    if expected.arithmetic is None:
        return []
    found = msgspec.structs.asdict(facts.arithmetic)
    wanted = msgspec.structs.asdict(expected.arithmetic)
    return [f"{name} is {found[name]}, not {wanted[name]}" for name in found
            if found[name] != wanted[name]]  # fmt: skip
