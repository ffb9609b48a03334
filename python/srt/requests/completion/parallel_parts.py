"""Parts: a prompt of consecutive texts and of groups of texts that are encoded in parallel."""

from __future__ import annotations

from collections.abc import Sequence

from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.segments import Segment, Segments
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import verify_length
from sglang.srt.requests.request_error import RequestError

Parts = Sequence[str | Sequence[str]]


async def read_parts(completion: Completer, parts: Parts) -> tuple[Ints, Segments]:
    """Return the token ids and segments of parts such as ``["P", ["F1", "F2"], "T"]``.

    Each text is tokenized separately. The tokenizer's leading tokens come once, at the start of the
    prompt. Raises RequestError.
    """
    groups = [[item] if isinstance(item, str) else item for item in parts]
    chars = sum(len(text) for group in groups for text in group)
    if not chars:
        raise RequestError("parts has no text; give at least one that is not empty.", "parts")
    completion.verify_chars(chars)
    begin = ints(completion.tokenizer.before)
    tokens, segments = ints(), list[Segment]()
    for number, group in enumerate(groups):
        texts = []
        for text in group:
            ids = await completion.encoder.encode(text, add_special_tokens=False)
            if ids:
                texts.append(ids)
            verify_length(len(tokens) + sum(map(len, texts)), completion.info)
        if number == 0 and not (len(group) == 1 and texts and texts[0][: len(begin)] == begin):
            tokens += begin
        _add(tokens, segments, texts)
    return tokens, _with_last(segments, len(tokens))


def _add(tokens: Ints, segments: list[Segment], texts: Sequence[Ints]) -> None:
    """Append a group of parallel texts; a single text is appended as a consecutive one."""
    base, parallel = len(tokens), len(texts) > 1
    if parallel and segments and segments[-1].start == base:
        segments.pop()  # there is no text between two groups
    for text in texts:
        if parallel and tokens:
            segments.append(Segment(len(tokens), base))
        tokens += text
    if parallel:
        segments.append(Segment(len(tokens), len(tokens)))


def _with_last(segments: list[Segment], length: int) -> Segments:
    """Return the segments such that the last one sees the whole prompt, as sampling needs. If no
    text follows the last group, the group's last token becomes that segment."""
    if segments and segments[-1].start == length:
        last = length - 1
        while segments and segments[-1].start >= last:
            segments.pop()
        segments.append(Segment(last, last))
    return tuple(segments)
