"""Objects of a shape as alternatives of a rule."""

from __future__ import annotations

from typing import Protocol

from sglang.srt.grammar.schema.arrays import ArrayEmitter, repeated
from sglang.srt.grammar.schema.property_names import PropertyNames
from sglang.srt.grammar.schema.quoted import literal
from sglang.srt.grammar.schema.schema_document import Refusal
from sglang.srt.grammar.schema.value_shapes import Object

# The parser follows all properties that may come after a comma, some 1.4 items each. A mask makes
# these items anew for every way in which a token may write the comma and go on.
MOST_OPTIONAL = 800
BRANCHES = 4  # branches of a rule; with 2 of them a property takes 2 items
MOST_COUNTED = 4000  # rules


class ObjectEmitter(ArrayEmitter, Protocol):
    """Rules being written (``emit.Emitter``), as objects need them."""

    names: PropertyNames
    colon: str

    def helper(self, body: str) -> str:
        """The name of one more rule."""
        ...

    def terminal(self, expression: str, combined: bool) -> str:
        """The name of a terminal. ``combined``: it may have many states."""
        ...

    def pointer(self, shape: Object) -> str:
        """JSON pointer of a schema of the object."""
        ...


def write_objects(emitter: ObjectEmitter, shapes: list[Object]) -> list[str]:
    """Alternatives for objects of some shapes; none where there are no such objects. Raises
    Refusal."""
    found: list[str] = []
    optional = 0
    for shape in shapes:
        pairs = _pairs(emitter, shape)
        if pairs is None:
            continue
        optional += sum(not required for _, required in pairs)
        if optional > MOST_OPTIONAL:
            raise Refusal(
                emitter.pointer(shape),
                f"a value's objects have {optional} properties that are not required; at most "
                f"{MOST_OPTIONAL}. Use fewer, or nest them.",
            )
        found += _alternatives(emitter, shape, pairs)
    return found


def _pairs(emitter: ObjectEmitter, shape: Object) -> list[tuple[str, bool]] | None:
    """The mentioned properties, each as text and whether it is required; None where one that is
    required has no value."""
    pairs = []
    for name in [*shape.order, *emitter.names.extra(shape)]:
        state, required = shape.named(name), name in shape.required
        if not emitter.dead(state) and emitter.names.allowed(shape, name):
            pairs.append((f"{literal(name)} {emitter.colon} {emitter.rule(state)}", required))
        elif required:
            return None
    return pairs


def _alternatives(
    emitter: ObjectEmitter, shape: Object, pairs: list[tuple[str, bool]]
) -> list[str]:
    """Alternatives for objects of one shape. Raises Refusal."""
    other = _others(emitter, shape, False)
    hit = _others(emitter, shape, True) if shape.some else ""
    if shape.some and not hit:
        return []
    needed = sum(required for _, required in pairs)
    if shape.low <= max(1, needed + bool(hit)) and (
        shape.high is None or (not other and not hit and shape.high >= len(pairs))
    ):
        last = f"({other} {emitter.comma})* {hit}" if other and hit else hit
        last = last or (f"{other} ({emitter.comma} {other})*" if other else "")
        # The property that must be there is the last, so that no other of the same name stands
        # for it.
        parts = [*pairs, (last, bool(hit))] if last else pairs
        content = _uncounted(emitter, parts) if parts else ""
        empty = shape.low == 0 == needed and not hit
    elif hit:
        raise Refusal(shape.counted, "cannot be enforced beside a negated schema of properties.")
    else:
        content, empty = _Counter(emitter, shape, pairs, other).content(), shape.low == 0 == needed
    blank = emitter.blank
    found = [f'"{{" {blank}{content} {blank}"}}"'] if content else []
    return [*found, f'"{{" {blank}"}}"'] if empty else found


def _others(emitter: ObjectEmitter, shape: Object, hit: bool) -> str:
    """The rule of a property that is not mentioned; "" where there is none."""
    combined = bool(shape.patterns or shape.names or shape.some)
    pairs = [
        f"{emitter.terminal(name, combined)} {emitter.colon} {emitter.rule(state)}"
        for name, state in emitter.names.others(shape, hit)
        if not emitter.dead(state)
    ]
    return emitter.helper(" | ".join(pairs)) if pairs else ""


def _uncounted(emitter: ObjectEmitter, parts: list[tuple[str, bool]]) -> str:
    """Return rules for one part or more, in their order, with all that are required.

    The rules are a tree: each is the parts of one branch, and may go on with those of later
    branches. So a parser keeps few items after a value, however many properties may follow. With a
    rule for each property it keeps all of them, and a mask makes them anew for every way in which a
    token may end the value and go on.
    """
    width = 1
    while width * BRANCHES < len(parts):
        width *= BRANCHES
    found: list[str] = []  # alternatives that begin with this branch or a later one
    for start in reversed(range(0, len(parts), width)):
        branch, behind = parts[start : start + width], parts[start + width :]
        text = branch[0][0] if width == 1 else _named(emitter, _uncounted(emitter, branch))
        if found:
            rest = found[0] if len(found) == 1 else emitter.helper(" | ".join(found))
            more = f"{emitter.comma} {rest}"
            text = f"{text} {more}" if _any_required(behind) else f"{text} ({more})?"
        found = [text] if _any_required(branch) else [text, *found]
    return found[0] if len(found) == 1 else f"({' | '.join(found)})"


def _any_required(parts: list[tuple[str, bool]]) -> bool:
    return any(required for _, required in parts)


def _named(emitter: ObjectEmitter, text: str) -> str:
    """Return a text, or the name of a rule for it where it is long."""
    return emitter.helper(text) if len(text) > 40 else text


class _Counter:
    """Objects with a number of properties between two limits."""

    def __init__(
        self, emitter: ObjectEmitter, shape: Object, pairs: list[tuple[str, bool]], other: str
    ) -> None:
        self._emitter = emitter
        self._shape = shape
        self._pairs = pairs
        self._other = other
        self._cap = shape.low if shape.high is None else max(shape.low, shape.high)
        self._made: dict[tuple[int, int], str | None] = {}
        if len(pairs) * (self._cap + 1) > MOST_COUNTED:
            raise Refusal(
                shape.counted,
                f"counting {len(pairs)} properties up to {self._cap} takes too many rules; "
                "use a smaller number.",
            )

    def content(self) -> str:
        """One pair or more; "" where that cannot be."""
        found = self._from(0, 0)
        return found or ""

    def _from(self, at: int, count: int) -> str | None:
        """The text after ``count`` pairs, from the pair ``at`` on; None where there is none. Never
        empty without a pair before."""
        if self._shape.high is None:
            count = min(count, self._cap) if count else 0
        key = (at, count)
        if key not in self._made:
            found = self._pair(at, count) if at < len(self._pairs) else self._rest(count)
            long = found is not None and len(found) > 40
            self._made[key] = self._emitter.helper(found) if long and found else found
        return self._made[key]

    def _pair(self, at: int, count: int) -> str | None:
        text, required = self._pairs[at]
        options = []
        if self._shape.high is None or count < self._shape.high:
            after = self._from(at + 1, count + 1)
            if after is not None:
                options.append(f"{self._emitter.comma if count else ''} {text} {after}")
        if not required:
            without = self._from(at + 1, count)
            if without is not None:
                options.append(without or '""')
        if not options:
            return None
        return f"({' | '.join(options)})" if len(options) > 1 else options[0]

    def _rest(self, count: int) -> str | None:
        low = max(0, self._shape.low - count)
        room = None if self._shape.high is None else self._shape.high - count
        if not self._other or room == 0:
            return "" if low == 0 and count else None
        if low > 1:
            raise Refusal(
                self._shape.counted,
                "more than one property that is not listed cannot be counted, since a name may be "
                "written twice; list the properties, or ask for fewer.",
            )
        comma, other = self._emitter.comma, self._other
        if count:
            return repeated(f"{comma} {other}", low, room)
        return f"{other} " + repeated(f"{comma} {other}", 0, None if room is None else room - 1)
