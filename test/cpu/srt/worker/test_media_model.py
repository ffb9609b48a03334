"""Images and videos end to end, with small random models in this process: cache neutrality, what is
encoded and computed, and what fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
import torch
from helpers.seeing import movie, picture, url, write_model
from sglang.errors import BackendError
from sglang.srt.core.media_marks import MediaSpan
from sglang.srt.worker.features import Features

A, B = picture(40, 30, 1), picture(40, 30, 2)
MOVIE = url(movie(4), "image/gif")
ASK = "one <image> two <image> film <video> what?"
MEDIA: dict[str, Any] = {"image_data": [url(A), url(B)], "video_data": MOVIE}
# With other seeds some texts of a random model coincide.
OPTIONS: dict[str, Any] = {"load_format": "dummy", "random_seed": 1, "max_total_tokens": 1024}
COUNTS = ("computed_tokens", "encoded_media", "reread_media", "retractions")


def sampling(most: int = 8) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": most, "ignore_eos": True}


def answer(engine: sgl.Engine, text: str, most: int = 8, **media: Any) -> list[int]:
    found: list[int] = engine.generate(text, sampling(most), **media)["output_ids"]
    return found


def counts(engine: sgl.Engine) -> dict[str, int]:
    stats = engine.get_server_info()["stats"]
    return {name: int(stats[name]) for name in COUNTS}


@pytest.fixture(scope="module", params=["llava", "qwen"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def engine(model: str) -> Iterator[sgl.Engine]:
    with sgl.Engine(model_path=model, **OPTIONS) as made:
        yield made


def test_the_second_question_encodes_and_computes_no_image(engine: sgl.Engine) -> None:
    engine.flush_cache()
    answer(engine, "<image> What is it?", 1, image_data=A)
    before = counts(engine)
    second = engine.generate("<image> Who is it?", sampling(1), image_data=A)
    after = counts(engine)
    assert after["encoded_media"] == before["encoded_media"]
    assert after["reread_media"] == before["reread_media"], "nobody asked for its hidden states"
    words = len(engine.get_tokenizer().encode(" Who is it?"))
    assert after["computed_tokens"] - before["computed_tokens"] <= words
    assert second["meta_info"]["cached_tokens"] >= second["meta_info"]["prompt_tokens"] - words


def test_what_is_seen_and_where_counts(engine: sgl.Engine) -> None:
    texts = [
        tuple(answer(engine, text, image_data=images))
        for text, images in (
            ("<image> and <image>", [A, B]), ("<image> and <image>", [B, A]),
            ("<image> and <image>", [A, A]), ("and <image><image>", [A, B]),
        )
    ]  # fmt: skip
    assert len(set(texts)) == 4


@pytest.mark.parametrize("options", [
    {"chunked_prefill_size": 5}, {"disable_radix_cache": True}, {"cpu_kernels": "torch"},
    {"page_size": 4}, {"attention_backend": "native", "chunked_prefill_size": 1},
])  # fmt: skip
def test_however_it_is_computed_the_text_is_the_same(
    engine: sgl.Engine, model: str, options: dict[str, Any]
) -> None:
    engine.flush_cache()
    wanted = answer(engine, ASK, **MEDIA)
    assert answer(engine, ASK, **MEDIA) == wanted, "from the cache"
    with sgl.Engine(model_path=model, **OPTIONS, **options) as other:
        for _ in range(2):
            assert answer(other, ASK, **MEDIA) == wanted
        if "chunked_prefill_size" in options:
            assert counts(other)["encoded_media"] == 3, "once each, however many the chunks"


def test_retraction_and_eviction(engine: sgl.Engine, model: str) -> None:
    asks = [f"{n} <image> {n}" for n in range(4)]
    images = [[A], [B], [A], [B]]
    wanted = [answer(engine, ask, 30, image_data=image) for ask, image in zip(asks, images)]
    room = 2 * max(
        engine.generate(ask, sampling(1), image_data=image)["meta_info"]["prompt_tokens"]
        for ask, image in zip(asks, images)
    )
    options: dict[str, Any] = {**OPTIONS, "max_total_tokens": room + 30}
    with sgl.Engine(model_path=model, **options) as small:
        found = small.generate(asks, sampling(30), image_data=images)
        assert [one["output_ids"] for one in found] == wanted
        assert small.generate(asks[0], sampling(30), image_data=A)["output_ids"] == wanted[0]
        assert small.get_server_info()["stats"]["evicted_tokens"] > 0
        assert counts(small)["retractions"] > 0


def test_branches_streams_and_scores(engine: sgl.Engine) -> None:
    wanted = answer(engine, ASK, **MEDIA)
    several = engine.generate(ASK, {**sampling(), "n": 3}, **MEDIA)
    assert [one["output_ids"] for one in several] == [wanted] * 3
    streamed = list(engine.generate(ASK, sampling(), stream=True, **MEDIA))
    assert streamed[-1]["output_ids"] == wanted
    options: dict[str, Any] = {
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 1,
    }
    whole = engine.generate(ASK, sampling(2), **MEDIA, **options)["meta_info"]
    assert len(whole["input_token_logprobs"]) == whole["prompt_tokens"]
    tail = engine.generate(
        ASK, sampling(2), **MEDIA, **{**options, "logprob_start_len": whole["prompt_tokens"] - 2}
    )["meta_info"]
    pairs = zip(tail["input_token_logprobs"][1:], whole["input_token_logprobs"][-1:])
    assert all(abs(a[0] - b[0]) < 1e-3 for a, b in pairs)
    guessed = engine.generate(ASK, {**sampling(24), "speculation": "ngram"}, **MEDIA)
    assert guessed["output_ids"] == answer(engine, ASK, 24, **MEDIA)
    forced = engine.generate(ASK, {**sampling(), "regex": "(red|green) apple"}, **MEDIA)
    assert forced["text"] in ("red apple", "green apple")


def test_programs(engine: sgl.Engine) -> None:
    @sgl.function
    def program(s: Any, first: bytes) -> None:
        s += sgl.user("A " + sgl.image(first) + " film " + sgl.video(movie(4), 2) + "?")
        forks = s.fork(2)
        for fork in forks:
            fork += sgl.assistant(sgl.gen("x", max_tokens=4, temperature=0))
        s += sgl.assistant(sgl.select("c", ["yes", "no"]))
        s["x"] = [fork["x"] for fork in forks]

    one, two = program.run_batch([{"first": A}, {"first": B}], backend=engine)
    assert one["x"][0] == one["x"][1]
    assert one["x"] != two["x"]
    assert program.run(first=A, backend=engine)["x"] == one["x"]
    if "image_pad" not in engine.chat_template.image_token:
        assert engine.chat_template.image_token == "<image>"


def test_texts_side_by_side(engine: sgl.Engine, model: str) -> None:
    body: dict[str, Any] = {
        "parts": ["<image> a", ["b <image>", "c"], "d"], "image_data": [url(A), url(B)],
        "sampling_params": sampling(),
    }  # fmt: skip
    if "qwen" in model:
        with pytest.raises(BackendError, match="texts side by side cannot have images"):
            engine.call(body)
        return
    engine.flush_cache()
    wanted = engine.call(body)["output_ids"]
    assert engine.call(body)["output_ids"] == wanted
    other = engine.call({**body, "image_data": [url(A), url(A)]})
    assert other["output_ids"] != wanted
    with sgl.Engine(model_path=model, **OPTIONS, chunked_prefill_size=3) as chunked:
        assert chunked.call(body)["output_ids"] == wanted


def test_an_image_that_cannot_be_encoded(engine: sgl.Engine, monkeypatch: Any) -> None:
    """Such an image fails its own request, is not cached, and is tried again."""
    engine.flush_cache()
    wanted = answer(engine, "<image> c", image_data=B)
    engine.flush_cache()
    runner: Any = engine._engine._engine.executor.worker.runner  # type: ignore[attr-defined]
    encode = runner.features._encode
    runner.features._kept.clear()

    def fail(media: MediaSpan) -> torch.Tensor:
        if media.size == (40, 30) and media.key == bad[0]:
            raise RuntimeError("out of memory")
        return encode(media)

    seen: list[bytes] = []
    monkeypatch.setattr(runner.features, "_encode", lambda m: (seen.append(m.key), encode(m))[1])
    answer(engine, "<image>", 1, image_data=B)
    bad = seen[-1:]
    engine.flush_cache()
    runner.features._kept.clear()
    monkeypatch.setattr(runner.features, "_encode", fail)
    with pytest.raises(BackendError, match="could not be encoded: RuntimeError: out of memory"):
        answer(engine, "<image> c", image_data=B)
    assert answer(engine, "<image> c", image_data=A)
    monkeypatch.setattr(runner.features, "_encode", encode)
    assert answer(engine, "<image> c", image_data=B) == wanted


def test_the_store_of_features_is_bounded() -> None:
    kept = Features(lambda media: torch.ones(media.count, 4), most_bytes=100)

    def media(key: int, count: int) -> MediaSpan:
        return MediaSpan(0, count, bytes([key]) * 16, "image", (1,), b"")

    for key in range(5):
        assert isinstance(kept._of(media(key, 3)), torch.Tensor)
        assert kept.bytes <= 100
    assert list(kept._kept) == [bytes([key]) * 16 for key in (3, 4)]
    kept._of(media(9, 30))
    assert list(kept._kept) == [bytes([9]) * 16], "one at least"
    wrong = Features(lambda media: torch.ones(media.count + 1, 4), 100)
    assert "4 hidden states for 3 tokens" in str(wrong._of(media(1, 3)))
    inf = Features(lambda media: torch.full((media.count, 4), torch.inf), 100)
    assert "not finite" in str(inf._of(media(1, 3)))
