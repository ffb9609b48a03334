"""Pages of a text that hold several tokens: which of them may be dropped, and where it is cut."""

from __future__ import annotations

import asyncio

import pytest
from sglang.inferlet.ctx import Ctx
from sglang.inferlet.page_context import PageContext
from sglang.inferlet.turns import Turns

FACTS = {"page_size": 4, "vocab_size": 100, "context_length": 1000, "eos": [2]}


@pytest.fixture
def text() -> PageContext:
    """Ten tokens, of which nine are computed: two whole pages and the first slot of a third."""
    found = PageContext(Ctx(Turns(), FACTS))
    found.extend(range(10))
    asyncio.run(found.flush())
    assert (found.computed, len(found.pages)) == (9, 3)
    return found


def test_a_page_in_part_computed_is_not_dropped(text: PageContext) -> None:
    last = text.pages[2]
    assert text.drop(0, 12) == 2
    assert text.pages == [last]
    text.extend(range(6))
    asyncio.run(text.flush())
    assert text.computed == 15
    assert text.pages[0] == last
    assert len(text.pages) == 2


@pytest.mark.parametrize("length", [5, 6, 7])
def test_a_cut_into_a_dropped_page_is_refused(text: PageContext, length: int) -> None:
    assert text.drop(4, 8) == 1
    pages = text.pages
    message = f"tokens 4 to {length - 1} was dropped .* after {length} tokens; it can after 4"
    for change in (text.cut, text.forget, lambda n: text.edit(n, n + 1, [99])):
        with pytest.raises(ValueError, match=message):
            change(length)
        assert (text.tokens, text.computed, text.pages) == ([*range(10)], 9, pages)


@pytest.mark.parametrize(("length", "pages"), [(9, 2), (8, 1), (4, 1), (2, 1), (0, 0)])
def test_a_text_with_a_dropped_page_is_cut_elsewhere(
    text: PageContext, length: int, pages: int
) -> None:
    text.drop(4, 8)
    text.cut(length)
    assert (len(text.tokens), text.computed, len(text.pages)) == (length, length, pages)
    text.extend([7, 8, 9])
    asyncio.run(text.flush(last=True))
    assert text.computed == length + 3


def test_a_cut_into_skipped_tokens_is_refused(text: PageContext) -> None:
    text.cut(8)
    text.skip(range(4))
    with pytest.raises(ValueError, match="tokens 8 to 9 was dropped or skipped"):
        text.cut(10)


def test_a_text_without_all_its_pages_is_not_exported(text: PageContext) -> None:
    text.drop(4, 8)
    with pytest.raises(ValueError, match=r"1 of the text's 2 pages .* page 1;"):
        asyncio.run(text.save("name"))


def test_what_is_no_length_is_refused(text: PageContext) -> None:
    for change in (text.cut, text.forget):
        with pytest.raises(ValueError, match="length is -1; give at least 0"):
            change(-1)
        assert (text.tokens, text.computed) == ([*range(10)], 9)


def test_an_empty_text_goes_nowhere() -> None:
    empty = PageContext(Ctx(Turns(), FACTS))
    for begin in (
        empty.next_dist(),
        empty.sample({}),
        empty.run_ahead(2, {}),
        empty.generate_until(),
    ):
        with pytest.raises(ValueError, match="the text is empty; begin it by fill or extend"):
            asyncio.run(begin)
