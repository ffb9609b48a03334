"""StreamProgress: the part of one completion that a stream has sent."""

from __future__ import annotations

from sglang.srt.requests.completion.output import Output


class StreamProgress:
    """Counts of the characters and tokens of one completion that a stream has sent."""

    def __init__(self) -> None:
        self.chars = self.tokens = self.generated = 0
        self.begun = False

    def ready(self, output: Output, interval: int) -> bool:
        """Whether the next chunk is due: at the end, at the first text, then every ``interval``
        tokens."""
        if output.finish is not None:
            return True
        due = not self.begun or output.completion_tokens - self.generated >= interval
        return due and len(output.text) > self.chars

    def take(self, output: Output) -> tuple[str, range]:
        """Return the text that was not sent yet, and the indices of its tokens."""
        text, tokens = output.text[self.chars :], range(self.tokens, output.released)
        self.chars, self.tokens = len(output.text), output.released
        self.generated, self.begun = output.completion_tokens, True
        return text, tokens
