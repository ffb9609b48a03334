"""Messages between the planner and its ranks, and between ranks: MessagePack, a message a frame.

start    Hello, Welcome, then Offer and Smallest as often as a number is agreed on, and Ready
passes   PassPlan to every rank, PlanMasks to the one that samples, Outcome or PassFailed from it
ids      SampledIds, from the rank that samples to those of the first stage
end      RankFailed from a rank that cannot go on, Stop to all

A frame of another ``epoch``, which is another start of the planner, is dropped.
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
        inbox, ids, states: addresses at which it takes messages, sampled ids and hidden states.
        store: address of the store in which the ranks meet; of rank 0 alone.
        facts: all that must be equal on every rank, by name.
    """

    rank: int
    inbox: str
    ids: str
    states: str
    store: str
    facts: dict[str, str]


class Welcome(_RankFrame, frozen=True, tag=True):
    """Answer to the ``Hello`` of all ranks. ``ids``, ``states``: by rank."""

    ids: list[str]
    states: list[str]
    store: str


class Offer(_RankFrame, frozen=True, tag=True):
    """A number of which the smallest counts: pages that the rank has memory for."""

    rank: int
    number: int


class Smallest(_RankFrame, frozen=True, tag=True):
    """The smallest number that was offered."""

    number: int


class Ready(_RankFrame, frozen=True, tag=True):
    """The rank has loaded the model. ``facts``: ``ModelWorker.info``."""

    rank: int
    facts: dict[str, Any]


class PassPlan(_RankFrame, frozen=True, tag=True):
    """A batch to compute."""

    columns: BatchColumns


class PlanMasks(_RankFrame, frozen=True, tag=True):
    """The masks that the samples of batch ``id`` name by index."""

    id: int
    masks: list[Mask]


class Outcome(_RankFrame, frozen=True, tag=True):
    """The outputs of a batch."""

    result: StepResult


class PassFailed(_RankFrame, frozen=True, tag=True):
    """Batch ``id`` could not be computed, and the next ones can."""

    id: int
    error: str


class SampledIds(_RankFrame, frozen=True, tag=True):
    """The tokens that batch ``id`` sampled, one a row, 0 where none; empty where it failed."""

    id: int
    tokens: Ints


class StatesHead(_RankFrame, frozen=True, tag=True):
    """Description of the hidden states of batch ``id``, which are the frame after it; ``error``:
    why there are none. ``seconds``: what the stages so far took for it, without waiting."""

    id: int
    shape: tuple[int, int]
    dtype: str
    seconds: list[float]
    error: str = ""


class LoadOnRank(_RankFrame, frozen=True, tag=True):
    """See ``Worker.load_adapter``; every rank answers with ``LoadedOnRank``."""

    number: int
    path: str
    pinned: bool


class LoadedOnRank(_RankFrame, frozen=True, tag=True):
    """``error``: why it is not, "" where it is; ``memory``: it found no memory."""

    rank: int
    number: int
    facts: dict[str, Any]
    error: str = ""
    memory: bool = False


class UnloadOnRank(_RankFrame, frozen=True, tag=True):
    """See ``Worker.unload_adapter``."""

    number: int


class Stop(_RankFrame, frozen=True, tag=True):
    """End the rank."""


class RankFailed(_RankFrame, frozen=True, tag=True):
    """The rank ends. ``kind``: "memory" or "value" where another configuration would help, else
    "lost"."""

    rank: int
    kind: str
    error: str


class NodeJoins(_RankFrame, frozen=True, tag=True):
    """A machine offers its ranks. ``facts``: what must equal the planner's."""

    node: int
    inbox: str
    facts: dict[str, str]


class NodeStarts(_RankFrame, frozen=True, tag=True):
    """The planner takes the ranks of a machine: they are to be started with its epoch."""


class NodeRefused(_RankFrame, frozen=True, tag=True):
    """The planner cannot use the machine."""

    error: str


class NodeBeat(_RankFrame, frozen=True, tag=True):
    """A sign of life, of a machine to the planner and of the planner (node 0) to the others."""

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
