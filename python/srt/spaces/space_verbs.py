"""SpaceVerbs: the verbs of spaces, held against handles, caps and the model, and made into work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace as replaced
from sglang.srt.core.ints import ints
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.space_messages import (
    UNANSWERED,
    WHOLE,
    AllocPages,
    CloseSpace,
    CopyTokens,
    ExportPages,
    ForwardTokens,
    FreePages,
    ImportPages,
    ListExports,
    OpenSpace,
    PrefixPages,
    ReleaseExport,
    SpaceEnded,
    SpaceFailed,
    SpaceReply,
    SpaceVerb,
)
from sglang.srt.spaces.handle_table import HandleTable, numbers
from sglang.srt.spaces.mask_runs import MOST_BITS, mask_runs
from sglang.srt.spaces.prefix_fills import PrefixFills
from sglang.srt.spaces.program_space import ProgramSpace
from sglang.srt.spaces.slot_views import verify_pages
from sglang.srt.spaces.space_host import SpaceFacts
from sglang.srt.spaces.space_memory import OverCap, SpaceMemory, SpaceOver
from sglang.srt.spaces.space_work import NONE, CopyWork, ExportWork, ForwardWork

Array: TypeAlias = np.ndarray[Any, Any]
MOST_SPACES = 4096
MOST_PENDING = 1024  # work of a space that no pass has
MOST_NAME = 256  # characters of an export's name
MOST_NAMES = 1024  # exports in one answer


class SpaceVerbs:
    """Applies verbs in their order. A verb that is refused has no effect."""

    def __init__(self, memory: SpaceMemory, facts: SpaceFacts, prefixes: PrefixFills) -> None:
        self.memory, self.facts, self._prefixes = memory, facts, prefixes
        self._fill = memory.pages.fill
        self._of: dict[type, Callable[[ProgramSpace, Any], None]] = {
            AllocPages: self._alloc,
            FreePages: self._free,
            CopyTokens: self._copy,
            ExportPages: self._export,
            ImportPages: self._import,
            ReleaseExport: self._release,
            ListExports: self._list,
            PrefixPages: self._prefix,
            ForwardTokens: self._forward,
        }

    def apply(self, verb: SpaceVerb) -> None:
        """Apply a verb; the memory's ``events`` get what there is to say."""
        try:
            if isinstance(verb, OpenSpace):
                self._open(verb)
                return
            space = self.memory.spaces.get(verb.space)
            if isinstance(verb, CloseSpace):
                if space is not None:
                    self.memory.close(space)
                return
            if space is None:
                raise ValueError(f"space {verb.space} is not open; open one")
            self._of[type(verb)](space, verb)
        except SpaceOver:
            pass  # memory.events has the event
        except (ValueError, OverflowError) as error:
            code = "overloaded" if isinstance(error, OverCap) else "invalid"
            self._refuse(verb, code, str(error))

    def _refuse(self, verb: SpaceVerb, code: str, message: str) -> None:
        if isinstance(verb, OpenSpace) and verb.space not in self.memory.spaces:
            self.memory.events.append(SpaceEnded(verb.space, code, message))
            return
        request, space = getattr(verb, "request", UNANSWERED), self.memory.spaces.get(verb.space)
        if space is not None and request in space.forwards:
            request = UNANSWERED  # else the program would take the other forward for refused
        self.memory.events.append(SpaceFailed(verb.space, request, code, message))

    def _say(
        self, space: ProgramSpace, request: int, count: int = 0, names: tuple[str, ...] = ()
    ) -> None:
        self.memory.events.append(SpaceReply(space.id, request, count, names))

    # -- spaces and pages ------------------------------------------------------------------------

    def _open(self, verb: OpenSpace) -> None:
        memory = self.memory
        if verb.space in memory.spaces:
            raise ValueError(f"space {verb.space} is open already; take another number")
        if len(memory.spaces) >= MOST_SPACES:
            raise OverCap(f"{MOST_SPACES} spaces are open, as many as may be; try again later")
        self.facts.verify_purpose()
        adapter = memory.host.adapter(verb.adapter)
        if adapter < 0:
            raise ValueError(
                f"no adapter {verb.adapter!r} is loaded; load it and open the space again"
            )
        if verb.most < 0:
            raise ValueError(f"most is {verb.most}; it must be at least 0 pages")
        memory.spaces[verb.space] = ProgramSpace(
            verb, Namespace(verb.namespace, adapter), memory.host.stamp(), memory.owner(verb.owner),
            HandleTable(self.facts.page_size),
        )  # fmt: skip

    def _alloc(self, space: ProgramSpace, verb: AllocPages) -> None:
        handles = numbers(verb.handles, "handles")
        space.table.verify_free(handles)
        if len(handles):
            pages = self.memory.take(space, len(handles))
            self.memory.map(space, handles, pages, writable=True)

    def _free(self, space: ProgramSpace, verb: FreePages) -> None:
        self.memory.free(space, numbers(verb.handles, "handles"))

    def _copy(self, space: ProgramSpace, verb: CopyTokens) -> None:
        sources, targets = numbers(verb.sources, "sources"), numbers(verb.targets, "targets")
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} tokens are copied to {len(targets)} slots")
        if not len(sources):
            return
        self._verify_pending(space)
        reads, writes = self._readable(space, sources), self._writable(space, targets)
        work = CopyWork(self._next(), reads, writes, space.verb.priority)
        self.memory.positions.copy(reads, writes)
        self._fill(writes)
        space.pending.append(work)

    # -- exports ---------------------------------------------------------------------------------

    def _export(self, space: ProgramSpace, verb: ExportPages) -> None:
        handles = numbers(verb.handles, "handles")
        pages = space.table.pages(handles)
        if not 0 < len(verb.name) <= MOST_NAME:
            raise ValueError(f"the name has {len(verb.name)} characters; 1 to {MOST_NAME} may be")
        if len(np.unique(pages)) < len(pages) or not len(pages):
            raise ValueError("the handles stand for no page, or for one twice; give each once")
        if not self.memory.pages.owned(pages).all():
            raise ValueError(
                "a page is of the prefix cache, which shares it without an export; ask for it with "
                "prefix_pages"
            )
        if (space.namespace, verb.name) in self.memory.exports:
            raise ValueError(
                f"an export {verb.name!r} is there already; release it or take another"
            )
        self.memory.pages.hold(pages)
        slots = self.memory.pages.slots(pages)
        work = ExportWork(self._next(), verb, pages, slots, space.verb.priority)
        if space.pending:
            space.pending.append(work)
        else:
            self.export(space, work)

    def export(self, space: ProgramSpace, work: ExportWork) -> None:
        """Give pages their name, once all that writes them is planned."""
        verb = work.verb
        try:
            self.memory.export((space.namespace, verb.name), work.pages, space.owner)
        except ValueError as error:  # the name was taken meanwhile
            self.memory.pages.give(work.pages)
            self._refuse(verb, "invalid", str(error))
            return
        self._say(space, verb.request, len(work.pages))

    def _import(self, space: ProgramSpace, verb: ImportPages) -> None:
        pages = self.memory.exported((space.namespace, verb.name)).pages
        handles = self._run(space, verb.first, len(pages))
        self.memory.verify_cap(space, len(pages))
        self.memory.pages.hold(pages)
        self.memory.map(space, handles, pages)
        self._say(space, verb.request, len(pages))

    def _release(self, space: ProgramSpace, verb: ReleaseExport) -> None:
        self.memory.release_export((space.namespace, verb.name))
        self._say(space, verb.request)

    def _list(self, space: ProgramSpace, verb: ListExports) -> None:
        names = [
            name
            for namespace, name in self.memory.exports
            if namespace == space.namespace and name.startswith(verb.prefix)
        ]
        self._say(space, verb.request, len(names), tuple(names[:MOST_NAMES]))

    def _prefix(self, space: ProgramSpace, verb: PrefixPages) -> None:
        tokens = numbers(verb.tokens, "tokens")
        self._verify_tokens(tokens)
        count = len(tokens) // self.facts.page_size
        handles = self._run(space, verb.first, count)
        if not count:
            self._say(space, verb.request)
            return
        self.memory.verify_cap(space, count)
        self._prefixes.begin(space, verb.request, handles, tokens[: count * self.facts.page_size])

    def _run(self, space: ProgramSpace, first: int, count: int) -> Array:
        """Handles from ``first`` on, none of them in use."""
        handles = np.arange(first, first + count, dtype=np.int64)
        space.table.verify_free(handles)
        return handles.astype(np.int32)

    # -- forwards --------------------------------------------------------------------------------

    def _forward(self, space: ProgramSpace, verb: ForwardTokens) -> None:
        self._verify_pending(space)
        self._verify_outputs(space, verb)
        if verb.read or verb.keep:
            raise ValueError("this engine keeps no hidden states; forward token ids")
        tokens = numbers(verb.tokens, "tokens")
        visible, written = numbers(verb.visible, "visible"), numbers(verb.written, "written")
        count, seen = len(tokens), len(visible)
        if not count:
            raise ValueError("a forward has no tokens; give it at least one")
        self._verify_tokens(tokens)
        self._verify_length(seen, count)
        if len(written) not in (0, count):
            raise ValueError(
                f"{count} tokens are written to {len(written)} slots; one each, or none"
            )
        positions = self._positions(verb, seen, count)
        runs = mask_runs(verb.mask, seen, count)
        if sum(len(run.seen) + run.last - run.first for run in runs) > MOST_BITS:
            raise ValueError(
                f"the mask makes {len(runs)} rows, which see more than {MOST_BITS} slots together; "
                "compute the tokens in several forwards"
            )
        reads = self._readable(space, visible)
        scratch = NONE
        if len(written):
            writes = self._writable(space, written)
        else:
            verify_pages(self.facts.page_size, seen)
            scratch = self.memory.take(space, -(-count // self.facts.page_size))
            writes = self.memory.pages.slots(scratch)[:count]
        verb, followed = self._followed(space, self._plain(verb))
        work = ForwardWork(
            self._next(), verb, reads, writes, runs, verb.priority or space.verb.priority, scratch,
            followed,
        )  # fmt: skip
        try:
            self._verify_view(work, positions)
        except ValueError:
            self.memory.pages.give(scratch)
            raise
        self.memory.positions.write(writes, positions)
        self._fill(writes)
        space.pending.append(work)
        if verb.request != UNANSWERED:
            space.forwards[verb.request] = work

    def _plain(self, verb: ForwardTokens) -> ForwardTokens:
        """The forward without what the program sees to itself: stops and constraints."""
        params = verb.sample
        if params is None or not (params.stop or params.stop_regex or params.constraint):
            return verb
        plain = replace(params, stop=(), stop_regex=(), constraint=None)
        return replaced(verb, sample=plain)

    def _verify_view(self, work: ForwardWork, positions: Array) -> None:
        """Raise ValueError for a view that the memory or the model cannot have."""
        pages = self.memory.pages
        if pages.repeated(np.concatenate([work.reads, work.writes])):
            raise ValueError("a slot is seen or written twice; name each once, and none in both")
        verify_pages(self.facts.page_size, 0, work)
        self.memory.positions.verify(work, positions)

    def _verify_outputs(self, space: ProgramSpace, verb: ForwardTokens) -> None:
        vocab = self.facts.vocab_size
        if verb.request < UNANSWERED:
            raise ValueError(f"request is {verb.request}; it must be at least 0, or {UNANSWERED}")
        if verb.request in space.forwards:
            raise ValueError(f"request {verb.request} has no answer yet; take another number")
        if verb.top < WHOLE or verb.top > vocab:
            raise ValueError(f"top is {verb.top}; it may be {WHOLE} (all ids) to {vocab}")
        if verb.sample is not None:
            verb.sample.verify(vocab)
            if not 0 <= verb.uniform < 1:
                raise ValueError(f"uniform is {verb.uniform}; it must be in [0, 1)")
            if verb.allowed and len(verb.allowed) != 4 * -(-vocab // 32):
                raise ValueError(
                    f"allowed has {len(verb.allowed)} bytes; {vocab} ids need {4 * -(-vocab // 32)}"
                )
            self._verify_tokens(numbers(verb.history, "history"))
        self._verify_tokens(np.array(verb.probe, dtype=np.int64))
        if verb.follows >= 0 and verb.follows not in space.sampled:
            followed = space.forwards.get(verb.follows)
            if followed is None or followed.verb.sample is None:
                raise ValueError(
                    f"follows is {verb.follows}; no earlier forward of the space with this number "
                    "samples a token, or too many have since"
                )

    def _followed(
        self, space: ProgramSpace, verb: ForwardTokens
    ) -> tuple[ForwardTokens, ForwardWork | None]:
        """Return a forward and the one that it follows; None where it follows none, or that has
        been answered: its token is in the verb then."""
        if verb.follows < 0:
            return verb, None
        followed = space.forwards.get(verb.follows)
        if followed is not None and followed.verb.sample is not None:
            return verb, followed
        token = ints([space.sampled[verb.follows]]).tobytes()
        history = verb.history + token
        return replaced(verb, tokens=token + verb.tokens[4:], history=history, follows=-1), None

    def _positions(self, verb: ForwardTokens, seen: int, count: int) -> Array:
        if not verb.positions:
            return np.arange(seen, seen + count, dtype=np.int32)
        positions, length = numbers(verb.positions, "positions"), self.facts.context_length
        if len(positions) != count:
            raise ValueError(
                f"{count} tokens have {len(positions)} positions; give one each, or none"
            )
        if int(positions.min()) < 0 or int(positions.max()) >= length:
            wrong = positions[(positions < 0) | (positions >= length)][0]
            raise ValueError(f"position {wrong} is outside [0, {length}), the model's positions")
        return positions

    def _verify_tokens(self, tokens: Array) -> None:
        vocab = self.facts.vocab_size
        if len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab):
            wrong = tokens[(tokens < 0) | (tokens >= vocab)][0]
            raise ValueError(f"token id {wrong} is outside the vocabulary of {vocab}")

    def _verify_length(self, seen: int, count: int) -> None:
        length = self.facts.context_length
        if seen + count > length:
            raise ValueError(
                f"{count} tokens that see {seen} slots exceed the context length of {length}; mask "
                "some slots or start with a model of a longer context"
            )

    def _verify_pending(self, space: ProgramSpace) -> None:
        if len(space.pending) >= MOST_PENDING:
            raise OverCap(
                f"{MOST_PENDING} forwards and copies of the space wait for a pass, as many as may; "
                "await some first"
            )

    # -- slots -----------------------------------------------------------------------------------

    def _readable(self, space: ProgramSpace, slots: Array) -> Array:
        """Slots of the pool for slots of the space that have KV, or will when earlier work is
        done."""
        found = space.table.slots(slots)
        if len(empty := self.memory.pages.unfilled(found)):
            where = slots[np.flatnonzero(found == empty[0])[0]]
            raise ValueError(f"slot {where} holds no KV (never written, or lost); write it first")
        return found

    def _writable(self, space: ProgramSpace, slots: Array) -> Array:
        """Slots of the pool for slots of the space that it may write."""
        found, size = space.table.slots(slots), self.facts.page_size
        space.table.verify_writable(slots // size)
        pages = found // size
        shared = slots[~self.memory.pages.sole(pages)]
        if len(shared):
            raise ValueError(
                f"slot {shared[0]} is exported, and read-only until the export is released"
            )
        if self.memory.pages.repeated(found):
            raise ValueError("a slot is written twice")
        return found

    def _next(self) -> int:
        self.memory.pages.number += 1
        return self.memory.pages.number
