"""Routes: the table of every path, its handler, and the types of its bodies and answers."""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime.classification import ClassifyRequest
from sglang.srt.runtime.conversations.chat_request import ChatRequest
from sglang.srt.runtime.generate_request import GenerateRequest
from sglang.srt.runtime.generated import Generated
from sglang.srt.runtime.programs import program_bodies as bodies
from sglang.srt.runtime.scoring import RerankRequest, ScoreRequest
from sglang.srt.runtime.sessions import CloseSession, OpenSession
from sglang.srt.runtime.vectors import Encoded, EncodeRequest
from sglang.srt.web.admin import adapter_routes as adapters
from sglang.srt.web.admin import explain_routes as explain
from sglang.srt.web.admin import probe_routes as probes
from sglang.srt.web.admin import routes as admin
from sglang.srt.web.admin import version_routes as versions
from sglang.srt.web.admin import worker_routes as workers
from sglang.srt.web.anthropic.messages import messages_body
from sglang.srt.web.anthropic.messages import routes as messages
from sglang.srt.web.batch_api import routes as batches
from sglang.srt.web.inferlet_api import inferlet_bodies
from sglang.srt.web.inferlet_api import routes as inferlets
from sglang.srt.web.native import routes as native
from sglang.srt.web.native import token_routes as tokens
from sglang.srt.web.ollama import embedding_routes as ollama_vectors
from sglang.srt.web.ollama import ollama_bodies
from sglang.srt.web.ollama import routes as ollama
from sglang.srt.web.openai import completions, embeddings, score
from sglang.srt.web.openai.chat import routes as chat
from sglang.srt.web.openai.responses import responses_body
from sglang.srt.web.openai.responses import routes as responses
from sglang.srt.web.openapi import batch_shapes as shapes_batch
from sglang.srt.web.openapi import native_shapes as shapes
from sglang.srt.web.openapi import ollama_shapes as shapes_ollama
from sglang.srt.web.openapi import openai_shapes as shapes_v1
from sglang.srt.web.page import live_view as live
from sglang.srt.web.page import page_files as page
from sglang.srt.web.programs import routes as programs
from sglang.srt.web.route import BYTES, EVENTS, JSON, LINES, PAGE, TEXT, Handler, Route


def _get(path: str, handler: Handler, reply: Any, **more: Any) -> Route:
    return Route("GET", path, handler, reply, **more)


def _post(path: str, handler: Handler, body: type | None, reply: Any, **more: Any) -> Route:
    return Route("POST", path, handler, reply, body, **more)


_STREAMED = {"media": (JSON, EVENTS)}
_GENERATED = Generated | list[Generated]
_ENCODED = Encoded | list[Encoded]
_SCORED = shapes.LabelScoresReply | shapes.ScoresReply

ROUTES = (
    _get("/health", admin.health, shapes.Status),
    _get("/startupz", probes.startup_probe, shapes.Status),
    _get("/livez", probes.liveness_probe, shapes.Status),
    _get("/readyz", probes.readiness_probe, shapes.Status),
    _get("/drain", probes.drain_status, shapes.DrainStatus),
    _post("/drain", probes.begin_drain, None, shapes.DrainStatus),
    _get("/workers", workers.workers, shapes.FleetEngines),
    _post("/workers", workers.add_worker, workers.JoinBody, shapes.FleetEngines),
    _post("/workers/leave", workers.remove_worker, workers.LeaveBody, shapes.EngineRemoved),
    _get("/health_generate", admin.health_generate, shapes.Status),
    _get("/get_model_info", admin.model_info, shapes.ModelInfo),
    _get("/model_info", admin.model_info, shapes.ModelInfo),
    _get("/version", versions.version, shapes.ServerVersion),
    _get("/props", versions.props, shapes.ServerProps),
    _get("/get_server_info", admin.server_info, shapes.ServerInfo),
    _get("/server_info", admin.server_info, shapes.ServerInfo),
    _get("/metrics", admin.metrics, None, media=(TEXT,)),
    _get("/live", live.live, shapes.LiveReply, query=live.LiveQuery),
    _get("/live/events", live.events, None, query=live.LiveEventsQuery, media=(EVENTS,)),
    _get("/explain/{id:path}", explain.explain_request, explain.Explained),
    _get("/flush_cache", admin.flush_cache, shapes.Flushed),
    _post("/flush_cache", admin.flush_cache, None, shapes.Flushed),
    _post("/abort_request", admin.abort_request, admin.AbortBody, shapes.Aborted),
    _get("/get_load", admin.load, list[shapes.Load]),
    _post("/pause_generation", admin.pause_generation, admin.PauseBody, shapes.Told,
          optional=True),
    _post("/continue_generation", admin.continue_generation, None, shapes.Told),
    _post("/open_session", native.open_session, OpenSession, str, optional=True),
    _post("/close_session", native.close_session, CloseSession, shapes.Closed),
    _get("/", page.index, None, media=PAGE[:1]),
    _get("/page/{name:path}", page.asset, None, media=PAGE),
    _post("/load_lora_adapter", adapters.load, adapters.LoadBody, shapes.AdaptersReply),
    _post("/unload_lora_adapter", adapters.unload, adapters.UnloadBody, shapes.AdaptersReply),
    _post("/v1/load_lora_adapter", adapters.load, adapters.LoadBody, shapes.AdaptersReply),
    _post("/v1/unload_lora_adapter", adapters.unload, adapters.UnloadBody, shapes.AdaptersReply),
    # Native.
    _post("/generate", native.generate, GenerateRequest, _GENERATED, **_STREAMED),
    _post("/encode", native.encode, EncodeRequest, _ENCODED),
    _post("/classify", native.classify, ClassifyRequest, shapes.Classified),
    _get("/tokenizer_info", tokens.tokenizer_info, shapes.TokenizerInfo),
    _post("/tokenize", tokens.tokenize, tokens.TokenizeBody, shapes.Tokenized),
    _post("/v1/tokenize", tokens.tokenize, tokens.TokenizeBody, shapes.Tokenized),
    _post("/detokenize", tokens.detokenize, tokens.DetokenizeBody, shapes.Detokenized),
    _post("/v1/detokenize", tokens.detokenize, tokens.DetokenizeBody, shapes.Detokenized),
    _post("/apply-template", tokens.apply_template, tokens.TemplateBody, shapes.Rendered),
    # OpenAI's.
    _get("/v1/models", admin.models, shapes.ModelCards),
    _get("/models", admin.models, shapes.ModelCards),
    _get("/v1/models/{name:path}", admin.model, shapes.ModelCard),
    _post("/v1/completions", completions.completions, completions.CompletionBody,
          shapes_v1.CompletionReply, **_STREAMED),
    _post("/v1/chat/completions", chat.chat_completions, ChatRequest, shapes_v1.ChatCompletion,
          **_STREAMED),
    _post("/v1/embeddings", embeddings.embeddings, embeddings.EmbeddingBody, shapes_v1.Embeddings),
    _post("/v1/moderations", versions.moderations, None, shapes.Status),
    _post("/v1/responses", responses.create, responses_body.ResponsesBody, shapes_v1.Response,
          **_STREAMED),
    _post("/v1/responses/input_tokens", responses.count, responses_body.ResponsesBody,
          shapes_v1.InputTokens),
    _get("/v1/responses/{id}", responses.retrieve, shapes_v1.Response,
         query=responses.ResponseQuery, **_STREAMED),
    Route("DELETE", "/v1/responses/{id}", responses.delete, shapes_v1.Deleted),
    _post("/v1/responses/{id}/cancel", responses.cancel, None, shapes_v1.Response),
    _get("/v1/responses/{id}/input_items", responses.input_items, shapes_v1.Items,
         query=responses.ItemsQuery),
    # Files, and batches of requests in them.
    _post("/v1/files", batches.upload, None, shapes_batch.FileReply,
          form=("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")),
    _get("/v1/files", batches.files, shapes_batch.FileList, query=batches.FilesQuery),
    _get("/v1/files/{id}", batches.file, shapes_batch.FileReply),
    _get("/v1/files/{id}/content", batches.content, None, media=(BYTES,)),
    Route("DELETE", "/v1/files/{id}", batches.delete_file, shapes_batch.FileGone),
    _post("/v1/batches", batches.create_batch, batches.BatchBody, shapes_batch.BatchReply),
    _get("/v1/batches", batches.batches, shapes_batch.BatchList, query=batches.BatchesQuery),
    _get("/v1/batches/{id}", batches.batch, shapes_batch.BatchReply),
    _post("/v1/batches/{id}/cancel", batches.cancel_batch, None, shapes_batch.BatchReply),
    # Programs sent whole.
    _post("/v1/session", programs.open_session, bodies.OpenProgramSession,
          bodies.ProgramSessionReply, optional=True),
    Route("DELETE", "/v1/session/{session_id}", programs.close_session, shapes.Status),
    _post("/v1/submit", programs.submit, bodies.SubmitBody, bodies.SubmittedReply, **_STREAMED),
    _post("/v1/get", programs.get_value, bodies.GetBody, bodies.ValueReply, **_STREAMED),
    _post("/v1/set", programs.set_value, bodies.SetBody, shapes.Status),
    _post("/v1/cancel", programs.cancel, bodies.CancelBody, bodies.CancelledReply),
    # Anthropic's.
    _post("/v1/messages", messages.messages, messages_body.MessagesBody, shapes_v1.MessageReply,
          **_STREAMED),
    _post("/v1/messages/count_tokens", messages.count_tokens, messages_body.MessagesBody,
          shapes_v1.CountedTokens),
    # Ollama's.
    _post("/api/chat", ollama.chat, ollama_bodies.OllamaChatBody, shapes_ollama.OllamaChatReply,
          media=(JSON, LINES)),
    _post("/api/generate", ollama.generate, ollama_bodies.OllamaGenerateBody,
          shapes_ollama.OllamaGenerateReply, media=(JSON, LINES)),
    _post("/api/embed", ollama_vectors.embed_texts, ollama_bodies.OllamaEmbedBody,
          shapes_ollama.OllamaEmbedded),
    _post("/api/embeddings", ollama_vectors.embeddings, ollama_bodies.OllamaEmbeddingsBody,
          shapes_ollama.OllamaEmbedding),
    _get("/api/tags", ollama.tags, shapes_ollama.OllamaTags),
    _get("/api/ps", ollama.ps, shapes_ollama.OllamaProcesses),
    _get("/api/version", ollama.version, shapes_ollama.OllamaVersion),
    _post("/api/show", ollama.show, ollama_bodies.ShowBody, shapes_ollama.OllamaShown),
    _post("/api/pull", ollama.pull, ollama_bodies.PullBody, shapes_ollama.OllamaPulled),
    _post("/api/push", ollama.refuse, None, shapes_ollama.OllamaPulled),
    _post("/api/create", ollama.refuse, None, shapes_ollama.OllamaPulled),
    _post("/api/copy", ollama.refuse, None, shapes_ollama.OllamaPulled),
    Route("DELETE", "/api/delete", ollama.refuse, shapes_ollama.OllamaPulled),
    _post("/api/blobs/{digest}", ollama.refuse, None, shapes_ollama.OllamaPulled),
    # Programs that clients upload.
    _get("/v1/inferlets", inferlets.programs, inferlet_bodies.InferletList),
    _post("/v1/inferlets", inferlets.upload, inferlet_bodies.UploadBody,
          inferlet_bodies.InferletObject),
    Route("DELETE", "/v1/inferlets/{id}", inferlets.remove, inferlet_bodies.InferletGone),
    _post("/v1/inferlets/{id}/runs", inferlets.launch, inferlet_bodies.RunBody,
          inferlet_bodies.InferletRunReply, optional=True, **_STREAMED),
    _get("/v1/runs", inferlets.runs, inferlet_bodies.InferletRuns),
    _get("/v1/runs/{id}", inferlets.retrieve, inferlet_bodies.InferletRunReply,
         query=inferlet_bodies.RunQuery, **_STREAMED),
    _post("/v1/runs/{id}/messages", inferlets.message, inferlet_bodies.MessageBody,
          inferlet_bodies.MessageSent),
    Route("DELETE", "/v1/runs/{id}", inferlets.end, inferlet_bodies.InferletGone),
    # As other servers have them.
    _post("/v1/score", score.score, ScoreRequest, _SCORED),
    _post("/score", score.score, ScoreRequest, _SCORED),
    _post("/v1/rerank", score.rerank, RerankRequest, shapes.RankingReply),
    _post("/v2/rerank", score.rerank, RerankRequest, shapes.RankingReply),
    _post("/rerank", score.rerank, RerankRequest, shapes.RankingReply),
)  # fmt: skip
