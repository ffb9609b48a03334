"""Prompts in the form that the router uses: a chain of blocks, each with a hash of its tokens.

A block has 64 tokens in the first 8,192 tokens of a prompt, and 512 after them: a prompt of
131,072 tokens has 368 blocks. The tree stores 4 bytes for each. The last tokens, fewer than a
block, are left out.
Two different blocks with equal hashes (1 of 2**32 pairs) cost a cache miss, never a wrong answer.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from sglang.srt.core.call_hints import CallHint, PrefixHash
from sglang.srt.core.ints import Ints

FINE, COARSE = 64, 512  # tokens of a block
FINE_BLOCKS = 128  # blocks of ``FINE`` tokens that a prompt begins with
FINE_TOKENS = FINE * FINE_BLOCKS
BYTES = 4  # size of a token


@dataclass(frozen=True, slots=True)
class RoutedPrompt:
    """A request for which an engine is chosen.

    Attributes:
        tokens: ids of the whole prompt, with pseudo-tokens for media.
        namespace: prompts of different namespaces share no KV.
        adapter: name of the LoRA adapter, "" for none.
        affinity: the client's key of the conversation or program, "" for none.
        home: name of the engine that holds the parked context that the prompt continues, "" for
            none.
        new_tokens: most tokens that may be generated; 0: unknown.
        hint: facts about the application whose call the request is.
        prefixes: hashes of the prompt's beginnings that end at a variable, the shortest first.
    """

    tokens: Ints
    namespace: str = ""
    adapter: str = ""
    affinity: str = ""
    home: str = ""
    new_tokens: int = 0
    hint: CallHint | None = None
    prefixes: Sequence[PrefixHash] = ()

    def path(self) -> PrefixPath:
        """Hash the blocks. Linear in the tokens: 10 to 15 microseconds for 2,000 of them."""
        return path_of(self.tokens, self.namespace, self.adapter)


@dataclass(frozen=True, slots=True)
class PrefixPath:
    """A prefix as the hashes of its whole blocks.

    Attributes:
        space: (namespace, adapter); KV is shared within one.
        hashes: CRC-32 of each block, from the beginning.
    """

    space: tuple[str, str]
    hashes: array[int]

    @property
    def tokens(self) -> int:
        """Number of tokens in the whole blocks."""
        return tokens_at(len(self.hashes))


def path_of(tokens: Ints, namespace: str = "", adapter: str = "") -> PrefixPath:
    """Return the path of a prefix. The machines of a fleet must have one byte order."""
    data = memoryview(tokens).cast("B")
    fine = len(data) // (FINE * BYTES)
    hashes = _hashes(data, 0, min(fine, FINE_BLOCKS), FINE * BYTES)
    if fine > FINE_BLOCKS:
        start, size = FINE_TOKENS * BYTES, COARSE * BYTES
        hashes += _hashes(data, start, (len(data) - start) // size, size)
    return PrefixPath((namespace, adapter), hashes)


def _hashes(data: memoryview, start: int, count: int, size: int) -> array[int]:
    whole = data[start : start + count * size]
    blocks = map(itemgetter(0), struct.iter_unpack(f"{size}s", whole))
    return array("I", map(zlib.crc32, blocks))


def tokens_at(blocks: int) -> int:
    """Return the number of tokens in the first ``blocks`` blocks of a prompt."""
    if blocks <= FINE_BLOCKS:
        return blocks * FINE
    return FINE_TOKENS + (blocks - FINE_BLOCKS) * COARSE


def blocks_in(tokens: int) -> int:
    """Return the number of whole blocks in the first ``tokens`` tokens of a prompt."""
    if tokens <= FINE_TOKENS:
        return tokens // FINE
    return FINE_BLOCKS + (tokens - FINE_TOKENS) // COARSE
