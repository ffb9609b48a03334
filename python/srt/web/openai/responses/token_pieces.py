"""TokenPieces: splits a growing completion into deltas, each with its tokens' log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.semantics.tool_calls.deltas import AnswerWords, Delta
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.conversations.chat_request import ChatCall
from sglang.srt.runtime.stream_progress import StreamProgress
from sglang.srt.web.openai.reply_fields import logprob_of
from sglang.srt.web.server_state import ServerState


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """Deltas, and the log-probabilities of the tokens of their answer text."""

    deltas: list[Delta]
    logprobs: list[Any]


class TokenPieces:
    """Reader of one growing completion.

    If log-probabilities are requested, the text is read token by token. Each log-probability then
    belongs to the answer text in which its token ends. Those of reasoning, calls and hidden tokens
    are left out.
    """

    def __init__(self, state: ServerState, call: ChatCall) -> None:
        skip = call.request.sampling.skip_special_tokens
        self.reader, self._sent = call.reader(), StreamProgress()
        self._traced = call.request.logprobs is not None
        self._table = state.runtime.tokenizer.token_bytes
        self._decoder = state.runtime.tokenizer.detokenizer(skip)
        self._hidden = state.runtime.tokenizer.special_ids if skip else frozenset()
        self._tokens = self._decoded = self._chars = 0
        self._waiting: list[int] = []  # indices of tokens whose text is not emitted yet

    def ready(self, output: Output, interval: int) -> bool:
        """Whether the next pieces are due."""
        return self._sent.ready(output, interval)

    def take(self, output: Output, finished: bool) -> list[TokenPiece]:
        """Return the new pieces of ``output``."""
        text, _ = self._sent.take(output)
        if not self._traced:
            return [self._read(output, text, finished)]
        end, found = self._sent.chars, []
        for place in range(self._tokens, output.released):
            token = output.tokens[place]
            self._decoded += len(self._decoder.push([token]))
            piece = output.text[self._chars : min(self._decoded, end)]
            self._chars += len(piece)
            if token not in self._hidden:
                self._waiting.append(place)
            found.append(self._read(output, piece, False))
        self._tokens = max(self._tokens, output.released)
        if finished:
            found.append(self._read(output, output.text[self._chars : end], True))
        return found

    def _read(self, output: Output, text: str, finished: bool) -> TokenPiece:
        cut = output.finish is not None and output.finish.reason != "stop"
        deltas = self.reader.read(text, finished, cut)
        if not deltas:
            return TokenPiece([], [])
        places, self._waiting = self._waiting, []
        # Only the last tokens: those before may be marks and white space that are in no text.
        size = sum(len(delta.text.encode()) for delta in deltas if isinstance(delta, AnswerWords))
        first = len(places)
        while first and size > 0:
            first -= 1
            size -= len(self._bytes(output.tokens[places[first]]))
        return TokenPiece(
            deltas, [logprob_of(output, place, self._table) for place in places[first:]]
        )

    def _bytes(self, token: int) -> bytes:
        return self._table[token] if token < len(self._table) else b""
