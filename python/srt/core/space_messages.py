"""Verbs and events of programs that hold KV pages (Pie, sections 4.2 and 5.2).

A program opens a *space*: pages of the KV cache that are its own, under numbers that it chooses
itself (*handles*, at most ``MOST_HANDLES``). So no verb has to wait for the answer to another. A
*slot* is one token's KV: ``handle * page_size + offset``. Arrays travel as bytes in native order:
handles, slots, tokens and positions are int32, log-probabilities are float32.

    verb        effect
    OpenSpace   a space without pages
    CloseSpace  everything of it is given back
    AllocPages, FreePages
                pages under these handles; a handle is free again
    CopyTokens  KV of single tokens, from slots to slots
    ExportPages, ImportPages, ReleaseExport, ListExports
                pages under a name, read-only for all spaces of the namespace
    PrefixPages pages of a text from the prefix cache, read-only; what is missing is computed
    ForwardTokens
                tokens through the model: KV written, a token sampled, a distribution read

    event       meaning
    SpaceReply  answer to a verb that has a request
    ForwardDone answer to a ForwardTokens
    SpaceFailed a verb was refused, or KV was lost; the space goes on
    SpaceEnded  the space is gone, by no verb of the program

Verbs of a space take effect in their order. A forward may be computed before an earlier one where
neither writes a slot that the other uses.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import WHOLE as WHOLE

MOST_HANDLES = 1 << 20
UNANSWERED = -1  # number of a request that gets no answer unless it is refused


class OpenSpace(msgspec.Struct, frozen=True, tag="open_space", omit_defaults=True):
    """Open a space.

    Attributes:
        space: its number, which the client chooses.
        namespace: a salt, as ``Open``'s; exports and prefixes are shared within one.
        adapter: name of a loaded adapter, which all forwards of the space use.
        priority: of forwards that have none of their own; higher ones go first.
        owner: tenant, whose spaces have a cap together.
        most: cap of the space's pages; 0: the engine's.
    """

    space: int
    namespace: str = ""
    adapter: str = ""
    priority: int = 0
    owner: str = ""
    most: int = 0


class CloseSpace(msgspec.Struct, frozen=True, tag="close_space"):
    """Close a space. Pending forwards are dropped without an answer. A space that is not open:
    no effect."""

    space: int


class AllocPages(msgspec.Struct, frozen=True, tag="alloc_pages"):
    """Take pages under these handles, none of which is in use."""

    space: int
    handles: bytes


class FreePages(msgspec.Struct, frozen=True, tag="free_pages"):
    """Give pages back, imported and prefix pages too. Forwards that came before still use them."""

    space: int
    handles: bytes


class CopyTokens(msgspec.Struct, frozen=True, tag="copy_tokens"):
    """Copy the KV of ``sources[i]`` to ``targets[i]``, all read before any is written."""

    space: int
    sources: bytes
    targets: bytes


class ExportPages(msgspec.Struct, frozen=True, tag="export_pages"):
    """Share pages under a name that no export of the namespace has. No space may write them
    until the export is released. An export outlives its space."""

    space: int
    request: int
    handles: bytes
    name: str


class ImportPages(msgspec.Struct, frozen=True, tag="import_pages"):
    """Map an export's pages, read-only, to the handles from ``first`` on.
    Answer: ``SpaceReply.count`` pages."""

    space: int
    request: int
    name: str
    first: int


class ReleaseExport(msgspec.Struct, frozen=True, tag="release_export"):
    """Forget a name. Spaces that have imported the pages keep them."""

    space: int
    request: int
    name: str


class ListExports(msgspec.Struct, frozen=True, tag="list_exports", omit_defaults=True):
    """Names of the namespace's exports that begin with ``prefix``: ``SpaceReply.names``."""

    space: int
    request: int
    prefix: str = ""


class PrefixPages(msgspec.Struct, frozen=True, tag="prefix_pages"):
    """Map the pages of a text, read-only, to the handles from ``first`` on: token ``i`` at position
    ``i``, seeing all before it. Answer: ``SpaceReply.count`` whole pages."""

    space: int
    request: int
    tokens: bytes
    first: int


class ForwardTokens(msgspec.Struct, frozen=True, tag="forward", omit_defaults=True):
    """Compute tokens (Pie, section 4.2: embed_txt, forward, get_next_dist in one).

    Attributes:
        request: number of the answer, unlike those of the space's other forwards without one;
            ``UNANSWERED``: there is none.
        tokens: ids.
        positions: of the rotary embedding; empty: those from ``len(visible)`` on.
        visible: slots that the tokens see, besides those of the tokens before and their own.
        written: a slot for each token; empty: the KV is kept nowhere.
        mask: where the tokens see less than that: a row of bits for each token, low bit first,
            ``ceil((len(visible) + len(tokens)) / 8)`` bytes. Bit ``j``: it sees entry ``j`` of
            ``visible`` and then the pass's tokens. A token always sees itself and never a later
            one.
        sample: sample a token after the last one; None: none.
        uniform: the only randomness of the sample, in [0, 1).
        history: tokens that the penalties of ``sample`` count.
        allowed: ids that may be sampled, bits of little-endian int32 words; empty: all.
        top: -1: no log-probabilities; 0: the sampled token's; ``k``: the most likely tokens too;
            ``WHOLE``: those of all ids, in the order of ids.
        probe: ids whose log-probability is wanted.
        targets: pairs (index, id), ascending by index: the log-probability of the id after the
            token of that index is wanted; at least one for each token, in place of all else.
        read: (index, hidden slot): the token's embedding is the state in that slot.
        keep: hidden slots that receive the final states of the last ``len(keep)`` tokens.
        priority: 0: the space's.
        follows: an earlier forward of the space whose sampled token is ``tokens[0]``; -1: none.
    """

    space: int
    request: int
    tokens: bytes
    positions: bytes = b""
    visible: bytes = b""
    written: bytes = b""
    mask: bytes = b""
    sample: SamplingParams | None = None
    uniform: float = 0.0
    history: bytes = b""
    allowed: bytes = b""
    top: int = -1
    probe: tuple[int, ...] = ()
    targets: bytes = b""
    read: tuple[tuple[int, int], ...] = ()
    keep: tuple[int, ...] = ()
    priority: int = 0
    follows: int = -1


SpaceVerb: TypeAlias = (
    OpenSpace
    | CloseSpace
    | AllocPages
    | FreePages
    | CopyTokens
    | ExportPages
    | ImportPages
    | ReleaseExport
    | ListExports
    | PrefixPages
    | ForwardTokens
)


class SpaceReply(msgspec.Struct, frozen=True, tag="space_reply", omit_defaults=True):
    """Answer to an export's verb or PrefixPages. ``count``: pages. ``names``: of exports."""

    space: int
    request: int
    count: int = 0
    names: tuple[str, ...] = ()


class ForwardDone(msgspec.Struct, frozen=True, tag="forward_done", omit_defaults=True):
    """Answer to a ForwardTokens.

    Attributes:
        token: the sampled token; -1: none was requested.
        logprob: its log-probability, natural logarithm, before temperature, penalties and masks.
        ids: int32, the most likely tokens, most likely first; empty for ``WHOLE``.
        logprobs: float32, one each; for ``WHOLE`` one for each id of the vocabulary.
        probe: float32, one for each of ``ForwardTokens.probe``, or of its ``targets``.
    """

    space: int
    request: int
    token: int = -1
    logprob: float = 0.0
    ids: bytes = b""
    logprobs: bytes = b""
    probe: bytes = b""


class SpaceFailed(msgspec.Struct, frozen=True, tag="space_failed", omit_defaults=True):
    """A verb was refused and had no effect, or KV was lost. The space goes on.

    Attributes:
        request: the verb's; -1: it has none.
        code: "invalid", "overloaded" (a cap of pages), "internal" or "lost".
        lost: int32, handles of pages whose KV is undefined now.
    """

    space: int
    request: int
    code: str
    message: str
    lost: bytes = b""


class SpaceEnded(msgspec.Struct, frozen=True, tag="space_ended"):
    """The space and its pages are gone, and its forwards get no answer. ``code``: "overloaded"
    (older requests and programs needed its pages) or "lost" (the engine is about to end)."""

    space: int
    code: str
    message: str


SpaceEvent: TypeAlias = SpaceReply | ForwardDone | SpaceFailed | SpaceEnded
