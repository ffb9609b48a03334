"""Ctx: the calls of a program as methods (Pie, Table 1).

A method whose call has an answer is awaited; the others return at once. Pages, embeddings and
queues are numbers, which the methods that make them return.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Sequence
from typing import Any

from sglang.inferlet.dist import Dist, raw
from sglang.inferlet.handle_numbers import HandleNumbers
from sglang.inferlet.turns import CallData, Turns

TOP = 256
FEW = 8  # numbers that are not packed


class Ctx:
    """The argument of ``main(ctx)``.

    Attributes:
        page_size, vocab_size, context_length, eos: of the model.
    """

    def __init__(self, turns: Turns, facts: dict[str, Any]) -> None:
        """``facts``: arguments, instance_id, version, models, traits, and the attributes."""
        self._turns, self._facts = turns, facts
        self._pages, self._embs, self._queues = HandleNumbers(), HandleNumbers(), HandleNumbers()
        self.page_size: int = facts["page_size"]
        self.vocab_size: int = facts["vocab_size"]
        self.context_length: int = facts["context_length"]
        self.eos: list[int] = facts["eos"]

    # Runtime.

    def get_arg(self) -> list[str]:
        return list(self._facts["arguments"])

    def instance_id(self) -> str:
        return str(self._facts["instance_id"])

    def version(self) -> str:
        return str(self._facts["version"])

    def available_models(self) -> list[str]:
        return list(self._facts["models"])

    def available_traits(self, model: str | None = None) -> list[str]:
        return list(self._facts["traits"][model or self._facts["models"][0]])

    def send(self, message: str) -> None:
        self._turns.emit("send", message=message)

    def receive(self) -> Awaitable[str]:
        return self._turns.ask("receive")

    def send_blob(self, blob: bytes) -> None:
        self._turns.emit("send_blob", blob=blob)

    async def receive_blob(self) -> bytes:
        return raw(await self._turns.ask("receive_blob"))

    def broadcast(self, topic: str, message: str) -> None:
        self._turns.emit("broadcast", topic=topic, message=message)

    def subscribe(self, topic: str) -> Awaitable[str]:
        """The next message of a topic; the first time it subscribes."""
        return self._turns.ask("subscribe", topic=topic)

    def unsubscribe(self, topic: str) -> None:
        self._turns.emit("unsubscribe", topic=topic)

    def http_get(self, url: str) -> Awaitable[str]:
        return self._turns.ask("http_get", url=url)

    def http_post(self, url: str, body: str) -> Awaitable[str]:
        return self._turns.ask("http_post", url=url, body=body)

    def set_return(self, value: Any) -> None:
        self._turns.emit("set_return", value=value)

    async def store_get(self, key: str) -> bytes | None:
        value = await self._turns.ask("store_get", key=key)
        return None if value is None else raw(value)

    def store_set(self, key: str, value: bytes) -> None:
        self._turns.emit("store_set", key=key, value=value)

    def store_delete(self, key: str) -> None:
        self._turns.emit("store_delete", key=key)

    def store_list(self, prefix: str = "") -> Awaitable[list[str]]:
        return self._turns.ask("store_list", prefix=prefix)

    def create_queue(self, model: str = "") -> int:
        [queue] = self._queues.take(1)
        self._turns.emit("create_queue", queue=queue, model=model)
        return queue

    def synchronize(self, queue: int) -> Awaitable[None]:
        return self._turns.ask("synchronize", queue=queue)

    def set_queue_priority(self, queue: int, priority: int) -> None:
        self._turns.emit("set_queue_priority", queue=queue, priority=priority)

    # Pages.

    def alloc_kvpage(self, queue: int, count: int) -> list[int]:
        pages = self._pages.take(count)
        self._turns.emit("alloc_kvpage", queue=queue, pages=pages)
        return pages

    def dealloc_kvpage(self, queue: int, pages: Sequence[int]) -> None:
        self._turns.emit("dealloc_kvpage", queue=queue, pages=packed(pages))
        self._pages.give(pages)

    def copy_kvpage(self, queue: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        self._turns.emit(
            "copy_kvpage", queue=queue, sources=packed(sources), targets=packed(targets)
        )

    def mask_kvpage(self, queue: int, page: int, mask: Sequence[bool]) -> None:
        self._turns.emit("mask_kvpage", queue=queue, page=page, mask=list(mask))

    def export_kvpage(self, queue: int, pages: Sequence[int], name: str) -> None:
        self._turns.emit("export_kvpage", queue=queue, pages=packed(pages), name=name)

    async def import_kvpage(self, queue: int, name: str, most: int = 1 << 12) -> list[int]:
        """The pages of an export, which has at most ``most``."""
        first = self._pages.run(most)
        count = await self._turns.ask("import_kvpage", queue=queue, name=name, first=first)
        return list(range(first, first + count))

    def list_exports(self, prefix: str = "") -> Awaitable[list[str]]:
        return self._turns.ask("list_exports", prefix=prefix)

    def release_export(self, name: str) -> None:
        self._turns.emit("release_export", name=name)

    async def prefix(self, queue: int, tokens: Sequence[int]) -> list[int]:
        """Read-only pages of the text's whole pages, from the prefix cache."""
        first = self._pages.run(len(tokens) // self.page_size)
        count = await self._turns.ask("prefix", queue=queue, tokens=packed(tokens), first=first)
        return list(range(first, first + count))

    # Embeddings and forwards.

    def alloc_emb(self, queue: int, count: int, states: bool = False) -> list[int]:
        embs = self._embs.take(count)
        self._turns.emit("alloc_emb", queue=queue, embs=embs, states=states)
        return embs

    def dealloc_emb(self, queue: int, embs: Sequence[int]) -> None:
        self._turns.emit("dealloc_emb", queue=queue, embs=packed(embs))
        self._embs.give(embs)

    def embed_txt(
        self, queue: int, tokens: Sequence[int], positions: Sequence[int], embs: Sequence[int]
    ) -> None:
        self._turns.put(
            {
                "call": "embed_txt",
                "queue": queue,
                "tokens": packed(tokens),
                "positions": packed(positions),
                "embs": packed(embs),
            }
        )

    def num_embs_needed(self, width: int, height: int) -> Awaitable[int]:
        return self._turns.ask("num_embs_needed", width=width, height=height)

    def embed_img(self, queue: int, blob: bytes, embs: Sequence[int]) -> None:
        self._turns.emit("embed_img", queue=queue, blob=blob, embs=packed(embs))

    def forward(
        self,
        queue: int,
        ikv: Sequence[int] = (),
        iemb: Sequence[int] = (),
        okv: Sequence[int] = (),
        oemb: Sequence[int] = (),
        mask: Sequence[Sequence[bool]] | None = None,
    ) -> None:
        self._turns.put(_forward("forward", queue, ikv, iemb, okv, oemb, mask))

    def forward_with_adapter(
        self,
        queue: int,
        adapter: str,
        ikv: Sequence[int] = (),
        iemb: Sequence[int] = (),
        okv: Sequence[int] = (),
        oemb: Sequence[int] = (),
        mask: Sequence[Sequence[bool]] | None = None,
    ) -> None:
        call = _forward("forward_with_adapter", queue, ikv, iemb, okv, oemb, mask)
        call["adapter"] = adapter
        self._turns.put(call)

    def forward_with_sampling(
        self,
        queue: int,
        params: dict[str, Any],
        ikv: Sequence[int] = (),
        iemb: Sequence[int] = (),
        okv: Sequence[int] = (),
        oemb: Sequence[int] = (),
        mask: Sequence[Sequence[bool]] | None = None,
        **more: Any,
    ) -> Awaitable[int]:
        """The token sampled after the last of ``iemb``. ``params``: as of ``/generate``.
        ``more``: uniform, history, allowed."""
        call = _forward("forward_with_sampling", queue, ikv, iemb, okv, oemb, mask)
        call["params"] = params
        call.update(more)
        return self._turns.put_awaited(call)

    async def get_next_dist(
        self, queue: int, emb: int, k: int = TOP, probe: Sequence[int] = ()
    ) -> Dist:
        """The ``k`` most likely tokens after an output embedding; -2: all of the vocabulary."""
        call: CallData = {"call": "get_next_dist", "queue": queue, "emb": emb, "k": k}
        if probe:
            call["probe"] = packed(probe)
        return Dist(await self._turns.put_awaited(call))

    def tokenize(self, text: str, special: bool = False) -> Awaitable[list[int]]:
        """Token ids; ``special``: with those that a prompt begins with."""
        return self._turns.ask("tokenize", text=text, special=special)

    def detokenize(self, tokens: Sequence[int]) -> Awaitable[str]:
        return self._turns.ask("detokenize", tokens=packed(tokens))

    async def get_vocab(self) -> list[bytes]:
        return [raw(piece) for piece in await self._turns.ask("get_vocab")]

    # Beside the paper's.

    def generate(self, prompt: str | Sequence[int], **params: Any) -> Awaitable[dict[str, Any]]:
        """A completion that the server runs alone: text, tokens, finish. ``params``: as of
        ``/generate``; ``logprobs=True`` adds those of the tokens."""
        return self._turns.ask("generate", params=params, **_prompt(prompt))

    def select(
        self, prompt: str | Sequence[int], choices: Sequence[str]
    ) -> Awaitable[dict[str, Any]]:
        """The likeliest choice after a prompt: index, text, logprobs."""
        return self._turns.ask("select", choices=list(choices), **_prompt(prompt))

    def sleep(self, seconds: float) -> Awaitable[None]:
        return self._turns.ask("sleep", seconds=seconds)

    def now(self) -> Awaitable[float]:
        """Seconds since the start of the run."""
        return self._turns.ask("now")

    def log(self, message: str) -> None:
        self._turns.emit("log", message=message)


def packed(numbers: Sequence[int]) -> bytes | list[int]:
    """Numbers as int32 in native order; few of them as a list."""
    if len(numbers) <= FEW:
        return list(numbers)
    return (numbers if isinstance(numbers, array) else array("i", numbers)).tobytes()


def _forward(
    name: str,
    queue: int,
    ikv: Sequence[int],
    iemb: Sequence[int],
    okv: Sequence[int],
    oemb: Sequence[int],
    mask: Sequence[Sequence[bool]] | None,
) -> dict[str, Any]:
    found: CallData = {"call": name, "queue": queue, "ikv": packed(ikv), "iemb": packed(iemb)}
    if okv:
        found["okv"] = packed(okv)
    if oemb:
        found["oemb"] = packed(oemb)
    if mask is not None:
        found["mask"] = [list(row) for row in mask]
    return found


def _prompt(prompt: str | Sequence[int]) -> dict[str, Any]:
    return {"text": prompt} if isinstance(prompt, str) else {"tokens": packed(prompt)}
