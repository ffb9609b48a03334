"""The calls of programs that hold pages, each declared once (Pie, Table 1).

A program is a generator of calls: ``turn(answers) -> calls``, both lists of plain data. A call is
an object with ``call``, its name, and ``id``, its number in the program. Handles (of pages,
embeddings, queues) are numbers that the program chooses, so a call that makes them has no answer.

    {"call": "alloc_kvpage", "id": 7, "queue": 1, "pages": [0, 1, 2]}
    {"call": "get_next_dist", "id": 8, "queue": 1, "emb": 0, "k": 16}    answered by its id

A list of numbers may be packed into bytes. ``call_reading`` makes the JSON schema, and the table of
docs/inferlets.md, from this file.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

HANDLES = 1 << 20  # handles are below this
MOST_ENTRIES = 1 << 20  # entries of one list of a call
MOST_CHARS = 1 << 20  # characters of one text of a call
TOP = 256  # tokens of a distribution, unless the program asks for another number (section 4.2)

Handle: TypeAlias = Annotated[int, Meta(ge=0, lt=HANDLES)]
Packed: TypeAlias = Annotated[bytes, Meta(max_length=4 * MOST_ENTRIES)]  # int32, native order
Handles: TypeAlias = Annotated[list[Handle], Meta(max_length=MOST_ENTRIES)] | Packed
Slot: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]  # page handle * page size + offset
Slots: TypeAlias = Annotated[list[Slot], Meta(max_length=MOST_ENTRIES)] | Packed
TokenId: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 31)]
TokenIds: TypeAlias = Annotated[list[TokenId], Meta(max_length=MOST_ENTRIES)] | Packed
Bits: TypeAlias = Annotated[list[bool], Meta(max_length=MOST_ENTRIES)]
Rows: TypeAlias = Annotated[list[Bits], Meta(max_length=1 << 14)]
Text: TypeAlias = Annotated[str, Meta(max_length=MOST_CHARS)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Blob: TypeAlias = Annotated[bytes, Meta(max_length=1 << 24)]


def _tag(name: str) -> str:
    bare = name.removesuffix("Call").removesuffix("Lease")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", bare).lower()


class ProgramCall(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="call", tag=_tag, omit_defaults=True
):
    """One call of a program.

    Attributes:
        trait: trait that the model must have; "" for calls of the runtime.
        answer: what the answer's value is; "" where there is none.
        id: number of the call in its program; answers and errors name it.
    """

    trait: ClassVar[str] = ""
    answer: ClassVar[str] = ""
    id: int


class QueueCall(ProgramCall, frozen=True, kw_only=True):
    """A call that keeps its order in a queue."""

    queue: Handle


# Runtime: answered by the control layer. A program knows the first ones from its start.


class GetArgCall(ProgramCall, frozen=True, kw_only=True):
    """Gets the arguments given at launch."""

    answer = "list[str]"


class InstanceIdCall(ProgramCall, frozen=True, kw_only=True):
    """Gets the id of this run."""

    answer = "str"


class VersionCall(ProgramCall, frozen=True, kw_only=True):
    """Gets the version of the runtime."""

    answer = "str"


class AvailableModelsCall(ProgramCall, frozen=True, kw_only=True):
    """Gets the names of the models."""

    answer = "list[str]"


class AvailableTraitsCall(ProgramCall, frozen=True, kw_only=True):
    """Gets the traits of a model."""

    answer = "list[str]"
    model: Name


class SendCall(ProgramCall, frozen=True, kw_only=True):
    """Sends a text to the client that launched the program."""

    message: Text


class ReceiveCall(ProgramCall, frozen=True, kw_only=True):
    """Waits for a text of the client."""

    answer = "str"


class SendBlobCall(ProgramCall, frozen=True, kw_only=True):
    """Sends bytes to the client."""

    blob: Blob


class ReceiveBlobCall(ProgramCall, frozen=True, kw_only=True):
    """Waits for bytes of the client."""

    answer = "bytes"


class BroadcastCall(ProgramCall, frozen=True, kw_only=True):
    """Sends a text to all programs that have subscribed to a topic."""

    topic: Name
    message: Text


class SubscribeCall(ProgramCall, frozen=True, kw_only=True):
    """Subscribes to a topic, and waits for its next text."""

    answer = "str"
    topic: Name


class UnsubscribeCall(ProgramCall, frozen=True, kw_only=True):
    """Ends a subscription; texts of it that were not read are dropped."""

    topic: Name


class HttpGetCall(ProgramCall, frozen=True, kw_only=True):
    """Performs an HTTP GET request; needs the capability `http`."""

    answer = "str"
    url: Text


class HttpPostCall(ProgramCall, frozen=True, kw_only=True):
    """Performs an HTTP POST request; needs the capability `http`."""

    answer = "str"
    url: Text
    body: Text


class SetReturnCall(ProgramCall, frozen=True, kw_only=True):
    """Sets the result of the run."""

    value: Any


class StoreGetCall(ProgramCall, frozen=True, kw_only=True):
    """Gets a value of the key-value store; null where there is none. Needs `store`."""

    answer = "bytes | null"
    key: Name


class StoreSetCall(ProgramCall, frozen=True, kw_only=True):
    """Sets a value of the key-value store. Needs `store`."""

    key: Name
    value: Blob


class StoreDeleteCall(ProgramCall, frozen=True, kw_only=True):
    """Deletes a key of the key-value store. Needs `store`."""

    key: Name


class StoreListCall(ProgramCall, frozen=True, kw_only=True):
    """Lists the keys of the key-value store that begin with a text. Needs `store`."""

    answer = "list[str]"
    prefix: Annotated[str, Meta(max_length=256)] = ""


class CreateQueueCall(ProgramCall, frozen=True, kw_only=True):
    """Creates a queue; its calls keep their order."""

    queue: Handle
    model: str = ""


class SynchronizeCall(QueueCall, frozen=True, kw_only=True):
    """Waits until all calls of a queue have ended."""

    answer = "null"


class SetQueuePriorityCall(QueueCall, frozen=True, kw_only=True):
    """Queues of a higher priority come first in a batch."""

    priority: Annotated[int, Meta(ge=-100, le=100)]


class ListExportsCall(ProgramCall, frozen=True, kw_only=True):
    """Lists the names of exported pages that begin with a text."""

    trait = "allocate"
    answer = "list[str]"
    prefix: Annotated[str, Meta(max_length=256)] = ""


class ReleaseExportCall(ProgramCall, frozen=True, kw_only=True):
    """Ends an export; programs that have imported it keep their pages."""

    trait = "allocate"
    name: Name


# Inference: pages, embeddings, forward passes.


class AllocKvpageCall(QueueCall, frozen=True, kw_only=True):
    """Allocates pages of the KV cache under the given handles."""

    trait = "allocate"
    pages: Handles


class DeallocKvpageCall(QueueCall, frozen=True, kw_only=True):
    """Frees pages."""

    trait = "allocate"
    pages: Handles


class CopyKvpageCall(QueueCall, frozen=True, kw_only=True):
    """Copies the KV of single slots to others."""

    trait = "allocate"
    sources: Slots
    targets: Slots


class MaskKvpageCall(QueueCall, frozen=True, kw_only=True):
    """Hides slots of a page (false) from later forwards, or shows them again (true)."""

    trait = "forward"
    page: Handle
    mask: Bits


class ExportKvpageCall(QueueCall, frozen=True, kw_only=True):
    """Exports pages under a name; they are read-only from then on."""

    trait = "allocate"
    pages: Handles
    name: Name


class ImportKvpageCall(QueueCall, frozen=True, kw_only=True):
    """Imports exported pages, read-only, under handles from `first` on; their number."""

    trait = "allocate"
    answer = "int"
    name: Name
    first: Handle


class AllocEmbCall(QueueCall, frozen=True, kw_only=True):
    """Allocates embeddings. `states`: a later forward may read hidden states from them."""

    trait = "allocate"
    embs: Handles
    states: bool = False


class DeallocEmbCall(QueueCall, frozen=True, kw_only=True):
    """Frees embeddings."""

    trait = "allocate"
    embs: Handles


class EmbedTxtCall(QueueCall, frozen=True, kw_only=True):
    """Embeds tokens at positions into embeddings."""

    trait = "input_text"
    tokens: TokenIds
    positions: Slots
    embs: Handles


class NumEmbsNeededCall(ProgramCall, frozen=True, kw_only=True):
    """Calculates the embeddings that an image needs."""

    trait = "input_image"
    answer = "int"
    width: Annotated[int, Meta(ge=1, le=1 << 16)]
    height: Annotated[int, Meta(ge=1, le=1 << 16)]


class EmbedImgCall(QueueCall, frozen=True, kw_only=True):
    """Embeds an image into embeddings."""

    trait = "input_image"
    blob: Blob
    embs: Handles


class ForwardCall(QueueCall, frozen=True, kw_only=True):
    """Computes embeddings `iemb` after the KV of pages `ikv`, whose valid slots they see in this
    order, and each other causally. Writes their KV to the next free slots of pages `okv`, and the
    last hidden states to `oemb`. `mask`: for each of `iemb`, which slots of `ikv` and which of
    `iemb` it sees, in place of all that."""

    trait = "forward"
    ikv: Handles = []
    iemb: Handles = []
    okv: Handles = []
    oemb: Handles = []
    mask: Rows | None = None


class ForwardWithAdapterCall(ForwardCall, frozen=True, kw_only=True):
    """`forward` with a LoRA adapter; all forwards of a program name the same one."""

    trait = "adapter"
    adapter: Name


class ForwardWithSamplingCall(ForwardCall, frozen=True, kw_only=True):
    """`forward`, and a token sampled after the last of `iemb`. `future`: an embedding that
    receives the token, at the next position. Later forwards of the queue may begin with it before
    the token is known; `history` is without it then, and penalties count it all the same."""

    trait = "sample"
    answer = "int"
    params: dict[str, Any] = {}
    uniform: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    history: TokenIds = []
    allowed: TokenIds | None = None
    future: Handle | None = None


class GetNextDistCall(QueueCall, frozen=True, kw_only=True):
    """Gets the `k` most likely next tokens after an embedding, -2 for all, and the tokens of
    `probe`."""

    trait = "output_text"
    answer = "Dist"
    emb: Handle
    k: Annotated[int, Meta(ge=-2, le=MOST_ENTRIES)] = TOP
    probe: TokenIds = []


class TokenizeCall(ProgramCall, frozen=True, kw_only=True):
    """Converts a text into token ids."""

    trait = "tokenize"
    answer = "list[int]"
    text: Text
    special: bool = False


class DetokenizeCall(ProgramCall, frozen=True, kw_only=True):
    """Converts token ids back into text."""

    trait = "tokenize"
    answer = "str"
    tokens: TokenIds


class GetVocabCall(ProgramCall, frozen=True, kw_only=True):
    """Gets the bytes of all tokens."""

    trait = "tokenize"
    answer = "list[bytes]"


CALLS: tuple[type[ProgramCall], ...] = (
    GetArgCall, InstanceIdCall, VersionCall, SendCall, ReceiveCall, SendBlobCall, ReceiveBlobCall,
    BroadcastCall, SubscribeCall, UnsubscribeCall, HttpGetCall, HttpPostCall, SetReturnCall,
    StoreGetCall, StoreSetCall, StoreDeleteCall, StoreListCall, AvailableModelsCall,
    AvailableTraitsCall, CreateQueueCall, SynchronizeCall, SetQueuePriorityCall, ListExportsCall,
    ReleaseExportCall,
    AllocKvpageCall, DeallocKvpageCall, CopyKvpageCall, MaskKvpageCall, ExportKvpageCall,
    ImportKvpageCall, AllocEmbCall, DeallocEmbCall, EmbedTxtCall, NumEmbsNeededCall, EmbedImgCall,
    ForwardCall, ForwardWithAdapterCall, ForwardWithSamplingCall, GetNextDistCall, TokenizeCall,
    DetokenizeCall, GetVocabCall,
)  # fmt: skip
"""The calls of the paper: 24 of the runtime, then 18 of inference."""


class GenerateLease(ProgramCall, frozen=True, kw_only=True):
    """Leaves a whole generation to the server: an ordinary completion."""

    trait = "lease"
    answer = "Completion"
    text: Text = ""
    tokens: TokenIds = []
    params: dict[str, Any] = {}


class SelectLease(ProgramCall, frozen=True, kw_only=True):
    """Has the server score choices after a prompt; the index of the most likely."""

    trait = "lease"
    answer = "Choice"
    text: Text = ""
    tokens: TokenIds = []
    choices: Annotated[list[Text], Meta(min_length=1, max_length=128)]


class PrefixCall(QueueCall, frozen=True, kw_only=True):
    """Gets the pages of a text from the prefix cache, read-only, under handles from `first` on,
    computing what is missing; their number."""

    trait = "allocate"
    answer = "int"
    tokens: TokenIds
    first: Handle


class SleepCall(ProgramCall, frozen=True, kw_only=True):
    """Waits."""

    answer = "null"
    seconds: Annotated[float, Meta(ge=0, le=86400)]


class NowCall(ProgramCall, frozen=True, kw_only=True):
    """Gets the seconds since the start of the run."""

    answer = "float"


class ExitCall(ProgramCall, frozen=True, kw_only=True):
    """Ends the program; `error` is the text of the exception that ended it. No call follows."""

    error: Text = ""


class LogCall(ProgramCall, frozen=True, kw_only=True):
    """Writes a line to the log of the run."""

    message: Text


MORE: tuple[type[ProgramCall], ...] = (
    GenerateLease, SelectLease, PrefixCall, SleepCall, NowCall, LogCall, ExitCall,
)  # fmt: skip
"""Calls beside those of the paper."""


def tag_of(kind: type[ProgramCall]) -> str:
    """The name of calls of a kind, as programs write it."""
    return str(kind.__struct_config__.tag)


def name_of(call: ProgramCall) -> str:
    """The name of a call, as programs write it."""
    return tag_of(type(call))
