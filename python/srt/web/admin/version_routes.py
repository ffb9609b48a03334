"""/version in vLLM's form, /props in the form of llama.cpp's server; /v1/moderations is refused."""

from __future__ import annotations

from sglang.ir.sampling import PARAMETERS
from sglang.srt.core.version import __version__
from sglang.srt.requests.request_error import RequestError
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

_SHOWN = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")


async def version(state: ServerState, request: Request) -> Response:
    """Return the version of this server."""
    return json_response({"version": __version__})


async def props(state: ServerState, request: Request) -> Response:
    """Return facts of the model and default sampling parameters, in llama.cpp's format."""
    runtime = state.runtime
    info, tokenizer = runtime.info, runtime.tokenizer
    return json_response(
        {
            "default_generation_settings": {
                "n_ctx": info.context_length,
                "params": {name: PARAMETERS[name].default for name in _SHOWN},
            },
            "total_slots": info.max_running_requests * runtime.completion.engines.count,
            "model_path": info.model_path,
            "model_alias": runtime.model_name,
            "chat_template": tokenizer.chat_template or "",
            "bos_token": tokenizer.specials.get("bos_token") or "",
            "eos_token": tokenizer.specials.get("eos_token") or "",
            "modalities": {"vision": info.vision, "audio": False},
            "build_info": f"sglang {__version__}",
        }
    )


async def moderations(state: ServerState, request: Request) -> Response:
    """Refuse the request: use /classify with a model that was trained to classify texts."""
    labels = state.runtime.info.labels
    if labels:
        advice = f"send the text to /classify, whose labels are {', '.join(labels):.400}"
    else:
        advice = (
            "serve a model with a classification head whose labels are kinds of harm "
            "(architecture ...ForSequenceClassification), and send the text to its /classify"
        )
    raise RequestError(
        f"/v1/moderations is not available: {state.runtime.model_name!r:.200} is not OpenAI's "
        f"moderation model, so its categories would be invented; {advice}.",
        code="unsupported",
    )
