"""Every call, and what is refused: forged, freed, foreign and out-of-range arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.inferlet_runs import EnginePrograms, Programs, embedded_model
from sglang.inferlet import CallError, Context
from sglang.srt.inferlet.call_reading import BY_NAME
from sglang.srt.inferlet.program_limits import Rights
from sglang.srt.tokenizer.tokenizer import EMBEDDED, Tokenizer

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)


@pytest.fixture(scope="module", params=["transformers", "engine"])
def programs(request: pytest.FixtureRequest) -> Iterator[Programs | EnginePrograms]:
    if request.param == "transformers":
        yield Programs(embedded_model(), Tokenizer.load())
        return
    found = EnginePrograms(dtype="float32", max_total_tokens=4096)
    yield found
    found.engine.shutdown()


async def error_of(awaitable: Any) -> str:
    try:
        value = await awaitable
    except CallError as error:
        return str(error)
    return f"no error: {value!r}"


def test_every_call_is_made(programs: Programs | EnginePrograms) -> None:
    made: set[str] = set()

    async def main(ctx: Any) -> Any:
        put = ctx._turns.put

        def counted(call: dict[str, Any]) -> int:
            made.add(call["call"])
            return int(put(call))

        ctx._turns.put = counted
        facts = [
            await ctx._turns.ask(name)
            for name in ("get_arg", "instance_id", "version", "available_models")
        ]
        traits = await ctx._turns.ask("available_traits", model=facts[3][0])
        assert facts == [ctx.get_arg(), ctx.instance_id(), ctx.version(), ctx.available_models()]
        assert traits == ctx.available_traits()
        ctx.send("text")
        ctx.send_blob(b"\0\1")
        assert await ctx.receive() == "hello"
        reader = ctx.subscribe("topic")
        ctx.broadcast("topic", "news")
        assert await reader == "news"
        ctx.unsubscribe("topic")
        ctx.store_set("key", b"value")
        assert await ctx.store_list("k") == ["key"]
        assert await ctx.store_get("key") == b"value"
        ctx.store_delete("key")
        assert await ctx.store_get("key") is None
        tokens = await ctx.tokenize("Hello there")
        assert await ctx.detokenize(tokens) == "Hello there"
        assert len(await ctx.get_vocab()) > tokens[0]
        queue = ctx.create_queue()
        ctx.set_queue_priority(queue, 5)
        pages = ctx.alloc_kvpage(queue, 8)
        embs = ctx.alloc_emb(queue, 2)
        ctx.embed_txt(queue, tokens[:2], [0, 1], embs)
        ctx.forward(queue, [], embs, pages[:2], embs[1:])
        dist = await ctx.get_next_dist(queue, embs[1], 3)
        ctx.embed_txt(queue, tokens[:1], [2], embs[:1])
        params = {"temperature": 0}
        ctx.copy_kvpage(queue, pages[:2], pages[2:4])
        token = await ctx.forward_with_sampling(queue, params, pages[2:4], embs[:1], pages[4:5])
        ctx.mask_kvpage(queue, pages[4], [False])
        again = await ctx.forward_with_sampling(queue, params, pages[:2], embs[:1], pages[4:5])
        assert again == token
        ctx.export_kvpage(queue, pages[:2], "a name")
        await ctx.synchronize(queue)
        assert await ctx.list_exports("a") == ["a name"]
        mine = await ctx.import_kvpage(queue, "a name")
        assert len(mine) == 2
        ctx.release_export("a name")
        assert await ctx.list_exports() == []
        assert len(await ctx.prefix(queue, tokens)) == len(tokens)
        ctx.dealloc_kvpage(queue, pages)
        ctx.dealloc_emb(queue, embs)
        ctx.log("a line")
        await ctx.sleep(0.0)
        assert await ctx.now() >= 0
        ctx.set_return([len(dist), ctx.create_queue() > queue])

    assert programs.one(main, "x", mail=["hello"]) == [3, True]
    assert programs.sent == [["text", b"\0\1"]]
    others = {
        # calls of the network, images, adapters and the server have tests of their own
        "http_get", "http_post", "num_embs_needed", "embed_img", "forward_with_adapter",
        "generate", "select", "receive_blob", "exit",
    }  # fmt: skip
    assert made | others | {"set_return"} == set(BY_NAME)


def test_models_without_a_trait_refuse_its_calls_by_name(
    programs: Programs | EnginePrograms,
) -> None:
    async def main(ctx: Any) -> Any:
        found = [await error_of(ctx.num_embs_needed(10, 10))]
        queue = ctx.create_queue()
        ctx.alloc_emb(queue, 1, states=True)
        found.append(await error_of(ctx.synchronize(queue)))
        ctx.forward_with_adapter(queue, "adapter", iemb=[0])
        found.append(await error_of(ctx.synchronize(queue)))
        ctx.embed_img(queue, b"", [0])
        return [*found, await error_of(ctx.synchronize(queue))]

    traits = ["input_image", "hidden", "adapter", "input_image"]
    for trait, message in zip(traits, programs.one(main)):
        assert f"has no trait '{trait}'" in message


def test_rights_are_denied_by_default(programs: Programs | EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        ctx.store_set("a", b"")  # no answer: the next awaited call gets the error
        first = await error_of(ctx.now())
        return [
            first,
            await error_of(ctx.store_get("a")),
            await error_of(ctx.subscribe("a")),
            await error_of(ctx.now()),
        ]

    first, second, third, last = programs.one(main, rights=Rights())
    assert "store_set" in first
    assert "right 'store'" in first
    assert "store_get" in second
    assert "right 'topics'" in third
    assert last.startswith("no error")


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "page in use": ("alloc_kvpage", {"pages": [0]}, "page 0 is in use"),
    "page twice": ("alloc_kvpage", {"pages": [9, 9]}, "twice"),
    "freed page": ("dealloc_kvpage", {"pages": [7]}, "no page 7"),
    "foreign handle": ("dealloc_kvpage", {"pages": [1 << 20]}, "$.pages"),
    "source without KV": ("copy_kvpage", {"sources": [2], "targets": [3]}, "slot 2 holds no KV"),
    "slot of no page": ("copy_kvpage", {"sources": [0], "targets": [99]}, "no page 99"),
    "lengths of copies": ("copy_kvpage", {"sources": [0], "targets": []}, "give as many"),
    "mask of a page": ("mask_kvpage", {"page": 0, "mask": [True, False]}, "mask has 2 entries"),
    "export of no page": ("export_kvpage", {"pages": [5], "name": "n"}, "no page 5"),
    "embedding in use": ("alloc_emb", {"embs": [0]}, "embedding 0 is in use"),
    "freed embedding": ("dealloc_emb", {"embs": [9]}, "no embedding 9"),
    "token": ("embed_txt", {"tokens": [9999], "positions": [0], "embs": [0]}, "token 9999"),
    "position": ("embed_txt", {"tokens": [1], "positions": [4096], "embs": [0]}, "position 4096"),
    "lengths": ("embed_txt", {"tokens": [1], "positions": [], "embs": [0]}, "give as many"),
    "no input": ("forward", {}, "iemb is empty"),
    "empty embedding": ("forward", {"iemb": [1]}, "embedding 1 is empty"),
    "no such page": ("forward", {"ikv": [8], "iemb": [0]}, "no page 8"),
    "few pages": ("forward", {"iemb": [0, 0, 0], "okv": [1, 2]}, "okv has 2 free slots"),
    "mask rows": ("forward", {"iemb": [0], "mask": []}, "mask has 0 rows"),
    "mask row": ("forward", {"ikv": [0], "iemb": [0], "mask": [[True]]}, "it needs 2"),
    "outputs": ("forward", {"iemb": [0], "oemb": [0, 1]}, "oemb has 2"),
    "states": ("forward", {"iemb": [2]}, "keeps no hidden state"),
    "params": ("forward_with_sampling", {"iemb": [0], "params": {"temprature": 1}}, "temperature"),
    "constraint": ("forward_with_sampling", {"iemb": [0], "params": {"regex": "a"}}, "`allowed`"),
    "nothing allowed": ("forward_with_sampling", {"iemb": [0], "allowed": []}, "allowed is empty"),
    "no output": ("get_next_dist", {"emb": 0}, "is no output"),
    "k": ("get_next_dist", {"emb": 2, "k": 99999}, "k is 99999"),
    "priority": ("set_queue_priority", {"priority": 1000}, "$.priority"),
    "packed": ("dealloc_kvpage", {"pages": b"abc"}, "no int32"),
    "negative": ("dealloc_kvpage", {"pages": b"\xff\xff\xff\xff"}, "-1 is negative"),
    "number": ("forwards", {}, "did you mean 'forward'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_call_is_refused_and_spoils_nothing(
    programs: Programs | EnginePrograms, case: str
) -> None:
    name, fields, message = WRONG[case]
    answered = name in ("forward_with_sampling", "get_next_dist", "forwards")

    async def wrong(ctx: Any) -> Any:
        queue = ctx.create_queue()
        pages, embs = ctx.alloc_kvpage(queue, 4), ctx.alloc_emb(queue, 3)
        ctx.embed_txt(queue, [5], [0], embs[:1])
        ctx.forward(queue, [], embs[:1], pages[:1], embs[2:])
        wrong = ctx._turns.ask(name, queue=queue, **fields)
        number = ctx._turns._count
        found = await error_of(wrong if answered else ctx.synchronize(queue))
        # The KV from before the refused call is still there.
        params = {"temperature": 0}
        ctx.embed_txt(queue, [6], [1], embs[:1])
        first = await ctx.forward_with_sampling(queue, params, pages[:1], embs[:1])
        return [found, number, first]

    async def other(ctx: Any) -> Any:
        text = await Context(ctx).fill("The weather today")
        return await text.generate_until(max_tokens=3)

    undisturbed = programs.one(other)
    (found, number, first), text = programs.run(wrong, other)
    assert programs.errors == ["", ""]
    assert message in found
    assert f"call {number}, " in found
    assert isinstance(first, int)
    assert text == undisturbed != ""


FUTURES: dict[str, tuple[list[int], dict[str, Any], str]] = {
    "no forward samples it": ([5], {}, "embedding 5 is empty"),
    "not the first entry": ([0, 2], {}, "is entry 1 of iemb"),
    "freed": ([3], {}, "no embedding 3"),
    "of a refused call": ([4], {}, "embedding 4 is empty"),
    "of another queue": ([2], {"queue": 1}, "a forward of queue 0 is to sample"),
    "an embedding that is not there": ([0], {"future": 99}, "no embedding 99"),
    "also an output": ([0], {"future": 1, "oemb": [1]}, "is in oemb and is future"),
    "beyond the context": ([6], {}, "position 4096 is outside"),
    "of a call that is refused when it leaves": (
        [7],
        {},
        "with the token of call 16, which sampled none",
    ),
}


@pytest.mark.parametrize("case", FUTURES)
def test_future_that_cannot_be_is_refused(programs: Programs | EnginePrograms, case: str) -> None:
    iemb, fields, message = FUTURES[case]

    async def wrong(ctx: Any) -> Any:
        ask, emit, params = ctx._turns.ask, ctx._turns.emit, {"temperature": 0}
        for queue in (0, 1):
            emit("create_queue", queue=queue)
        emit("alloc_emb", queue=0, embs=list(range(10)))
        emit("alloc_kvpage", queue=0, pages=[0, 1, 2])
        emit("embed_txt", queue=0, tokens=[5], positions=[0], embs=[0])
        row: dict[str, Any] = {"queue": 0, "params": params, "iemb": [0]}
        first = ask("forward_with_sampling", **row, okv=[0], future=2)
        for future in (3, 4):
            ask("forward_with_sampling", **row, future=future)
        emit("dealloc_emb", queue=0, embs=[3])
        refused = ask("forward_with_sampling", **row, ikv=[77], future=4)
        emit("embed_txt", queue=0, tokens=[5], positions=[4095], embs=[1])
        await ctx.synchronize(0)
        for _ in range(ctx._turns._count, 14):
            ctx.log("a line")
        late = ask("forward_with_sampling", **row | {"iemb": [1]}, okv=[1], future=6)
        none = ask("forward_with_sampling", **row | {"iemb": [0, 0], "oemb": [8, 9]}, future=7)
        dists = [ask("get_next_dist", queue=0, emb=emb) for emb in (8, 9)]
        last = ask("forward_with_sampling", **row | {"iemb": iemb} | fields)
        number = ctx._turns._count
        found = await error_of(last)
        ok = ask("forward_with_sampling", queue=0, params=params, ikv=[0], iemb=[2])
        tokens = [await first, await late, await ok]
        errors = [await error_of(one) for one in (refused, none, *dists)]
        return [found, number, tokens, errors]

    found, number, tokens, errors = programs.one(wrong)
    assert message in found
    assert f"call {number}, " in found or "call 16, which" in found
    assert all(isinstance(token, int) for token in tokens)
    assert "no page 77" in errors[0]
    assert all("need okv" in error for error in errors[1:])


def test_error_of_a_forward_is_told_once(programs: Programs | EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        queue = ctx.create_queue()
        ctx.alloc_kvpage(queue, 1)
        ctx.forward(queue, iemb=[77])
        return [await error_of(ctx.synchronize(queue)), await error_of(ctx.synchronize(queue))]

    first, second = programs.one(main)
    assert "no embedding 77" in first
    assert second == "no error: None"


def test_program_that_raises_ends_with_its_traceback(programs: Programs | EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        await ctx.sleep(0.0)
        return [][0]

    programs.run(main)
    assert "IndexError" in programs.errors[0]
    assert "return [][0]" in programs.errors[0]


def test_programs_end_with_their_pages_given_back(programs: Programs | EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        text = await Context(ctx).fill("The weather today")
        await text.next_dist()
        ctx.alloc_kvpage(text.queue, 5)

    programs.run(main, main, main)  # `run` asserts that no space is left
    assert programs.errors == ["", "", ""]
