"""Reasoning: the thought that a model writes before its answer, separated by its marks.

Parsing is character by character: what comes out is a function of the text alone, however it is cut
up.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang.semantics.tool_calls.json_scan import SPACE
from sglang.semantics.tool_calls.tool_format import Form, either, sequence, tag


@dataclass(frozen=True)
class Marks:
    """Marks that open and close a thought.

    Attributes:
        always: the model thinks first, whether the mark is there or not: its templates open the
            thought themselves, or its text begins in the middle of one.
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
    """The marks of that parser; of ``auto``, those that the chat template knows. None for none."""
    if name != "auto":
        return PARSERS.get(name)
    for found in (_THINK, PARSERS["mistral"], PARSERS["seed-oss"], PARSERS["kimi"]):
        if found.end in template:
            return found
    return None


def opened(marks: Marks, tail: str, begun: str = "") -> bool | None:
    """Whether the text after a prompt begins inside a thought; None where the prompt does not say
    it.

    Args:
        tail: the end of the prompt.
        begun: the part of the reply that it holds already.
    """
    if begun.strip():
        return begun.rfind(marks.begin) > begun.rfind(marks.end)
    end = tail.rstrip()
    if end.endswith(marks.begin):
        return True
    return False if end.endswith(marks.end) else None


def behind_thought(marks: Marks, inside: bool | None, form: Form) -> Form:
    """Text that is of ``form`` after its thought. ``inside``: as ``opened`` says."""
    if inside is False:
        return form
    space = {"type": "regex", "pattern": r"\n{0,2}"}
    rest = sequence(space, form)
    if inside:
        return sequence(tag("", {"type": "any_text"}, marks.end), rest)
    thought = tag(marks.begin, {"type": "any_text"}, marks.end)
    return either(sequence(thought, rest), form)


class ThoughtParser:
    """Reads one text: at most one thought, at its beginning.

    Marks, and space around them, belong to neither thought nor answer. A thought that is not closed
    is all there is.

    Attributes:
        ended: what follows is the answer.
        chars: of the text up to the answer; 0 where there is no thought.
    """

    def __init__(self, marks: Marks, inside: bool, whole: bool = False) -> None:
        """``inside``: the text begins in the thought; the opening mark may be there all the same.
        ``whole``: the thought is given with its marks and all space."""
        self._marks, self._inside, self._whole = marks, inside, whole
        self._raw: list[str] = []  # text that may belong to a thought given as a whole
        self._before = True  # where the opening mark may be
        self._space: list[str] = []  # text that may become a mark:
        self._tag = ""
        self._read = 0
        self._said = False  # some of the thought
        self._trim = False  # space before the answer
        self.ended = False
        self.chars = 0

    def feed(self, text: str) -> tuple[str, str]:
        """Additions of the next piece to the thought and to the answer."""
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
        """Text that was held back, once all has been fed."""
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
        """A character before the answer; what it adds to the thought."""
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
        """Read what is left of a mark that was none; its first character is in ``said``, if any."""
        rest, self._tag = self._tag[len(said) > 0 :], ""
        return said + "".join([self._take(char) for char in rest])
