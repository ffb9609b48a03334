"""Served models: the model and its adapters under Ollama's names, and their facts.

A model's name in Ollama has a tag. On this server the tag is always ``latest``, and optional.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.web.ollama.ollama_bodies import OllamaModelBody
from sglang.srt.web.ollama.ollama_options import DEFAULTS

TAG = ":latest"
FOREVER = "9999-12-31T23:59:59Z"  # when a model that stays loaded is unloaded
_LEVELS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def model_of(runtime: EngineRuntime, body: OllamaModelBody) -> str:
    """Return the runtime's name of the body's model. Raises RequestError ``not_found`` for an
    unknown name."""
    given = body.model or body.name
    if not given:
        raise RequestError("model is missing; give the name of one of /api/tags.", "model")
    found = _known(runtime).get(given) or _known(runtime).get(given.removesuffix(TAG))
    if found is None:
        raise RequestError(
            f"model {given!r:.200} not found; this server has "
            f"{', '.join(map(tagged, _names(runtime))):.1000}.",
            "model",
            "not_found",
        )
    return found


def tagged(name: str) -> str:
    """Return a model's name with its tag, as Ollama's clients use it."""
    return name if ":" in name else f"{name}{TAG}"


def moment(seconds: float) -> str:
    """Convert seconds since the epoch to a text by RFC 3339."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")


def listed(runtime: EngineRuntime, started: int) -> list[dict[str, Any]]:
    """Return the models of /api/tags. ``started``: start of the server, in seconds since the
    epoch."""
    return [_card(runtime, name, _loaded_at(runtime, name, started)) for name in _names(runtime)]


def loaded(runtime: EngineRuntime) -> list[dict[str, Any]]:
    """Return the models of /api/ps. All served models are loaded, and none is ever unloaded."""
    info = runtime.info
    cards = []
    for card in listed(runtime, 0):
        del card["modified_at"]
        held = card["size"] if info.device.startswith("cuda") else 0
        more = {"expires_at": FOREVER, "size_vram": held, "context_length": info.context_length}
        cards.append({**card, **more})
    return cards


def described(runtime: EngineRuntime, name: str, started: int) -> dict[str, Any]:
    """Return the model of /api/show. Field ``parameters`` has the default options, one a line."""
    info, family = runtime.info, _family(runtime)
    return {
        "modelfile": f"FROM {info.model_path}\n",
        "parameters": "\n".join(f"{key} {value}" for key, value in DEFAULTS.items()),
        "template": runtime.tokenizer.chat_template or "",
        "details": _details(runtime, name),
        "model_info": {
            "general.architecture": family,
            "general.basename": runtime.model_name,
            "general.parameter_count": info.parameters,
            f"{family}.context_length": info.context_length,
            f"{family}.embedding_length": info.hidden_size,
            f"{family}.vocab_size": info.vocab_size,
        },
        "capabilities": list(_capabilities(runtime)),
        "modified_at": moment(_loaded_at(runtime, name, started)),
    }


def _names(runtime: EngineRuntime) -> list[str]:
    return [runtime.model_name, *runtime.adapters.known]


def _known(runtime: EngineRuntime) -> dict[str, str]:
    """Return the runtime's names of models by the names that requests may use."""
    adapters = runtime.adapters.known
    found = {runtime.info.model_path: runtime.model_name, runtime.model_name: runtime.model_name}
    found |= {f"{runtime.model_name}:{name}": name for name in adapters}
    return {**found, **{name: name for name in adapters}}


def _loaded_at(runtime: EngineRuntime, name: str, started: int) -> int:
    known = runtime.adapters.known
    return known[name][1] if name in known else started


def _card(runtime: EngineRuntime, name: str, modified: int) -> dict[str, Any]:
    info = runtime.info
    facts = f"{name}\n{info.model_path}\n{info.dtype}\n{info.quantization}\n{info.parameters}"
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": moment(modified),
        "size": info.weight_bytes,
        "digest": hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest(),
        "details": _details(runtime, name),
    }


def _details(runtime: EngineRuntime, name: str) -> dict[str, Any]:
    info, family = runtime.info, _family(runtime)
    plain = _LEVELS.get(info.dtype.removeprefix("torch."), info.dtype)
    gguf = info.quantization == "gguf" or info.model_path.endswith(".gguf")
    return {
        "parent_model": "" if name == runtime.model_name else tagged(runtime.model_name),
        "format": "gguf" if gguf else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": _counted(info.parameters),
        "quantization_level": plain if info.quantization == "none" else info.quantization.upper(),
    }


def _family(runtime: EngineRuntime) -> str:
    return runtime.info.architecture.partition("For")[0].lower()


def _counted(parameters: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= size:
            return f"{parameters / size:.1f}{letter}"
    return str(parameters)


def _capabilities(runtime: EngineRuntime) -> Iterator[str]:
    info = runtime.info
    if info.purpose != "generate":
        yield "embedding"
        return
    yield "completion"
    if runtime.tokenizer.chat_template:
        yield "tools"
    if info.vision:
        yield "vision"
    if runtime.thought_marks is not None:
        yield "thinking"
