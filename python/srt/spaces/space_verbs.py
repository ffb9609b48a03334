"""SpaceVerbs: checks the verbs of spaces against handles, caps and model; makes work of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace as replaced
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import from_bytes, ints
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
from sglang.srt.spaces.handle_table import HandleTable, numbers, outside
from sglang.srt.spaces.mask_runs import MOST_BITS, MaskRun, mask_runs
from sglang.srt.spaces.prefix_fills import PrefixFills
from sglang.srt.spaces.program_space import ProgramSpace
from sglang.srt.spaces.row_targets import RowTargets
from sglang.srt.spaces.slot_views import verify_pages
from sglang.srt.spaces.space_host import SpaceFacts
from sglang.srt.spaces.space_memory import OverCap, SpaceMemory, SpaceOver
from sglang.srt.spaces.space_work import NONE, CopyWork, ExportWork, ForwardWork

Array: TypeAlias = np.ndarray[Any, Any]
MOST_SPACES = 4096
MOST_PENDING = 1024  # work items of a space that wait for a pass
MOST_NAME = 256  # characters of an export's name
MOST_NAMES = 1024  # exports in one answer
MOST_VERIFIED = 256  # verified sampling parameters that are kept


class SpaceVerbs:
    """Applies verbs in their order. A verb that is refused has no effect."""

    def __init__(self, memory: SpaceMemory, facts: SpaceFacts, prefixes: PrefixFills) -> None:
        self.memory, self.facts, self._prefixes = memory, facts, prefixes
        self._fill = memory.pages.fill
        self._verified: dict[int, SamplingParams] = {}  # parameters by identity
        self._last: SamplingParams | None = None  # the last ones
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
        """Apply a verb. Answers and refusals are appended to ``self.memory.events``."""
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
            pass  # the memory's events have a SpaceEnded
        except (ValueError, OverflowError) as error:
            code = "overloaded" if isinstance(error, OverCap) else "invalid"
            self._refuse(verb, code, str(error))

    def _refuse(self, verb: SpaceVerb, code: str, message: str) -> None:
        if isinstance(verb, OpenSpace) and verb.space not in self.memory.spaces:
            self.memory.events.append(SpaceEnded(verb.space, code, message))
            return
        request, space = getattr(verb, "request", UNANSWERED), self.memory.spaces.get(verb.space)
        if space is not None and request in space.forwards:
            request = UNANSWERED  # the id belongs to another forward, which is not refused
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
        reads, writes = space.table.slots(sources), space.table.slots(targets)
        self._verify_filled(sources, reads)
        self._verify_writable(space, targets, writes)
        if self.memory.pages.repeated(writes):
            raise ValueError("a slot is written twice")
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
            raise ValueError("the handles map no page, or one page twice; give each page once")
        if not self.memory.pages.owned(pages).all():
            raise ValueError(
                "a page is of the prefix cache, which shares it without an export; request it with "
                "prefix_pages"
            )
        if (space.namespace, verb.name) in self.memory.exports:
            raise ValueError(
                f"an export {verb.name!r} is there already; release it or take another"
            )
        self._verify_pending(space)
        self.memory.pages.hold(pages)
        slots = self.memory.pages.slots(pages)
        work = ExportWork(self._next(), verb, pages, slots, space.verb.priority)
        if space.pending:
            space.pending.append(work)
        else:
            self.export(space, work)

    def export(self, space: ProgramSpace, work: ExportWork) -> None:
        """Register an export, after all work that writes its pages was planned."""
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
        """Return ``count`` handles from ``first`` on. Raises ValueError if one is in use."""
        handles = np.arange(first, first + count, dtype=np.int64)
        space.table.verify_free(handles)
        return handles.astype(np.int32)

    # -- forwards --------------------------------------------------------------------------------

    def _forward(self, space: ProgramSpace, verb: ForwardTokens) -> None:
        self._verify_pending(space)
        self._verify_outputs(space, verb)
        if verb.read or verb.keep:
            raise ValueError("this engine keeps no hidden states; forward token ids")
        tokens, seen = numbers(verb.tokens, "tokens"), len(verb.visible) // 4
        count = len(tokens)
        if not count:
            raise ValueError("a forward has no tokens; give it at least one")
        self._verify_tokens(tokens)
        self._verify_length(seen, count)
        self._verify_positions(verb, count)
        targets = self._targets(verb, count)
        runs = self._runs(verb, seen, count, targets)
        slots, scratch = self._continued(space, verb), NONE
        if slots is None:
            slots, scratch = self._slots(space, verb, count)
        verb, followed = self._followed(space, self._plain(verb))
        work = ForwardWork(
            self._next(), verb, slots, seen, runs, verb.priority or space.verb.priority, scratch,
            followed, targets,
        )  # fmt: skip
        try:
            self._verify_view(work)
        except ValueError:
            self.memory.pages.give(scratch)
            raise
        self._fill(work.writes)
        if verb.written:
            space.table.known = verb.visible + verb.written, slots
        space.pending.append(work)
        if verb.request != UNANSWERED:
            space.forwards[verb.request] = work

    def _targets(self, verb: ForwardTokens, count: int) -> RowTargets | None:
        """Return the targets of a forward, or None if there are none. Raises ValueError."""
        if not verb.targets:
            return None
        if verb.sample is not None or verb.probe or verb.top != -1:
            raise ValueError("a forward with targets samples and reads nothing else; give it alone")
        targets = RowTargets.of(verb.targets, count)
        self._verify_tokens(targets.ids)
        return targets

    def _runs(
        self, verb: ForwardTokens, seen: int, count: int, targets: RowTargets | None
    ) -> list[MaskRun]:
        if not verb.mask and targets is None:
            return [MaskRun(0, count, NONE)]
        runs = mask_runs(verb.mask, seen, count)
        if targets is not None:
            runs = targets.cut(runs, seen)
        if sum(len(run.seen) + run.last - run.first for run in runs) > MOST_BITS:
            raise ValueError(
                f"the mask makes {len(runs)} rows, which see more than {MOST_BITS} slots together; "
                "compute the tokens in several forwards"
            )
        return runs

    def _continued(self, space: ProgramSpace, verb: ForwardTokens) -> Array | None:
        """Return the pool's slots for a forward of one token that sees exactly the slots that the
        last forward saw and wrote (a plain decode loop). None: other forward, or to be checked."""
        known = space.table.known
        if known is None or known[0] != verb.visible or len(verb.written) != 4:
            return None
        if len(verb.tokens) != 4 or self.facts.page_size > 1 or self.memory.positions.kept:
            return None
        page = space.table.writable(from_bytes(verb.written)[0])
        if page < 0 or not self.memory.pages.sole(page):
            return None
        if self.memory.pages.filled(page) and (known[1] == page).any():
            return None  # the slot is among the known ones (only filled pages can be)
        return space.table.appended(page)

    def _slots(self, space: ProgramSpace, verb: ForwardTokens, count: int) -> tuple[Array, Array]:
        """Return the pool's slots that a forward sees and writes, and the scratch pages among them
        (for KV that is not kept). Raises ValueError, SpaceOver."""
        seen, size = len(numbers(verb.visible, "visible")), self.facts.page_size
        named = numbers(verb.visible + verb.written, "written")
        if len(named) - seen not in (0, count):
            raise ValueError(
                f"{count} tokens are written to {len(named) - seen} slots; one each, or none"
            )
        slots = space.table.slots(named)
        self._verify_filled(named, slots[:seen])
        if self.memory.pages.repeated(slots):
            raise ValueError("a slot is seen or written twice; name each once, and none in both")
        if len(named) > seen:
            self._verify_writable(space, named[seen:], slots[seen:])
            return slots, NONE
        verify_pages(size, seen)
        scratch = self.memory.take(space, -(-count // size))
        return np.concatenate([slots, self.memory.pages.slots(scratch)[:count]]), scratch

    def _plain(self, verb: ForwardTokens) -> ForwardTokens:
        """Return the forward without stops and constraints, which the program itself handles."""
        params = verb.sample
        if params is None or not (params.stop or params.stop_regex or params.constraint):
            return verb
        plain = replace(params, stop=(), stop_regex=(), constraint=None)
        return replaced(verb, sample=plain)

    def _verify_view(self, work: ForwardWork) -> None:
        """Raise ValueError if attention cannot read the work's slots. Note their positions."""
        verify_pages(self.facts.page_size, 0, work)
        if self.memory.positions.kept:
            positions = np.frombuffer(work.verb.positions, dtype=np.int32)
            if not len(positions):
                positions = np.arange(work.seen, work.seen + work.count, dtype=np.int32)
            self.memory.positions.verify(work, positions)
            self.memory.positions.write(work.writes, positions)

    def _verify_outputs(self, space: ProgramSpace, verb: ForwardTokens) -> None:
        vocab = self.facts.vocab_size
        if verb.request < UNANSWERED:
            raise ValueError(f"request is {verb.request}; it must be at least 0, or {UNANSWERED}")
        if verb.request in space.forwards:
            raise ValueError(f"request {verb.request} has no answer yet; take another number")
        if verb.top < WHOLE or verb.top > vocab:
            raise ValueError(f"top is {verb.top}; it may be {WHOLE} (all ids) to {vocab}")
        if verb.sample is not None:
            self._verify_sample(verb.sample)
            if not 0 <= verb.uniform < 1:
                raise ValueError(f"uniform is {verb.uniform}; it must be in [0, 1)")
            if verb.allowed and len(verb.allowed) != 4 * -(-vocab // 32):
                raise ValueError(
                    f"allowed has {len(verb.allowed)} bytes; {vocab} ids need {4 * -(-vocab // 32)}"
                )
            if verb.history:
                self._verify_tokens(numbers(verb.history, "history"))
        if verb.probe:
            self._verify_tokens(np.array(verb.probe, dtype=np.int32))
        if verb.follows >= 0 and verb.follows not in space.sampled:
            followed = space.forwards.get(verb.follows)
            if followed is None or followed.verb.sample is None:
                raise ValueError(
                    f"follows is {verb.follows}; no earlier forward of the space with this number "
                    "samples a token, or too many have since"
                )

    def _verify_sample(self, params: SamplingParams) -> None:
        """Raise ValueError for parameters out of bounds. Verified objects are remembered, since
        loops in this process send the same object again; messages carry new objects."""
        if self._verified.get(id(params)) is params:
            return
        if params != self._last:
            params.verify(self.facts.vocab_size)
        self._last = params
        if len(self._verified) >= MOST_VERIFIED:
            self._verified.clear()
        self._verified[id(params)] = params

    def _followed(
        self, space: ProgramSpace, verb: ForwardTokens
    ) -> tuple[ForwardTokens, ForwardWork | None]:
        """Return the verb and the forward that it follows, or None. If that forward was answered,
        return the verb with the sampled token in ``tokens`` and ``history``, and None."""
        if verb.follows < 0:
            return verb, None
        followed = space.forwards.get(verb.follows)
        if followed is not None and followed.verb.sample is not None:
            return verb, followed
        token = ints([space.sampled[verb.follows]]).tobytes()
        history = verb.history + token
        return replaced(verb, tokens=token + verb.tokens[4:], history=history, follows=-1), None

    def _verify_positions(self, verb: ForwardTokens, count: int) -> None:
        if not verb.positions:
            return
        positions, length = numbers(verb.positions, "positions"), self.facts.context_length
        if len(positions) != count:
            raise ValueError(
                f"{count} tokens have {len(positions)} positions; give one each, or none"
            )
        if outside(positions, length):
            wrong = positions[(positions < 0) | (positions >= length)][0]
            raise ValueError(f"position {wrong} is outside [0, {length}), the model's positions")

    def _verify_tokens(self, tokens: Array) -> None:
        vocab = self.facts.vocab_size
        if outside(tokens, vocab):
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
                f"{MOST_PENDING} forwards, copies and exports of the space wait for a pass, as "
                "many as may; await some first"
            )

    # -- slots -----------------------------------------------------------------------------------

    def _verify_filled(self, named: Array, slots: Array) -> None:
        """Raise ValueError unless slots of the pool have KV, or will have when earlier work is
        done. ``named``: the same slots in the space's numbers."""
        if len(empty := self.memory.pages.unfilled(slots)):
            where = named[np.flatnonzero(slots == empty[0])[0]]
            raise ValueError(f"slot {where} holds no KV (never written, or lost); write it first")

    def _verify_writable(self, space: ProgramSpace, named: Array, slots: Array) -> None:
        """Raise ValueError unless the space may write these slots (``named``: its numbers)."""
        size = self.facts.page_size
        handles, pages = (named, slots) if size == 1 else (named // size, slots // size)
        space.table.verify_writable(handles)
        shared = named[~self.memory.pages.sole(pages)]
        if len(shared):
            raise ValueError(
                f"slot {shared[0]} is exported, and read-only until the export is released"
            )

    def _next(self) -> int:
        self.memory.pages.number += 1
        return self.memory.pages.number
