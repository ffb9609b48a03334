"""Weights: from a checkpoint's tensors, or a random generator, into a model."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from sglang.srt.layers.quantised import Float8, Quantised
from sglang.srt.layers.weight import Slot, Slots
from sglang.srt.models.checkpoint import Checkpoint
from sglang.srt.numeric.host_arrays import Weight, storage_key
from tqdm import tqdm

ROWS_AT_ONCE = 1024  # compared at once in two tables


def match(slots: Slots, checkpoint: Checkpoint, ignores: Callable[[str], bool]) -> None:
    """Raise ValueError unless the checkpoint holds exactly the tensors that the model needs.

    ``slots`` may be those of a model on the meta device: nothing is allocated or read.
    """
    shapes, source = checkpoint.shapes, checkpoint.source
    missing = sorted(slots.keys() - shapes.keys())
    if missing:
        raise ValueError(f"{source} lacks {_some(missing)}, which the model needs.")
    unexpected = sorted(
        n for n in shapes.keys() - slots.keys() if not ignores(n) and not checkpoint.needless(n)
    )
    if unexpected:
        raise ValueError(
            f"{source} has {_some(unexpected)}, which its architecture does not know; "
            f"loading without would give wrong answers."
        )
    for name, slot in slots.items():
        if shapes[name] != slot.shape:
            raise ValueError(
                f"{source}: tensor {name} has shape {list(shapes[name])}; config.json asks for "
                f"{list(slot.shape)}."
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"


def same(checkpoint: Checkpoint, first: str, second: str) -> bool:
    """Whether two tensors of the checkpoint are equal, bit by bit."""
    if checkpoint.shapes[first] != checkpoint.shapes[second]:
        return False
    one, other = checkpoint.read(first), checkpoint.read(second)
    return all(
        one[row : row + ROWS_AT_ONCE].tobytes() == other[row : row + ROWS_AT_ONCE].tobytes()
        for row in range(0, len(one), ROWS_AT_ONCE)
    )


def load(
    slots: Slots,
    checkpoint: Checkpoint,
    show: bool = True,
    filled: Callable[[Weight], None] | None = None,
    keep: Callable[[Slot, Quantised | Float8], bool] | None = None,
) -> None:
    """Fill every slot, reading only what is needed. To be called after ``match``.

    Takes the slots out of ``slots`` as it goes, and calls ``filled`` with the last view of each
    weight once all of it is there: the callee may pack and free it. ``keep`` is offered what is
    quantised, and returns whether it took it in place of the slot.
    """
    watch = _Watch(slots, filled)
    with progress(sum(map(checkpoint.size, slots)), "loading weights", show) as bar:
        for name in checkpoint.order(list(slots)):
            integers = None if keep is None else checkpoint.quantised(name)
            if keep is None or integers is None or not keep(slots[name], integers):
                slots[name].load(checkpoint.read(name))
            del integers
            checkpoint.forget(name)
            watch.done(name)
            bar.update(checkpoint.size(name))


class _Watch:
    """Tells when all slots of one weight are filled."""

    def __init__(self, slots: Slots, filled: Callable[[Weight], None] | None) -> None:
        self._slots, self._filled = slots, filled
        self._left = Counter(storage_key(slot.target) for slot in slots.values())

    def done(self, name: str) -> None:
        target = self._slots.pop(name).target
        key = storage_key(target)
        self._left[key] -= 1
        if self._filled is not None and not self._left[key]:
            self._filled(target)


def randomise(
    slots: Slots, seed: int, show: bool = True, filled: Callable[[Weight], None] | None = None
) -> None:
    """Dummy weights: a function of the seed and each tensor's name, never zeros. Takes the slots
    and calls ``filled`` as ``load`` does."""
    watch = _Watch(slots, filled)
    with progress(len(slots), "drawing weights", show, unit="tensor") as bar:
        for name in list(slots):
            slot = slots[name]
            number = zlib.crc32(f"{seed}:{name}".encode())
            if slot.on_gpu:
                slot.randomise_there(number)
            else:
                slot.randomise(np.random.Generator(np.random.SFC64(number)))
            del slot
            watch.done(name)
            bar.update(1)


def progress(total: int, title: str, show: bool = True, unit: str = "B") -> Any:
    """A bar on a terminal, and nothing elsewhere."""
    return tqdm(
        total=total, desc=title, unit=unit, unit_scale=unit == "B", file=sys.stderr,
        disable=None if show and sys.stderr else True,  # None: shown on terminals only
        leave=False,
    )  # fmt: skip
