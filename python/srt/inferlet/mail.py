"""Mail: messages for a program, from its client and from other programs (Pie, section 4.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
Hand: TypeAlias = Callable[[int, str], None]  # a reader and its message
MOST_WAITING = 1024  # messages that no program has read, of one mailbox
MOST_TOPICS = 64  # subscriptions of one program


class Mailbox(Generic[T]):
    """Messages that wait for a reader, or readers that wait for a message."""

    def __init__(self) -> None:
        self._messages: deque[T] = deque()
        self._readers: deque[int] = deque()

    def read(self, reader: int) -> list[T]:
        """The next message, in a list; empty where the reader, a number, waits for it."""
        if self._messages:
            return [self._messages.popleft()]
        self._readers.append(reader)
        return []

    def put(self, message: T) -> int | None:
        """The reader that gets the message; None: it waits. Raises ValueError where too many do."""
        if self._readers:
            return self._readers.popleft()
        if len(self._messages) >= MOST_WAITING:
            raise ValueError(f"{MOST_WAITING} messages wait already; receive some first")
        self._messages.append(message)
        return None


class Topics:
    """Subscriptions of programs: for each topic of each tenant the mailboxes, by program."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[str, str], dict[int, tuple[Mailbox[str], Hand]]] = {}

    def subscribe(self, owner: str, topic: str, program: int, hand: Hand) -> Mailbox[str]:
        """The program's mailbox of the topic. ``hand`` gives a waiting reader its message. Raises
        ValueError where the program has too many."""
        boxes = self._boxes.setdefault((owner, topic), {})
        if program not in boxes:
            mine = sum(program in found for found in self._boxes.values())
            if mine >= MOST_TOPICS:
                raise ValueError(
                    f"this program has {MOST_TOPICS} subscriptions; unsubscribe from one"
                )
            boxes[program] = Mailbox(), hand
        return boxes[program][0]

    def unsubscribe(self, owner: str, topic: str, program: int) -> None:
        """End a subscription. Raises ValueError where there is none."""
        boxes = self._boxes.get((owner, topic), {})
        if program not in boxes:
            raise ValueError(f"this program is not subscribed to {topic!r}")
        self._drop(owner, topic, program)

    def broadcast(self, owner: str, topic: str, message: str) -> None:
        """Give a message to all mailboxes of a topic; a full one misses it."""
        for box, hand in list(self._boxes.get((owner, topic), {}).values()):
            with suppress(ValueError):
                reader = box.put(message)
                if reader is not None:
                    hand(reader, message)

    def leave(self, program: int) -> None:
        """A program has ended."""
        for owner, topic in [key for key, boxes in self._boxes.items() if program in boxes]:
            self._drop(owner, topic, program)

    def _drop(self, owner: str, topic: str, program: int) -> None:
        boxes = self._boxes[owner, topic]
        del boxes[program]
        if not boxes:
            del self._boxes[owner, topic]
