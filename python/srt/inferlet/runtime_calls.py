"""RuntimeCalls: the meaning of the calls that the control layer answers by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet.driver import Fault
from sglang.srt.inferlet.inference_calls import RUNTIME_QUEUE
from sglang.srt.inferlet.leases import Leases
from sglang.srt.inferlet.packed_numbers import unpacked
from sglang.srt.inferlet.served import RunParts
from sglang.srt.requests.request_error import RequestError

log = logging.getLogger("sglang.srt.inferlet")
MOST_TASKS = 256  # leases, requests and timers of a program at a time


class Answering(Protocol):
    """The session, as these calls need it."""

    def tell(self, call: int, queue: int, value: Any) -> None: ...

    def refuse(self, call: int, queue: int, fault: Fault) -> None: ...

    def create_queue(self, handle: int) -> None: ...

    def set_priority(self, handle: int, priority: int) -> None: ...

    def synchronize(self, call: int, handle: int) -> None: ...

    def stop(self, error: str) -> None: ...


class RuntimeCalls:
    """Handlers of one program's calls, by name. All raise ValueError, or PermissionError where the
    program lacks the right."""

    def __init__(self, parts: RunParts, session: Answering) -> None:
        self._parts, self._session = parts, session
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = 0

    # AnswerSink at the start; here for programs that ask again.

    def get_arg(self, call: c.GetArgCall) -> None:
        self._tell(call, self._parts.facts.arguments)

    def instance_id(self, call: c.InstanceIdCall) -> None:
        self._tell(call, self._parts.facts.instance_id)

    def version(self, call: c.VersionCall) -> None:
        self._tell(call, self._parts.facts.version)

    def available_models(self, call: c.AvailableModelsCall) -> None:
        self._tell(call, self._parts.facts.models)

    def available_traits(self, call: c.AvailableTraitsCall) -> None:
        self._tell(call, self._parts.facts.traits[self._model(call.model)])

    # Messages.

    def send(self, call: c.SendCall) -> None:
        self._parts.follower.message(call.message)

    def send_blob(self, call: c.SendBlobCall) -> None:
        self._parts.follower.message(call.blob)

    def receive(self, call: c.ReceiveCall) -> None:
        for message in self._parts.mail[0].read(call.id):
            self._tell(call, message)

    def receive_blob(self, call: c.ReceiveBlobCall) -> None:
        for message in self._parts.mail[1].read(call.id):
            self._tell(call, message)

    def broadcast(self, call: c.BroadcastCall) -> None:
        self._need(self._parts.rights.topics, "topics")
        self._parts.served.topics.broadcast(self._parts.rights.owner, call.topic, call.message)

    def subscribe(self, call: c.SubscribeCall) -> None:
        self._need(self._parts.rights.topics, "topics")
        box = self._parts.served.topics.subscribe(
            self._parts.rights.owner,
            call.topic,
            id(self),
            lambda reader, message: self._session.tell(reader, RUNTIME_QUEUE, message),
        )
        for message in box.read(call.id):
            self._tell(call, message)

    def unsubscribe(self, call: c.UnsubscribeCall) -> None:
        topics = self._parts.served.topics
        for reader in topics.unsubscribe(self._parts.rights.owner, call.topic, id(self)):
            gone = f"the program unsubscribed from {call.topic!r:.80} while this call waited"
            self._session.refuse(reader, RUNTIME_QUEUE, Fault("invalid", gone))

    def set_return(self, call: c.SetReturnCall) -> None:
        self._parts.outcome.value = call.value

    def exit(self, call: c.ExitCall) -> None:
        self._session.stop(call.error)

    def log(self, call: c.LogCall) -> None:
        self._log += len(call.message)
        if self._log > self._parts.limits.log_bytes:
            raise ValueError(f"the log has more than {self._parts.limits.log_bytes} characters")
        self._parts.follower.log(call.message)

    # The store.

    def store_get(self, call: c.StoreGetCall) -> None:
        self._need(self._parts.rights.store, "store")
        store = self._parts.served.store
        self._tell(call, store.get(self._parts.rights.owner, call.key))

    def store_set(self, call: c.StoreSetCall) -> None:
        self._need(self._parts.rights.store, "store")
        self._parts.served.store.set(self._parts.rights.owner, call.key, call.value)

    def store_delete(self, call: c.StoreDeleteCall) -> None:
        self._need(self._parts.rights.store, "store")
        self._parts.served.store.delete(self._parts.rights.owner, call.key)

    def store_list(self, call: c.StoreListCall) -> None:
        self._need(self._parts.rights.store, "store")
        keys = self._parts.served.store.keys(self._parts.rights.owner, call.prefix)
        self._tell(call, keys)

    # Queues.

    def create_queue(self, call: c.CreateQueueCall) -> None:
        if call.model:
            self._model(call.model)
        self._session.create_queue(call.queue)

    def synchronize(self, call: c.SynchronizeCall) -> None:
        self._session.synchronize(call.id, call.queue)

    def set_queue_priority(self, call: c.SetQueuePriorityCall) -> None:
        self._session.set_priority(call.queue, call.priority)

    # Text.

    def tokenize(self, call: c.TokenizeCall) -> None:
        tokens = self._parts.served.tokenizer.encode(call.text, call.special)
        self._tell(call, list(tokens))

    def detokenize(self, call: c.DetokenizeCall) -> None:
        tokens = unpacked(call.tokens)
        size = self._parts.served.info.vocab_size
        if tokens and max(tokens) >= size:
            raise ValueError(
                f"token {max(tokens)} is outside of the vocabulary; at most {size - 1}"
            )
        self._tell(call, self._parts.served.tokenizer.decode(tokens))

    def get_vocab(self, call: c.GetVocabCall) -> None:
        self._tell(call, self._parts.served.tokenizer.token_bytes)  # no copy: it is large

    # Calls that take time.

    def generate(self, call: c.GenerateLease) -> None:
        self._begin(call, self._leases.generate(call.text, call.tokens, call.params))

    def select(self, call: c.SelectLease) -> None:
        self._begin(call, self._leases.select(call.text, call.tokens, call.choices))

    def sleep(self, call: c.SleepCall) -> None:
        self._begin(call, asyncio.sleep(call.seconds))

    def now(self, call: c.NowCall) -> None:
        self._tell(call, time.monotonic() - self._parts.started)

    def http_get(self, call: c.HttpGetCall) -> None:
        rights, limits = self._parts.rights, self._parts.limits
        outbound = self._parts.served.outbound
        self._begin(call, outbound.fetched(call.url, None, rights, limits))

    def http_post(self, call: c.HttpPostCall) -> None:
        rights, limits = self._parts.rights, self._parts.limits
        outbound = self._parts.served.outbound
        self._begin(call, outbound.fetched(call.url, call.body, rights, limits))

    def close(self) -> None:
        """Cancel the calls that take time, end the subscriptions."""
        self._parts.served.topics.leave(id(self))
        for task in list(self._tasks):
            task.cancel()

    @property
    def _leases(self) -> Leases:
        assert self._parts.served.leases is not None  # the trait says so
        return self._parts.served.leases

    def _begin(self, call: c.ProgramCall, work: Coroutine[Any, Any, Any]) -> None:
        if len(self._tasks) >= MOST_TASKS:
            work.close()
            raise ValueError(f"{MOST_TASKS} calls that take time are open; await some first")
        task = asyncio.get_running_loop().create_task(self._run(call, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: c.ProgramCall, work: Coroutine[Any, Any, Any]) -> None:
        name = f"call {call.id}, {c.name_of(call)}"
        try:
            value = await work
        except PermissionError as error:
            self._refuse(call, Fault("denied", f"{name}: {error}"))
        except RequestError as error:
            self._refuse(call, Fault(error.code, f"{name}: {error.message}"))
        except (ValueError, OSError, RuntimeError) as error:
            self._refuse(call, Fault("failed", f"{name}: {error}"))
        except Exception as error:  # a fault of the server; the program must not wait for ever
            log.exception("%s of a program has failed", c.name_of(call))
            self._refuse(call, Fault("internal", f"{name}: {type(error).__name__}: {error}"))
        else:
            self._tell(call, value)

    def _tell(self, call: c.ProgramCall, value: Any) -> None:
        self._session.tell(call.id, getattr(call, "queue", RUNTIME_QUEUE), value)

    def _refuse(self, call: c.ProgramCall, fault: Fault) -> None:
        self._session.refuse(call.id, RUNTIME_QUEUE, fault)

    def _model(self, name: str) -> str:
        if name not in self._parts.facts.traits:
            models = ", ".join(self._parts.facts.models)
            raise ValueError(f"there is no model {name!r}; there is {models}")
        return name

    def _need(self, right: bool, name: str) -> None:
        if not right:
            raise PermissionError(f"this program lacks the right {name!r}; its operator gives it")
