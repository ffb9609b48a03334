"""Page tables as fake workers keep them: lists, and every broken promise is an error."""

from __future__ import annotations

import msgspec
from sglang.srt.core.batch import Batch, Row
from sglang.srt.core.ints import Ints


class Corrupt(BaseException):
    """The engine has broken its promise to the worker. Not an Exception, which the engine would
    take for a failed pass."""


class Tables:
    """Page tables by context, of pages of ``page_size`` tokens.

    Attributes:
        known: by context.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.known: dict[int, Ints] = {}

    def rows(self, batch: Batch) -> list[Row]:
        """Apply the changes of a batch. Return copies of its rows with all the pages they see."""
        for context in batch.dropped:
            self.known.pop(context, None)
        return [self._whole(row) for row in batch.rows]

    def _whole(self, row: Row) -> Row:
        before = self.known.get(row.context)
        if row.kept and (before is None or len(before) < row.kept):
            raise Corrupt("a row keeps pages that the worker does not have")
        kept = before[: row.kept] if before is not None else row.pages[:0]
        table = self.known[row.context] = kept + row.pages
        low, high = row.gap or (0, 0)
        count = -(-(row.start + len(row.tokens)) // self.page_size)
        view = (table[:low] + table[high:])[:count]
        if len(view) < count:
            raise Corrupt("a row has too few pages for its tokens")
        return msgspec.structs.replace(row, pages=view)
