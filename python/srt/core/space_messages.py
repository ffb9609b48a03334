"""Verbs and events of programs that hold KV pages: inferlets (Pie, sections 4.2 and 5.2).

A program opens a *space*, which holds pages of the KV cache. The program names its pages by numbers
that it chooses (*handles*, at most ``MOST_HANDLES``), so that no verb has to wait for the answer to
another. A *slot* is one token's KV: ``handle * page_size + offset``. Arrays are sent as bytes in
native order: handles, slots, tokens and positions are int32, log-probabilities are float32.

    verb        effect
    OpenSpace   open a space without pages
    CloseSpace  close a space and free its pages
    AllocPages, FreePages
                take pages under these handles; free pages and their handles
    CopyTokens  copy KV of single tokens, from slots to slots
    ExportPages, ImportPages, ReleaseExport, ListExports
                share pages under a name, read-only, with all spaces of the namespace
    PrefixPages map pages of a text from the prefix cache, read-only; missing KV is computed
    ForwardTokens
                run tokens through the model: write KV, sample a token, read a distribution

    event       meaning
    SpaceReply  answer to a verb that has a request
    ForwardDone answer to a ForwardTokens
    SpaceFailed a verb was refused, or KV was lost; the space stays open
    SpaceEnded  the engine has ended the space

Verbs of a space take effect in their order. A forward may be computed before an earlier one if
neither writes a slot that the other uses.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import WHOLE as WHOLE

MOST_HANDLES = 1 << 20
UNANSWERED = -1  # ``request`` of a forward that is answered only if it is refused


class OpenSpace(msgspec.Struct, frozen=True, tag="open_space", omit_defaults=True):
    """Open a space.

    Attributes:
        space: id of the space, chosen by the client.
        namespace: a salt as in ``Open``; spaces share exports and prefixes only within one.
        adapter: name of a loaded adapter, which all forwards of the space use; "": none.
        priority: priority of forwards without their own; higher ones go first.
        owner: tenant; all spaces of a tenant have a common cap of pages.
        most: most pages of the space; 0: the engine's default.
    """

    space: int
    namespace: str = ""
    adapter: str = ""
    priority: int = 0
    owner: str = ""
    most: int = 0


class CloseSpace(msgspec.Struct, frozen=True, tag="close_space"):
    """Close a space. Pending forwards are dropped without an answer. No effect if the space is not
    open."""

    space: int


class AllocPages(msgspec.Struct, frozen=True, tag="alloc_pages"):
    """Take a page for each of these handles (int32), none of which may be in use."""

    space: int
    handles: bytes


class FreePages(msgspec.Struct, frozen=True, tag="free_pages"):
    """Free handles and pages, also imported and prefix pages. Earlier forwards still use them."""

    space: int
    handles: bytes


class CopyTokens(msgspec.Struct, frozen=True, tag="copy_tokens"):
    """Copy KV from slot ``sources[i]`` to ``targets[i]``; all are read before any is written."""

    space: int
    sources: bytes
    targets: bytes


class ExportPages(msgspec.Struct, frozen=True, tag="export_pages"):
    """Share pages under a name that no export of the namespace has. No space may write the pages
    until the export is released. An export outlives its space."""

    space: int
    request: int
    handles: bytes
    name: str


class ImportPages(msgspec.Struct, frozen=True, tag="import_pages"):
    """Map an export's pages, read-only, to the handles from ``first`` on. The answer's
    ``SpaceReply.count`` is the number of pages."""

    space: int
    request: int
    name: str
    first: int


class ReleaseExport(msgspec.Struct, frozen=True, tag="release_export"):
    """Remove an export's name. Spaces that have imported its pages keep them."""

    space: int
    request: int
    name: str


class ListExports(msgspec.Struct, frozen=True, tag="list_exports", omit_defaults=True):
    """Request the names of the namespace's exports with ``prefix`` (``SpaceReply.names``)."""

    space: int
    request: int
    prefix: str = ""


class PrefixPages(msgspec.Struct, frozen=True, tag="prefix_pages"):
    """Map the KV pages of a text, read-only, to the handles from ``first`` on: token ``i`` has
    position ``i`` and sees all tokens before. ``SpaceReply.count``: number of whole pages."""

    space: int
    request: int
    tokens: bytes
    first: int


class ForwardTokens(msgspec.Struct, frozen=True, tag="forward", omit_defaults=True):
    """Compute tokens (Pie, section 4.2: embed_txt, forward, get_next_dist in one).

    Attributes:
        request: id of the answer, unique among unanswered forwards; ``UNANSWERED``: no answer.
        tokens: token ids.
        positions: positions of the rotary embedding; empty: ``len(visible)`` and following.
        visible: slots that every token sees, besides the forward's tokens up to itself.
        written: a slot for each token's KV; empty: the KV is not kept.
        mask: restricts what the tokens see; empty: no restriction. A row of bits for each token,
            ``ceil((len(visible) + len(tokens)) / 8)`` bytes, low bit first. Bit ``j``: the token
            sees entry ``j`` of the list (``visible``, then the forward's tokens). A token always
            sees itself and never a later one.
        sample: parameters for sampling a token after the last token; None: no sample.
        uniform: the random number of the sample, in [0, 1).
        history: tokens that the penalties of ``sample`` count.
        allowed: ids that may be sampled, bits of little-endian int32 words; empty: all.
        top: -1: no log-probabilities; 0: only the sampled token's; ``k`` > 0: also those of the
            ``k`` most likely tokens; ``WHOLE``: those of all ids, in the order of ids.
        probe: ids whose log-probability to report after the last token.
        targets: pairs (index, id), ascending by index: report the log-probability of ``id`` after
            token ``index``. Each token needs at least one; no other output may be requested then.
        read: (index, hidden slot): the token's embedding is the state in that slot.
        keep: hidden slots that receive the final states of the last ``len(keep)`` tokens.
        priority: priority of the forward; 0: the space's.
        follows: ``request`` of an earlier forward whose sampled token is ``tokens[0]``; -1: none.
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
    """Answer to verbs about exports and to PrefixPages. ``count``: number of pages or names."""

    space: int
    request: int
    count: int = 0
    names: tuple[str, ...] = ()


class ForwardDone(msgspec.Struct, frozen=True, tag="forward_done", omit_defaults=True):
    """Answer to a ForwardTokens.

    Attributes:
        token: the sampled token; -1: none was requested.
        logprob: natural logarithm of its probability, before temperature, penalties and masks.
        ids: int32, the most likely tokens, most likely first; empty for ``WHOLE``.
        logprobs: float32 log-probabilities of ``ids``; for ``WHOLE`` of the whole vocabulary.
        probe: float32 log-probabilities for ``ForwardTokens.probe`` or ``targets``.
    """

    space: int
    request: int
    token: int = -1
    logprob: float = 0.0
    ids: bytes = b""
    logprobs: bytes = b""
    probe: bytes = b""


class SpaceFailed(msgspec.Struct, frozen=True, tag="space_failed", omit_defaults=True):
    """A verb was refused and had no effect, or KV was lost. The space stays open.

    Attributes:
        request: request of the verb; -1: the verb has none.
        code: "invalid", "overloaded" (a cap of pages), "internal" or "lost".
        lost: int32, handles of pages whose KV is undefined now.
    """

    space: int
    request: int
    code: str
    message: str
    lost: bytes = b""


class SpaceEnded(msgspec.Struct, frozen=True, tag="space_ended"):
    """The engine has ended or refused the space; its forwards get no answer. ``code``: "overloaded"
    (older requests or programs need the pages), "lost" (the engine is about to end), "invalid"."""

    space: int
    code: str
    message: str


SpaceEvent: TypeAlias = SpaceReply | ForwardDone | SpaceFailed | SpaceEnded
