"""A standalone engine that serves fronts (servers) on any machine: main of ``sglang engine``.

bound      the engine listens; an address in use ends the start before a model is read
loading    fronts may connect; they are answered once the model is loaded
serving    the first line of standard output was printed
(ended)    by a signal, or because the device was lost; every front gets a last frame
"""

from __future__ import annotations

import gc
import logging
import shutil
import signal
import sys
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from sglang.srt.config import Config
from sglang.srt.engine.admission import make_compiler
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import local_executor
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.process import run_to_end
from sglang.srt.engine.speculation_setup import make_drafts
from sglang.srt.files.file_digests import model_files, sampled_bytes
from sglang.srt.files.location import locate
from sglang.srt.remote.curve_keys import EngineKeys
from sglang.srt.remote.fronts import FrontLimits, Fronts
from sglang.srt.remote.fronts_channel import FrontsChannel, new_boot
from sglang.srt.remote.handshake import (
    DIGITS,
    EngineFacts,
    arithmetic_of,
    messages_digest,
    vocabulary_digest,
)
from sglang.srt.system.processes import socket_directory
from sglang.srt.tokenizer import Tokenizer

log = logging.getLogger("sglang.srt.remote")


class Listening(NamedTuple):
    """Address of an engine, its keys and its limits."""

    address: str
    keys: EngineKeys | None
    heartbeat: float
    limits: FrontLimits


def serve_engine(config: Config, listening: Listening) -> int:
    """Load the model, then serve fronts until a signal. Return the exit code.

    Raises OSError if the address cannot be bound, and ValueError and other errors of
    ``local_executor`` if the model cannot be loaded.
    """
    channel = FrontsChannel(listening.address, listening.keys, listening.heartbeat)
    directory = socket_directory("wire")
    try:
        engine, facts = load(config, directory)
        channel.open(Fronts(facts, engine.store.contexts, listening.limits, new_boot()))
        try:
            return run(engine, channel)
        finally:
            engine.close()
    finally:
        channel.close()
        shutil.rmtree(directory, ignore_errors=True)


def load(config: Config, directory: Path) -> tuple[EngineCore, EngineFacts]:
    """Load the engine of a configuration; return the engine and its facts. ``directory``: for the
    sockets of the engine's ranks."""
    model = config.model
    tokenizer = Tokenizer.load(model.tokenizer_path or model.model_path, model.revision)
    executor, info = local_executor(config, directory)
    drafts, info = make_drafts(config, info)
    grammars = make_compiler(config, info, tokenizer.vocabulary)
    engine = EngineCore(
        executor, info, config.schedule, tokenizer.token_bytes,
        share=not config.memory.disable_radix_cache, seed=model.random_seed, grammars=grammars,
        jumps=config.grammar.jumps, drafts=drafts,
    )  # fmt: skip
    if grammars is not None:
        grammars.warm()
    return engine, facts_of(config, info, tokenizer.token_bytes)


def facts_of(config: Config, info: EngineInfo, token_bytes: Sequence[bytes]) -> EngineFacts:
    """Return the facts that fronts get about an engine. Raises OSError if a file of the model
    cannot be read."""
    return EngineFacts(
        model=model_digest(config),
        vocabulary=vocabulary_digest(token_bytes),
        arithmetic=arithmetic_of(config, info),
        info=info,
        messages=messages_digest(),
    )


def model_digest(config: Config) -> str:
    """Return a digest of samples of the model's files. For random weights (load format "dummy") the
    seed takes the place of the weights. Raises OSError."""
    settings = config.model
    dummy = settings.load_format == "dummy"
    digest = sha256(f"dummy {settings.random_seed}".encode() if dummy else b"")
    for path in model_files(locate(settings.model_path, settings.revision), not dummy):
        digest.update(sampled_bytes(path))
    return digest.hexdigest()[:DIGITS]


def run(engine: EngineCore, channel: FrontsChannel) -> int:
    """Serve until a signal, or until the device is lost. Return the exit code. The first line of
    standard output means that fronts are answered now."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has SIGHUP
            signal.signal(number, partial(_stop, channel))
    info = engine.info
    name = info.model_path or info.architecture
    print(f"sglang engine {name} at {channel.address} - {info.capacity} KV tokens", flush=True)
    gc.collect()
    gc.freeze()  # exclude the loaded objects from all later collections
    try:
        code = run_to_end(engine, channel)
    except Exception as error:
        log.exception("the engine died")
        channel.end_all(f"it died: {type(error).__name__}: {error}")
        return 1
    if code:
        channel.end_all("its device was lost")
    return code


def _stop(channel: FrontsChannel, number: int, _: object) -> None:
    """Handle a signal: end after this step; on a second signal exit at once."""
    if channel.stopping:
        sys.exit(128 + number)
    channel.stopping = f"it was stopped ({signal.Signals(number).name})"
