"""Reasoning: separates the thought that a model generates before its answer, by its marks.

The text is parsed character by character. So the result depends only on the text, and not on how a
stream cuts it into pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang.semantics.tool_calls.json_scan import SPACE
from sglang.semantics.tool_calls.tool_format import Form, either, sequence, tag


@dataclass(frozen=True)
class Marks:
    """Marks that open and close a thought.

    Attributes:
        always: the reply begins with a thought even without an opening mark, because the chat
            template writes the mark, or the model leaves it out.
    """

    begin: str
    end: str
    always: bool = False


_THINK, _ALWAYS = Marks("<think>", "</think>"), Marks("<think>", "</think>", True)
PARSERS = {
    "deepseek-r1": _ALWAYS,
    "deepseek-v3": _THINK,
    "glm45": _THINK,
    "kimi": Marks("◁think▷", "◁/think▷"),
    "kimi_k2": _THINK,
    "minimax": _ALWAYS,
    "mistral": Marks("[THINK]", "[/THINK]"),
    "qwen3": _THINK,
    "qwen3-thinking": _ALWAYS,
    "seed-oss": Marks("<seed:think>", "</seed:think>"),
    "step3": _ALWAYS,
}


def marks_for(name: str, template: str) -> Marks | None:
    """Return the marks of a parser; for ``auto``, the marks that the chat template contains. None
    if there are none."""
    if name != "auto":
        return PARSERS.get(name)
    for found in (_THINK, PARSERS["mistral"], PARSERS["seed-oss"], PARSERS["kimi"]):
        if found.end in template:
            return found
    return None


def opened(marks: Marks, tail: str, begun: str = "") -> bool | None:
    """Whether the text after a prompt begins inside a thought; None if the prompt does not
    determine it.

    Args:
        tail: the end of the prompt.
        begun: the beginning of the reply that the prompt contains already.
    """
    if begun.strip():
        return begun.rfind(marks.begin) > begun.rfind(marks.end)
    end = tail.rstrip()
    if end.endswith(marks.begin):
        return True
    return False if end.endswith(marks.end) else None


def behind_thought(marks: Marks, inside: bool | None, form: Form) -> Form:
    """Return the form of a text that has ``form`` after its thought. ``inside``: the result of
    ``opened``."""
    if inside is False:
        return form
    space = {"type": "regex", "pattern": r"\n{0,2}"}
    rest = sequence(space, form)
    if inside:
        return sequence(tag("", {"type": "any_text"}, marks.end), rest)
    thought = tag(marks.begin, {"type": "any_text"}, marks.end)
    return either(sequence(thought, rest), form)


class ThoughtParser:
    """Parser of one text with at most one thought, at its beginning.

    Marks, and white space around them, belong neither to the thought nor to the answer. If the
    thought is not closed, there is no answer.

    Attributes:
        ended: the thought has ended; the following text is the answer.
        chars: number of characters up to the answer; 0 without a thought.
    """

    def __init__(self, marks: Marks, inside: bool, whole: bool = False) -> None:
        """``inside``: the text begins inside the thought; an opening mark may still come.
        ``whole``: return the thought with its marks and all white space."""
        self._marks, self._inside, self._whole = marks, inside, whole
        self._raw: list[str] = []  # text that may belong to a thought returned as a whole
        self._before = True  # the opening mark may still come
        self._space: list[str] = []  # held back: white space, and the beginning of a mark (_tag)
        self._tag = ""
        self._read = 0
        self._said = False  # a part of the thought was returned
        self._trim = False  # white space before the answer is to be removed
        self.ended = False
        self.chars = 0

    def feed(self, text: str) -> tuple[str, str]:
        """Parse the next piece. Return its additions to the thought and to the answer."""
        thought, at = list[str](), 0
        while at < len(text) and not self.ended:
            thought.append(self._take(text[at]))
            at += 1
        self._read += at
        self._raw.append(text[:at])
        if self._inside:
            self.chars = self._read
            thought, self._raw = (self._raw if self._whole else thought), []
        answer = text[at:]
        if self.ended:
            answer = self._kept() + answer
            if self._trim and not self._whole:
                answer = answer.lstrip(SPACE)
                self._trim = not answer
        return "".join(thought), answer

    def finish(self) -> tuple[str, str]:
        """Return the additions of text that was held back, after the last piece."""
        if not self._inside:
            return "", self._kept()
        if not self._tag or not self._said:
            self._space = []
        kept = self._kept()
        return "" if self._whole else kept, ""

    def _kept(self) -> str:
        kept = "".join(self._space) + self._tag
        self._space, self._tag = [], ""
        return kept

    def _take(self, char: str) -> str:
        """Parse a character before the answer; return the text that it adds to the thought."""
        if not self._tag and char in SPACE:
            self._space.append(char)
            return ""
        self._tag += char
        mark = self._marks.begin if self._before else self._marks.end
        if self._tag == mark:
            self._kept()
            self.ended = self._trim = not self._before
            self._before, self._inside = False, True
            return ""
        if mark.startswith(self._tag):
            return ""
        if self._before:
            self._before = False
            self.ended = not self._inside
            return self._again("") if self._inside else ""
        if not self._said:
            self._space = []
        self._said = True
        said = "".join(self._space) + self._tag[0]
        self._space = []
        return self._again(said)

    def _again(self, said: str) -> str:
        """Parse held-back text again that did not become a mark; its first character is in
        ``said``, unless that is ""."""
        rest, self._tag = self._tag[len(said) > 0 :], ""
        return said + "".join([self._take(char) for char in rest])
