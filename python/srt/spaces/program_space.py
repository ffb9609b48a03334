"""ProgramSpace: the KV pages, pending work and answers of one program (inferlet)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.space_messages import OpenSpace
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.spaces.handle_table import HandleTable
from sglang.srt.spaces.space_work import ForwardWork, Work

Array: TypeAlias = np.ndarray[Any, Any]
MOST_KEPT = 256  # sampled tokens that a later forward may follow


@dataclass(slots=True, eq=False)
class PrefixLease:
    """A locked path of the prefix cache. ``handles``: the program's handles for its pages."""

    node: RadixNode
    handles: set[int]


@dataclass(slots=True, eq=False)
class SpaceOwner:
    """A tenant.

    Attributes:
        pages: number of pages of the tenant's spaces and exports together.
        exports: number of the tenant's exports.
    """

    pages: int = 0
    exports: int = 0


@dataclass(slots=True, eq=False)
class ProgramSpace:
    """The space of one program.

    Attributes:
        verb: the verb that opened it, with its number and its limit of pages.
        namespace: namespace within which its exports and prefixes are shared.
        arrival: sort key of its age, comparable with that of requests
            (``core.request.arrival_key``).
        pending: work that is not yet wholly in a pass, in the order of the verbs.
        forwards: unanswered forwards that have a request, by request.
        sampled: the sampled token of recently answered forwards, by request; at most ``MOST_KEPT``.
        later: (number of the last work that may use the pages, pages) for freed handles.
        leases: locked paths of the prefix cache that handles of the space map to.
    """

    verb: OpenSpace
    namespace: Namespace
    arrival: int
    owner: SpaceOwner
    table: HandleTable
    pending: list[Work] = field(default_factory=list)
    forwards: dict[int, ForwardWork] = field(default_factory=dict)
    sampled: OrderedDict[int, int] = field(default_factory=OrderedDict)
    later: list[tuple[int, Array]] = field(default_factory=list)
    leases: list[PrefixLease] = field(default_factory=list)

    @property
    def id(self) -> int:
        return self.verb.space

    def keep(self, request: int, token: int) -> None:
        """Keep the token that a request sampled, for forwards that follow it."""
        self.sampled[request] = token
        if len(self.sampled) > MOST_KEPT:
            self.sampled.popitem(last=False)
