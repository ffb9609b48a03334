"""Plan: which path carries a constraint, with all the work done that needs no tokenizer.

Made in a process of its own (``child``), because a user's constraint may be made to be slow or
large; ``build`` then makes the Grammar, beside the engine loop.
"""

from __future__ import annotations

import msgspec


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the child sends back.

    Attributes:
        path: "fsm" (``data`` is a packed Automaton), "trie" (``strings`` is the whole language),
            "llguidance" (``text`` is a grammar that it has accepted) or "outlines" (``text`` is a
            pattern).
        schema: whether the rules of ``text`` were made of a schema, and not written by a user.
        error: why the constraint cannot be enforced, and nothing else is set.
    """

    path: str = ""
    data: bytes = b""
    strings: tuple[str, ...] = ()
    text: str = ""
    schema: bool = False
    error: str = ""
