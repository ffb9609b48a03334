"""Messages between the planner and its ranks, and between ranks: MessagePack, one message a frame.

start    Hello, Welcome; then Offer and Smallest for each number that the ranks agree on; Ready
passes   PassPlan to every rank, PlanMasks to the rank that samples, Outcome or PassFailed from it
ids      SampledIds, from the rank that samples to the ranks of the first stage
end      RankFailed from a rank that cannot continue, Stop to all ranks

``epoch`` numbers the starts of the planner. A frame of another epoch is dropped.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from sglang.srt.core.batch import StepResult
from sglang.srt.core.ints import Ints, from_wire, to_wire
from sglang.srt.core.workers import Mask
from sglang.srt.ranks.batch_frames import BatchColumns


class _RankFrame(msgspec.Struct, frozen=True, tag=True):
    epoch: int


class Hello(_RankFrame, frozen=True, tag=True):
    """The first message of a rank, before it reads weights.

    Attributes:
        inbox, ids, states: addresses at which it receives messages, sampled ids and hidden states.
        store: address of the store through which the ranks connect; only rank 0 gives it.
        facts: everything that must be equal on every rank, by name.
    """

    rank: int
    inbox: str
    ids: str
    states: str
    store: str
    facts: dict[str, str]


class Welcome(_RankFrame, frozen=True, tag=True):
    """Answer to the ``Hello`` of all ranks. ``ids``, ``states``: addresses by rank."""

    ids: list[str]
    states: list[str]
    store: str


class Offer(_RankFrame, frozen=True, tag=True):
    """The pages that a rank has memory for. The planner takes the smallest number of all ranks."""

    rank: int
    number: int


class Smallest(_RankFrame, frozen=True, tag=True):
    """The smallest number that the ranks offered."""

    number: int


class Ready(_RankFrame, frozen=True, tag=True):
    """The rank has loaded the model. ``facts``: ``ModelWorker.info``."""

    rank: int
    facts: dict[str, Any]


class PassPlan(_RankFrame, frozen=True, tag=True):
    """A batch to compute."""

    columns: BatchColumns


class PlanMasks(_RankFrame, frozen=True, tag=True):
    """The masks of batch ``id``; its samples refer to them by index."""

    id: int
    masks: list[Mask]


class Outcome(_RankFrame, frozen=True, tag=True):
    """The outputs of a batch."""

    result: StepResult


class PassFailed(_RankFrame, frozen=True, tag=True):
    """Batch ``id`` could not be computed; the rank can compute the next ones."""

    id: int
    error: str


class SampledIds(_RankFrame, frozen=True, tag=True):
    """The tokens that batch ``id`` sampled: one for each row, 0 for a row without a sample; empty
    if the batch failed."""

    id: int
    tokens: Ints


class StatesHead(_RankFrame, frozen=True, tag=True):
    """Description of the hidden states of batch ``id``, which the next frame holds. ``error``: the
    reason why there are none. ``seconds``: the computing time of each stage so far, without waits.
    """

    id: int
    shape: tuple[int, int]
    dtype: str
    seconds: list[float]
    error: str = ""


class LoadOnRank(_RankFrame, frozen=True, tag=True):
    """Load an adapter, as ``Worker.load_adapter`` does. Every rank answers ``LoadedOnRank``."""

    number: int
    path: str
    pinned: bool


class LoadedOnRank(_RankFrame, frozen=True, tag=True):
    """Answer to ``LoadOnRank``: the rank has loaded the adapter. ``error``: the reason why it has
    not, "" after success; ``memory``: the reason is a lack of memory."""

    rank: int
    number: int
    facts: dict[str, Any]
    error: str = ""
    memory: bool = False


class UnloadOnRank(_RankFrame, frozen=True, tag=True):
    """Unload an adapter, as ``Worker.unload_adapter`` does."""

    number: int


class Stop(_RankFrame, frozen=True, tag=True):
    """End the rank."""


class RankFailed(_RankFrame, frozen=True, tag=True):
    """The rank ends because of an error. ``kind``: "memory" or "value" if another configuration
    would help, else "lost"."""

    rank: int
    kind: str
    error: str


class NodeJoins(_RankFrame, frozen=True, tag=True):
    """A machine offers its ranks. ``facts``: facts that must equal the planner's."""

    node: int
    inbox: str
    facts: dict[str, str]


class NodeStarts(_RankFrame, frozen=True, tag=True):
    """The planner uses the ranks of a machine, which must start them with the planner's epoch."""


class NodeRefused(_RankFrame, frozen=True, tag=True):
    """The planner cannot use the machine."""

    error: str


class NodeBeat(_RankFrame, frozen=True, tag=True):
    """A heartbeat, from a machine to the planner and from the planner (node 0) to the other
    machines."""

    node: int


RankMessage: TypeAlias = (
    Hello | Welcome | Offer | Smallest | Ready | PassPlan | PlanMasks | Outcome | PassFailed
    | SampledIds | StatesHead | LoadOnRank | LoadedOnRank | UnloadOnRank | Stop | RankFailed
    | NodeJoins | NodeStarts | NodeRefused | NodeBeat
)  # fmt: skip

_ENCODER = msgspec.msgpack.Encoder(enc_hook=to_wire)
_DECODER = msgspec.msgpack.Decoder(RankMessage, ext_hook=from_wire)


def encode_message(message: RankMessage) -> bytes:
    return _ENCODER.encode(message)


def decode_message(frame: bytes | memoryview) -> RankMessage:
    """Decode a message. Raises msgspec.DecodeError or ValueError for a malformed frame."""
    try:
        message: RankMessage = _DECODER.decode(frame)
    except RecursionError as error:
        raise msgspec.DecodeError(str(error)) from error
    return message
