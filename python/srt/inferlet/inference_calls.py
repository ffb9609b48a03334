"""InferenceCalls: the meaning of the calls that need pages, embeddings and forwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.space_messages import (
    WHOLE,
    AllocPages,
    CopyTokens,
    ExportPages,
    FreePages,
    ImportPages,
    ListExports,
    PrefixPages,
    ReleaseExport,
    SpaceReply,
    SpaceVerb,
)
from sglang.srt.engine.info import EngineInfo
from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet.future_token import FutureToken
from sglang.srt.inferlet.held_space import (
    FORWARD,
    MEMORY,
    SHARE,
    ExpectedReply,
    HeldSpace,
    SpaceCommand,
)
from sglang.srt.inferlet.packed_numbers import bit_mask, unpacked
from sglang.srt.inferlet.row_plan import NONE, Sampling, plan
from sglang.srt.requests.completion.completion_request import sampling_from

RUNTIME_QUEUE = -1  # queue of the calls that name none
MOST_PARAMS = 64  # parsed sets of sampling parameters


class Issued(Protocol):
    """The session, which gives commands their queue's number and priority."""

    def issue(self, command: SpaceCommand) -> None: ...

    def priority(self, queue: int) -> int: ...


class InferenceCalls:
    """Handlers of one program's calls: ``handle`` of each type in ``HANDLERS``. All raise
    ValueError, and then nothing has changed."""

    def __init__(
        self, space: HeldSpace, issued: Issued, info: EngineInfo, traits: frozenset[str]
    ) -> None:
        self.space, self._issued, self._info = space, issued, info
        self._traits = traits
        self._params: dict[bytes, SamplingParams] = {}

    def alloc_kvpage(self, call: c.AllocKvpageCall) -> None:
        handles = unpacked(call.pages)
        self.space.pages.alloc(handles)
        self._memory(call.queue, handles, lambda n: AllocPages(n, handles.tobytes()))

    def dealloc_kvpage(self, call: c.DeallocKvpageCall) -> None:
        handles = unpacked(call.pages)
        self.space.pages.free(handles)
        self._memory(call.queue, handles, lambda n: FreePages(n, handles.tobytes()))

    def copy_kvpage(self, call: c.CopyKvpageCall) -> None:
        sources, targets = unpacked(call.sources), unpacked(call.targets)
        self.space.pages.copy(sources, targets)
        data = sources.tobytes(), targets.tobytes()
        command = self._command(call.queue, MEMORY, lambda n: CopyTokens(n, *data))
        command.needs, command.writes = sources, targets
        self._issued.issue(command)

    def mask_kvpage(self, call: c.MaskKvpageCall) -> None:
        self.space.pages.mask(call.page, call.mask)

    def export_kvpage(self, call: c.ExportKvpageCall) -> None:
        handles = unpacked(call.pages)
        self.space.pages.fix(handles)
        data = handles.tobytes()
        self._share(
            call.queue, -1, handles, lambda n, request: ExportPages(n, request, data, call.name)
        )

    def import_kvpage(self, call: c.ImportKvpageCall) -> None:
        self._share(
            call.queue,
            call.id,
            (),
            lambda n, request: ImportPages(n, request, call.name, call.first),
            lambda reply: self._mapped(call.first, reply),
        )

    def prefix(self, call: c.PrefixCall) -> None:
        tokens = self._tokens(call.tokens).tobytes()
        self._share(
            call.queue,
            call.id,
            (),
            lambda n, request: PrefixPages(n, request, tokens, call.first),
            lambda reply: self._mapped(call.first, reply),
        )

    def list_exports(self, call: c.ListExportsCall) -> None:
        self._share(
            RUNTIME_QUEUE,
            call.id,
            (),
            lambda n, request: ListExports(n, request, call.prefix),
            lambda reply: list(reply.names),
        )

    def release_export(self, call: c.ReleaseExportCall) -> None:
        self._share(RUNTIME_QUEUE, -1, (), lambda n, request: ReleaseExport(n, request, call.name))

    def alloc_emb(self, call: c.AllocEmbCall) -> None:
        if call.states and "hidden" not in self._traits:
            raise ValueError("the model has no trait 'hidden', which states=True needs")
        self.space.embeds.alloc(unpacked(call.embs), call.states)

    def dealloc_emb(self, call: c.DeallocEmbCall) -> None:
        self.space.embeds.free(unpacked(call.embs))

    def embed_txt(self, call: c.EmbedTxtCall) -> None:
        tokens, embs = self._tokens(call.tokens), unpacked(call.embs)
        positions = unpacked(call.positions)
        if not len(tokens) == len(positions) == len(embs):
            raise ValueError(
                f"{len(tokens)} tokens, {len(positions)} positions and {len(embs)} embeddings; "
                "give as many of each"
            )
        last = max(positions, default=0)
        if last >= self._info.context_length:
            raise ValueError(
                f"position {last} is outside of the model's context; at most "
                f"{self._info.context_length - 1}"
            )
        self.space.embeds.fill(embs, tokens, positions)

    def forward(self, call: c.ForwardCall) -> None:
        sampling = self._sampling(call) if isinstance(call, c.ForwardWithSamplingCall) else None
        if isinstance(call, c.ForwardWithAdapterCall):
            self.space.use_adapter(call.adapter)
        priority = self._issued.priority(call.queue)
        row = plan(call, self.space.pages, self.space.embeds, sampling, priority)
        command = self._command(call.queue, FORWARD, None)
        command.row, command.reads, command.writes = row, row.visible, row.written
        if row.follows is not None:
            command.follows = row.follows.command
        if sampling is not None and sampling.future is not None:
            sampling.future.command = command
        if row.read or any(output.states for output in row.outputs):
            command.needs = [-1 - emb for _, emb in row.read]
            command.writes = [*row.written, *(-1 - one.emb for one in row.outputs)]
        self._issued.issue(command)

    def refused(self, call: c.ProgramCall) -> None:
        """Empty the embedding that a refused call names for its token, so that no later forward
        begins with an older one."""
        if isinstance(call, c.ForwardWithSamplingCall) and call.future is not None:
            self.space.embeds.clear(call.future)

    def get_next_dist(self, call: c.GetNextDistCall) -> None:
        if call.k == -1 or (call.k != WHOLE and call.k > self._info.vocab_size):
            raise ValueError(
                f"k is {call.k}; it is at most the vocabulary, {self._info.vocab_size}, "
                f"or {WHOLE} for all of it"
            )
        output = self.space.embeds.get(call.emb).output
        if output is None:
            raise ValueError(
                f"embedding {call.emb} is no output; a forward with it in oemb is first"
            )
        output.ask(call, self._tokens(call.probe))
        if output.done is not None or output.failed is not None:
            self.space.answer_asked(output, call.queue)

    def _sampling(self, call: c.ForwardWithSamplingCall) -> Sampling:
        key = msgspec.json.encode(call.params)
        params = self._params.get(key)
        if params is None:
            params = sampling_from(call.params)
            if params.constraint is not None or params.n != 1:
                raise ValueError(
                    "params has a constraint or n; give the allowed tokens of each forward in "
                    "`allowed`, and one forward for each token"
                )
            if len(self._params) >= MOST_PARAMS:
                self._params.clear()
            self._params[key] = params
        allowed = b""
        if call.allowed is not None:
            ids = self._tokens(call.allowed)
            if not ids:
                raise ValueError("allowed is empty; leave it out, or allow at least one token")
            allowed = bit_mask(ids, self._info.vocab_size)
        future = None
        if call.future is not None:
            future = FutureToken(call.id, call.queue, self._info.context_length)
        return Sampling(call.id, params, call.uniform, self._tokens(call.history), allowed, future)

    def _tokens(self, given: Sequence[int] | bytes) -> Any:
        if not given:
            return NONE
        tokens = unpacked(given)
        if tokens and max(tokens) >= self._info.vocab_size:
            raise ValueError(
                f"token {max(tokens)} is outside of the vocabulary; at most "
                f"{self._info.vocab_size - 1}"
            )
        return tokens

    def _mapped(self, first: int, reply: SpaceReply) -> int:
        self.space.pages.map(first, reply.count)
        return reply.count

    def _memory(self, queue: int, handles: Sequence[int], verb: Callable[[int], SpaceVerb]) -> None:
        command = self._command(queue, MEMORY, verb)
        command.writes = self.space.pages.slots(handles)
        self._issued.issue(command)

    def _share(
        self,
        queue: int,
        call: int,
        handles: Sequence[int],
        verb: Callable[[int, int], SpaceVerb],
        reply: Callable[[SpaceReply], Any] | None = None,
    ) -> None:
        """A command whose verb the engine answers; the answer is the value of ``call``."""
        command = self._command(queue, SHARE, None)
        command.needs = self.space.pages.slots(handles)

        def verbs() -> list[SpaceVerb]:
            request = self.space.expect(
                ExpectedReply(command, call, reply=reply or (lambda _: None))
            )
            return [verb(self.space.number, request)]

        command.verbs = verbs
        self._issued.issue(command)

    def _command(
        self, queue: int, kind: str, verb: Callable[[int], SpaceVerb] | None
    ) -> SpaceCommand:
        if self.space.end is not None:
            raise ValueError(f"the program's pages are gone: {self.space.end.message}")
        command = SpaceCommand(-1, kind, space=self.space, handle=queue)
        if verb is not None:
            command.verbs = lambda: [verb(self.space.number)]
        return command
