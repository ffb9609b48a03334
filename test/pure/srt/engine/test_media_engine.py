"""Images in contexts, over a fake worker whose KV is what it was shown: whatever is shared, cut,
chunked, evicted, retracted or forked, the text is the one computed alone."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import EOS, Corrupt, FakeWorker, hidden_state, logprob, next_token, seen_as
from helpers.mutation import Mutation, become, drop, mutate, never
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.core import messages
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.media_marks import MediaSpan, Numbers, cut, marked, verify, within
from sglang.srt.core.messages import Append, Close, Embed, ForkContext, Goal, Open, Score, Truncate
from sglang.srt.core.request import Generation, Request, RequestSpec
from sglang.srt.core.segments import Segment, key, unmarked
from sglang.srt.engine.admission import verify as admit
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.rows import make_rows
from sglang.srt.memory.store import Store

PLACE = 90  # the placeholder's id


def image(content: int, start: int = 0, count: int = 0) -> MediaSpan:
    return MediaSpan(start, count or 1 + content % 5, bytes([content]) * 16, "image", (1,), b"x")


def prompt(*parts: list[int] | int) -> tuple[list[int], tuple[MediaSpan, ...], list[int]]:
    """Texts, and images by content: tokens, media, and what the model is shown."""
    tokens, media, shown = list[int](), list[MediaSpan](), list[int]()
    for part in parts:
        if isinstance(part, list):
            tokens += part
            shown += part
        else:
            media.append(image(part, len(tokens)))
            tokens += [PLACE] * media[-1].count
            shown += [seen_as(media[-1].key, i) for i in range(media[-1].count)]
    return tokens, tuple(media), shown


def desk(capacity: int = 512, page_size: int = 1, **more: Any) -> Desk:
    made = Desk(capacity, page_size, **more)
    made.engine.info = msgspec.structs.replace(made.engine.info, vision=True)
    return made


def opened(desk: Desk, *parts: list[int] | int, segments: tuple[Segment, ...] = ()) -> int:
    tokens, media, _ = prompt(*parts)
    context = next(desk._ids)
    desk.send(Open(context, ints(tokens).tobytes(), "", segments, media))
    return context


def ask(desk: Desk, *parts: list[int] | int, goal: Goal | None = None) -> int:
    return desk.advance(opened(desk, *parts), goal or generate(4), close=True)


def text(shown: list[int], count: int) -> list[int]:
    """Greedy text, sampled alone."""
    seen = list(shown)
    for _ in range(count):
        seen.append(next_token(seen))
    return seen[len(shown) :]


# -- the cache ------------------------------------------------------------------------------------


def test_the_second_question_computes_no_image_token() -> None:
    d = desk()
    first = ask(d, [1, 2], 4, [3])
    d.run()
    before = d.worker.tokens
    second = ask(d, [1, 2], 4, [5, 6])
    d.run()
    assert d.done(first).stats.cached_tokens == 0
    assert d.done(second).stats.cached_tokens == 2 + 5
    assert d.worker.tokens == before + 2 + 3, "the question and what was drawn"
    d.finish()


@pytest.mark.parametrize("parts", [([1], 4, 9, [2]), ([1], 9, 4, [2]), ([1], 9, [2]), ([1], 4, 4)])
def test_images_of_one_size_share_nothing(parts: tuple[list[int] | int, ...]) -> None:
    """4 and 9 have as many tokens, and the same ones."""
    d = desk()
    for other in (([1], 4, [2]), ([1], 4, 9, [2]), ([1], 9, [3]), ([1], [PLACE] * 5, [2])):
        ask(d, *other)
    d.run()
    request = ask(d, *parts)
    d.run()
    assert d.tokens(request) == text(prompt(*parts)[2], 4)
    d.finish()


def test_an_image_of_one_token_is_not_another() -> None:
    d = desk(4096)
    for content in range(0, 250, 5):
        request = ask(d, [1], content, [2])
        d.run()
        assert d.tokens(request) == text(prompt([1], content, [2])[2], 4)
        assert d.done(request).stats.cached_tokens == (content > 0), "the text before it"
    d.finish()


def test_an_image_that_is_forgotten_is_computed_again() -> None:
    d = desk()
    d.engine.store.numbers = Numbers(2)
    for content in (1, 2, 3, 1):
        request = ask(d, content, [1])
        d.run()
        assert d.done(request).stats.cached_tokens == 0
        assert d.tokens(request) == text(prompt(content, [1])[2], 4)
    d.finish()


def test_forks_and_cuts() -> None:
    d = desk()
    context = opened(d, [1], 3, [2, 3], 9, [4])
    d.advance(context, messages.Fill())
    d.run()
    shown = prompt([1], 3, [2, 3], 9, [4])[2]
    child, inside, empty = 1001, 1002, 1003
    d.send(
        ForkContext(context, child), ForkContext(context, inside, 9), ForkContext(context, empty, 1)
    )
    d.send(
        Append(inside, ints([5, 6]).tobytes()),
        Truncate(child, 7),
        Append(empty, ints([8]).tobytes()),
    )
    for number, seen in (
        (child, shown[:7]), (inside, [*shown[:9], 5, 6]), (empty, [1, 8]), (context, shown),
    ):  # fmt: skip
        request = d.advance(number, generate(5))
        d.run()
        assert d.tokens(request) == text(seen, 5)
    d.finish()


def test_rows_of_texts_side_by_side() -> None:
    """Each branch has its own image, in a row of its own."""
    tokens, media, _ = prompt([1], 4, [10], 9, 14, [11], [12])
    segments = (Segment(7, 7), Segment(12, 7), Segment(18, 18))
    context = Store(64).open(1, ints(tokens), segments=segments, media=media)
    request = Request(1, context, RequestSpec(generate(1), len(tokens)), Generation(0))
    context.saved = 3
    context.pages = ints(range(len(tokens)))
    rows = make_rows(request, len(tokens) - 3, (EOS,))
    shown = [[(p.media.start, p.at, p.skip, p.count) for p in row.pieces] for row in rows]
    assert shown == [[(1, 0, 2, 3)], [(7, 0, 0, 5)], [(12, 0, 0, 5)], []]
    assert [row.start for row in rows] == [3, 7, 7, 18]


def test_scores_and_embeddings() -> None:
    parts = ([1], 4, [2, 3])
    shown = prompt(*parts)[2]
    d = desk()
    score, embed = ask(d, *parts, goal=Score(6)), ask(d, *parts, goal=Embed("mean"))
    d.run()
    assert d.prompt(score).start == 6
    assert d.prompt(score).logprobs == [logprob(shown[:6], 2), logprob(shown[:7], 3)]
    states = [hidden_state(shown[: i + 1]) for i in range(len(shown))]
    mean = [sum(column) / len(shown) for column in zip(*states)]
    found = array("f", d.done(embed).embedding)
    assert list(found) == pytest.approx(mean, rel=1e-6)
    d.finish()


# -- images that cannot be encoded ----------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_an_image_that_cannot_be_encoded_fails_those_who_have_it(depth: int) -> None:
    worker = FakeWorker(1)
    worker.blind = {image(4).key}
    d = desk(worker=worker, depth=depth, chunked_prefill_size=4)
    idle = opened(d, [1], 4, [2])
    bad, also = ask(d, [1], 4, [2]), ask(d, [1], 4, [3])
    good = ask(d, [1], 9, [2], goal=generate(9))
    d.run()
    assert "encoded" in d.failed(bad).message
    assert "encoded" in d.failed(also).message
    assert d.tokens(good) == text(prompt([1], 9, [2])[2], 9)
    worker.blind = set()
    again, waited = ask(d, [1], 4, [2]), d.advance(idle, generate(4), close=True)
    d.run()
    for request in (again, waited):  # no KV of the broken image is matched
        assert d.tokens(request) == text(prompt([1], 4, [2])[2], 4)
    d.finish()


def test_wrong_kv_of_an_aborted_request_is_not_met() -> None:
    """The tree shows KV as soon as a pass is planned. The request is aborted before it is known
    that its image could not be encoded."""
    worker = FakeWorker(1)
    worker.blind = {image(4).key}
    d = desk(worker=worker, depth=2, chunked_prefill_size=7)
    context = opened(d, [1], 4, [2, 3, 5, 6])
    bad = d.advance(context, generate(4))
    d.step()
    assert d.engine.store.tree.protected
    d.send(Close(context))
    assert d.done(bad).reason == "abort"
    d.run()
    worker.blind = set()
    again = ask(d, [1], 4, [2, 3, 5, 6])
    d.run()
    assert d.tokens(again) == text(prompt([1], 4, [2, 3, 5, 6])[2], 4)
    d.finish()


def test_wrong_kv_is_not_read_within_its_pass() -> None:
    """The second request goes on from the KV that the first one's row has written, and would end
    in the same pass."""
    worker = FakeWorker(1)
    worker.blind = {image(4).key}
    d = desk(worker=worker)
    first, second = (ask(d, [1], 4, [2, n], goal=generate(1)) for n in (3, 5))
    d.run()
    assert worker.passes == worker.shared_in_pass == 1
    for request in (first, second):
        assert "encoded" in d.failed(request).message
    d.finish()


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
def test_text_behind_a_cut_image_is_text(chunk: int) -> None:
    """More tokens are appended than the cut took away, and a chunk begins among them."""
    d = desk(chunked_prefill_size=chunk)
    context = opened(d, [1], 4, [2])
    d.send(Truncate(context, 3), Append(context, ints([5, 6, 7, 8, 9]).tobytes()))
    request = d.advance(context, generate(4))
    d.run()
    assert d.tokens(request) == text([*prompt([1], 4)[2][:3], 5, 6, 7, 8, 9], 4)
    d.finish()


# -- any history ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_any_history_gives_the_texts_computed_alone(seed: int) -> None:
    r = random.Random(seed)
    page = r.choice([1, 1, 1, 2, 4])
    d = desk(
        r.choice([48, 64, 256]), page, worker=FakeWorker(page), depth=r.choice([1, 2, 4]),
        chunked_prefill_size=r.choice([1, 3, 7, 64]), max_running_requests=r.choice([2, 5]),
    )  # fmt: skip
    wanted: dict[int, list[int]] = {}
    for _ in range(14):
        parts: list[list[int] | int] = []
        for _ in range(r.randint(1, 4)):
            some: list[list[int] | int] = [3, 4, 8, 9, 0, [1], [1, 2], [PLACE, PLACE]]
            parts.append(r.choice(some))
        shown, drawn = prompt(*parts)[2], r.randint(1, 6)
        goal = generate(drawn, speculation=r.choice(["off", "ngram"]))
        wanted[ask(d, *parts, goal=goal)] = text(shown, drawn)
        for _ in range(r.randint(0, 3)):
            d.step()
            d.engine.store.check()
    d.run()
    assert {request: d.tokens(request) for request in wanted} == wanted, seed
    d.finish()


# -- keys -----------------------------------------------------------------------------------------

_PARTS = st.lists(
    st.one_of(st.integers(0, 12), st.lists(st.integers(0, 95), min_size=1, max_size=4)),
    min_size=1, max_size=6,
)  # fmt: skip


@given(_PARTS, _PARTS, st.integers(0, 40))
def test_keys_agree_exactly_as_far_as_what_is_shown(
    a: list[list[int] | int], b: list[list[int] | int], length: int
) -> None:
    store = Store(8)
    found, shown = [], []
    for number, parts in enumerate((a, b)):
        tokens, media, seen = prompt(*parts)
        context = store.open(number, ints(tokens), media=media)
        store.truncate(context, length)
        assert len(context.key) == len(context.tokens) == min(length, len(tokens))
        assert list(unmarked(context.key)) == [-1 if t >= 1000 else t for t in seen[:length]]
        child = store.fork(context, number + 10, length // 2)
        assert child.key == context.key[: length // 2]
        found.append(context.key)
        shown.append(seen[:length])

    def agree(x: Sequence[int], y: Sequence[int]) -> int:
        return next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))

    assert agree(found[0], found[1]) == agree(shown[0], shown[1])


@given(_PARTS, st.data())
def test_marks_and_segments_do_not_touch_each_other(
    parts: list[list[int] | int], data: st.DataObject
) -> None:
    tokens, media, _ = prompt(*parts)
    numbers = Numbers()
    head = marked(ints(tokens), media, numbers)
    keys: dict[bytes, tuple[Segment, ...]] = {}
    for start in range(1, len(tokens)):
        for segments in ((), (Segment(start, start),), (Segment(start, 0),)):
            whole: Ints = head + ints(tokens)[len(head) :]
            made = key(whole, segments)
            assert keys.setdefault(made.tobytes(), segments) == segments
            assert unmarked(made) == unmarked(whole)


def test_within_and_cut() -> None:
    media = prompt([1], 4, 9, [2], 3)[1]  # [1, 6), [6, 11), [12, 16)
    assert list(within(media, 0, 99)) == list(media)
    assert list(within(media, 5, 6)) == [media[0]]
    assert list(within(media, 6, 7)) == [media[1]]
    assert list(within(media, 11, 12)) == []
    assert list(within(media, 15, 30)) == [media[2]]
    assert list(within((), 0, 9)) == []
    assert cut(media, 6) == media[:1]
    assert cut(media, 7) == media[:2]


@pytest.mark.parametrize(
    ("media", "words"),
    [
        ([image(4, 0, 9)], "[0, 9) do not follow 0 in a prompt of 8"),
        ([image(4, 2, 3), image(4, 4, 2)], "[4, 6) do not follow 5"),
        ([msgspec.structs.replace(image(1), count=0)], "[0, 0)"),
        ([msgspec.structs.replace(image(1), key=b"x")], "1 bytes, not 16"),
    ],
)
def test_media_that_cannot_be(media: list[MediaSpan], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("[", r"\[").replace(")", r"\)")):
        verify(media, 8)
    d = desk()
    context = next(d._ids)
    d.send(Open(context, ints([PLACE] * 8).tobytes(), media=tuple(media)))
    assert d.engine.stats.bad_verbs == 1
    assert "no context" in d.failed(d.advance(context)).message


def test_a_model_that_sees_nothing_refuses() -> None:
    d = Desk()
    request = ask(d, [1], 4)
    assert "no vision tower" in d.failed(request).message
    d.finish()


def test_media_travel() -> None:
    media = (
        MediaSpan(2, 3, b"k" * 16, "video", (2, 3, 4, 4), bytes(96), (2, 1, 1), (9, 8), 0.5),
        image(3, 7),
    )
    opening = Open(5, b"abcd", "n", (Segment(3, 3),), media)
    assert messages.decode_verbs(messages.encode([opening])) == [opening]
    store = Store(4)
    context = store.open(1, ints([1] + [PLACE] * 4), media=(image(3, 1, 4),))
    admit(generate(2), context, desk().engine.info)


FAULTS = {
    "a fork forgets its images": Mutation(Store, "fork", "_.head[:_]", become("ints()")),
    "a fork has the parent's marks": Mutation(Store, "fork", "A.head[:_]", become("A.head")),
    "a cut leaves the marks": Mutation(Store, "truncate", "del _.head[_:]", drop),
    "all images are one": Mutation(Numbers, "of", "_._known[_] = N", become("N = 0")),
    "what is wrong is found again": Mutation(Store, "disown", "_.forget(_)", drop),
    "idle contexts keep the number": Mutation(Store, "disown", "_.key == _", never),
    "others with the image go on": Mutation(EngineCore, "_unseen", "_.key == _", never),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, FAULTS[name])
    with pytest.raises((AssertionError, Corrupt, KeyError, IndexError)):
        everything()


def everything() -> None:
    for seed in range(12):
        test_any_history_gives_the_texts_computed_alone(seed)
    test_forks_and_cuts()
    for depth in (1, 2):
        test_an_image_that_cannot_be_encoded_fails_those_who_have_it(depth)
    test_keys_agree_exactly_as_far_as_what_is_shown()
