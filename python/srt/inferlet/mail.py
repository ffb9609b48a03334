"""Mail: messages for a program, from its client and from other programs (Pie, section 4.3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T", bound=str | bytes)
Hand: TypeAlias = Callable[[int, str], None]  # a reader and its message
MOST_WAITING = 1024  # messages that no program has read, of one mailbox
MOST_UNREAD = 4 << 20  # characters or bytes of messages that no program has read
MOST_TOPICS = 64  # subscriptions of one program


@dataclass(eq=False)
class Unread:
    """Characters, or bytes, of the messages of some mailboxes that no program has read."""

    size: int = 0


class Mailbox(Generic[T]):
    """Messages that wait for a reader, or readers that wait for a message."""

    def __init__(self, unread: Unread | None = None) -> None:
        """``unread``: of several mailboxes, which share a limit."""
        self._messages: deque[T] = deque()
        self._readers: deque[int] = deque()
        self._unread = unread or Unread()

    def read(self, reader: int) -> list[T]:
        """The next message, in a list; empty where the reader, a number, waits for it."""
        if self._messages:
            message = self._messages.popleft()
            self._unread.size -= len(message)
            return [message]
        self._readers.append(reader)
        return []

    def put(self, message: T) -> int | None:
        """The reader that gets the message; None: it waits. Raises ValueError where too many do, or
        they are too long together."""
        if self._readers:
            return self._readers.popleft()
        if len(self._messages) >= MOST_WAITING:
            raise ValueError(f"{MOST_WAITING} messages wait already; receive some first")
        if self._unread.size and self._unread.size + len(message) > MOST_UNREAD:
            raise ValueError(
                f"messages of {self._unread.size} characters or bytes wait already, and this has "
                f"{len(message)}; at most {MOST_UNREAD}; receive some first"
            )
        self._unread.size += len(message)
        self._messages.append(message)
        return None

    def drop(self) -> list[int]:
        """Forget the messages; return the readers that wait, which get none."""
        self._unread.size -= sum(map(len, self._messages))
        self._messages.clear()
        waiting = list(self._readers)
        self._readers.clear()
        return waiting


class Topics:
    """Subscriptions of programs: for each topic of each tenant the mailboxes, by program."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[str, str], dict[int, tuple[Mailbox[str], Hand]]] = {}
        self._unread: dict[int, Unread] = {}  # by program

    def subscribe(self, owner: str, topic: str, program: int, hand: Hand) -> Mailbox[str]:
        """The program's mailbox of the topic. ``hand`` gives a waiting reader its message. Raises
        ValueError where the program has too many."""
        boxes = self._boxes.get((owner, topic), {})
        if program not in boxes:
            mine = sum(program in found for found in self._boxes.values())
            if mine >= MOST_TOPICS:
                raise ValueError(
                    f"this program has {MOST_TOPICS} subscriptions; unsubscribe from one"
                )
            unread = self._unread.setdefault(program, Unread())
            boxes[program] = Mailbox(unread), hand
            self._boxes[owner, topic] = boxes
        return boxes[program][0]

    def unsubscribe(self, owner: str, topic: str, program: int) -> list[int]:
        """End a subscription; return the readers that waited for a message of it. Raises ValueError
        where there is none."""
        boxes = self._boxes.get((owner, topic), {})
        if program not in boxes:
            raise ValueError(f"this program is not subscribed to {topic!r}")
        return self._drop(owner, topic, program)

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
        self._unread.pop(program, None)

    def _drop(self, owner: str, topic: str, program: int) -> list[int]:
        boxes = self._boxes[owner, topic]
        box, _ = boxes.pop(program)
        if not boxes:
            del self._boxes[owner, topic]
        return box.drop()
