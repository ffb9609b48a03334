"""Reply reader: splits a growing completion into text, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang.semantics.tool_calls.deltas import AnswerWords, Begin, Delta, Thought
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.replies.reasoning_parser import Marks, ThoughtParser
from sglang.srt.runtime.conversations.tool_use import ToolUse
from sglang.srt.runtime.stream_progress import StreamProgress


@dataclass(frozen=True)
class ThoughtReading:
    """Rules to read the reasoning (the thought) in a reply.

    Attributes:
        inside: the reply begins inside the thought.
        apart: the thought is emitted as ``Thought``; otherwise as ``AnswerWords``, with its marks.
        streamed: the thought is emitted piece by piece; otherwise at its end.
    """

    marks: Marks
    inside: bool
    apart: bool = True
    streamed: bool = True


class ReplyReader:
    """Reader of one completion, which records what was sent of it.

    ``called``: the reply has tool calls, and the last one is complete.

    Attributes:
        tool: name of the function of the last call.
    """

    def __init__(self, use: ToolUse | None, thinking: ThoughtReading | None = None) -> None:
        self.sent, self._calls, self.tool = StreamProgress(), 0, ""
        self._required = use is not None and use.required
        self._parser = None if use is None else use.parser()
        self._thinking, self._kept = thinking, ""
        self._thoughts: ThoughtParser | None = None
        if thinking is not None:
            self._thoughts = ThoughtParser(thinking.marks, thinking.inside, not thinking.apart)

    @property
    def called(self) -> bool:
        return self._parser is not None and self._calls > 0 and not self._parser.cut

    def take(self, output: Output, finished: bool) -> tuple[list[Delta], range]:
        """Return the deltas that were not sent yet, and the indices of their tokens."""
        text, tokens = self.sent.take(output)
        cut = output.finish is not None and output.finish.reason != "stop"
        return self.read(text, finished, cut), tokens

    def read(self, text: str, finished: bool, cut: bool = False) -> list[Delta]:
        """Return the deltas of the next piece of the text. ``cut``: a limit ended the text, so the
        beginning of a call at its end is dropped."""
        thought, answer = "", text
        if self._thoughts is not None:
            thought, answer = self._thoughts.feed(text)
            if finished:
                last = self._thoughts.finish()
                thought, answer = thought + last[0], answer + last[1]
        deltas: list[Delta] = self._thought(thought, finished)
        if self._parser is None:
            return [*deltas, AnswerWords(answer)] if answer else deltas
        deltas += self._parser.feed(answer)
        if finished:
            rest = self._parser.finish(cut)
            # If only calls are allowed, the remaining text is a part of an unfinished call.
            deltas += [d for d in rest if not (self._required and isinstance(d, AnswerWords))]
        for delta in deltas:
            if isinstance(delta, Begin):
                self._calls, self.tool = self._calls + 1, delta.name
        return deltas

    def thought_tokens(self, output: Output, table: Sequence[bytes], hidden: frozenset[int]) -> int:
        """Return the number of tokens of the thought, marks included: the tokens whose text begins
        before the answer. ``table`` has the bytes of every token; tokens in ``hidden`` are not in
        the text."""
        if self._thoughts is None or not self._thoughts.chars:
            return 0
        left = len(output.text[: self._thoughts.chars].encode())
        for count, token in enumerate(output.tokens):
            if left <= 0:
                return count
            left -= len(table[token]) if token < len(table) and token not in hidden else 0
        return len(output.tokens)

    def _thought(self, text: str, finished: bool) -> list[Delta]:
        assert self._thinking is not None or not text
        if self._thinking is None or not (text or self._kept):
            return []
        if not self._thinking.apart:
            return [AnswerWords(text)]
        if not self._thinking.streamed:
            self._kept += text
            ended = finished or (self._thoughts is not None and self._thoughts.ended)
            text, self._kept = (self._kept, "") if ended else ("", self._kept)
        return [Thought(text)] if text else []
