"""Queues, topics and their messages: locks, sessions, schedules, duplicates, dead letters. No network, no threads.

Times are epoch seconds and come from the caller, so that a test can move them. Everything here can be pickled.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from heapq import heappop, heappush

from tests.servers.servicebus.messages import Message

DEAD_LETTERS = "/$deadletterqueue"
SESSION_LOST = "com.microsoft:session-lock-lost"
LOCK_LOST = "com.microsoft:message-lock-lost"
SESSION_TAKEN = "com.microsoft:session-cannot-be-locked"


class RefusedError(Exception):
    """What the service answers instead of doing what it was asked for."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition


@dataclass
class Settings:
    """How a queue or subscription was created.

    Attributes:
        lock_seconds: how long a message, or a session, stays locked.
        max_deliveries: failed deliveries after which a message is a dead letter.
        sessions: it takes only messages with a session, and gives them out by session.
        duplicate_seconds: how long a message id is remembered; 0 = no duplicate detection.
    """

    lock_seconds: float = 30.0
    max_deliveries: int = 10
    sessions: bool = False
    duplicate_seconds: float = 0.0


@dataclass
class Lock:
    """A message that somebody holds."""

    message: Message
    until: float


@dataclass
class Queue:
    """A queue, or a subscription, which is one but for its name."""

    path: str
    settings: Settings = field(default_factory=Settings)
    dead_letters: Queue | None = None
    messages: dict[int, Message] = field(default_factory=dict)
    locks: dict[bytes, Lock] = field(default_factory=dict)
    sessions: dict[str, float] = field(default_factory=dict)
    """Locked session → when that lapses."""

    def __post_init__(self) -> None:
        self._order: list[int] = []
        self._ready: dict[str | None, list[int]] = defaultdict(list)
        self._due: list[tuple[float, int]] = []
        self._lapses: list[tuple[float, bytes]] = []
        self._seen: dict[str, float] = {}
        self._next = 1
        if not self.path.endswith(DEAD_LETTERS):
            self.dead_letters = Queue(self.path + DEAD_LETTERS, Settings(self.settings.lock_seconds, 1 << 30))

    def put(self, message: Message, now: float) -> int:
        """Store a message unless it is a duplicate; its sequence number, or 0."""
        if self.settings.sessions and message.session is None:
            raise RefusedError("amqp:not-allowed", "the entity requires sessions: the message has none")
        if self._is_duplicate(message.message_id, now):
            return 0
        return self._store(message, now)

    def take(self, now: float, session: str | None = None) -> tuple[bytes, Lock] | None:
        """Lock the first message that is ready, of the session where there are such."""
        ready = self._ready[session]
        if not ready:
            return None
        message = self.messages[heappop(ready)]
        token = uuid.uuid4().bytes
        lock = Lock(message, self.sessions[session] if session else now + self.settings.lock_seconds)
        self.locks[token] = lock
        if session is None:
            heappush(self._lapses, (lock.until, token))
        return token, lock

    def complete(self, token: bytes, now: float) -> None:
        """Remove a locked message; `RefusedError` when its lock was lost."""
        self._drop(self._unlock(token, now).sequence)

    def give_back(self, token: bytes, now: float, *, failed: bool) -> None:
        """Unlock a message; when that `failed`, the delivery counts, and one too many makes a dead letter."""
        message = self._unlock(token, now)
        self._back(message, now, failed=failed)

    def dead_letter(self, token: bytes, reason: str, description: str, now: float) -> None:
        """Move a locked message to the dead letters."""
        self._bury(self._unlock(token, now), reason, description, now)

    def renew(self, token: bytes, now: float) -> float:
        """Lock a locked message for longer; until when."""
        lock = self._valid(token, now)
        lock.until = now + self.settings.lock_seconds
        heappush(self._lapses, (lock.until, token))
        return lock.until

    def cancel(self, sequence: int) -> None:
        """Remove a scheduled message; `RefusedError` where there is none."""
        message = self.messages.get(sequence)
        if message is None or not message.due:
            raise RefusedError("com.microsoft:message-not-found", f"no scheduled message {sequence}")
        self._drop(sequence)

    def peek(self, first: int, count: int, session: str | None = None) -> Iterator[tuple[Message, bool]]:
        """Messages from a sequence number on, locked ones too, and whether they are scheduled."""
        index = bisect_left(self._order, first)
        while count and index < len(self._order):
            message = self.messages.get(self._order[index])
            index += 1
            if message is not None and (session is None or message.session == session):
                count -= 1
                yield message, bool(message.due)

    def accept(self, session: str | None, now: float) -> str | None:
        """Lock a session, or any free one that has messages: its name, or None where there is none."""
        if not self.settings.sessions:
            raise RefusedError(
                "amqp:not-allowed", "the entity has no sessions: a session receiver cannot attach"
            )
        if session is None:
            free = (name for name, ready in self._ready.items() if ready and name not in self.sessions)
            session = next(free, None)
        elif session in self.sessions:
            raise RefusedError(SESSION_TAKEN, f"the session '{session}' is locked by another receiver")
        if session is not None:
            self.sessions[session] = now + self.settings.lock_seconds
        return session

    def renew_session(self, session: str, now: float) -> float:
        """Lock a session for longer; until when."""
        if session not in self.sessions:
            raise RefusedError(SESSION_LOST, f"the lock on the session '{session}' has expired")
        self.sessions[session] = now + self.settings.lock_seconds
        return self.sessions[session]

    def end_session(self, session: str, now: float) -> None:
        """Unlock a session; its unsettled messages are ready again, as if they had not been delivered."""
        self.sessions.pop(session, None)
        for token, lock in list(self.locks.items()):
            if lock.message.session == session:
                del self.locks[token]
                self._back(lock.message, now, failed=False)

    def session_names(self) -> list[str]:
        """The sessions that have messages."""
        return sorted({message.session for message in self.messages.values() if message.session})

    def tick(self, now: float) -> None:
        """Enqueue what is due, and end the locks that lapse."""
        while self._due and self._due[0][0] <= now:
            _, sequence = heappop(self._due)
            message = self.messages.get(sequence)
            if message is not None:
                self._drop(sequence)
                message.due = 0.0
                self._store(message, now)
        while self._lapses and self._lapses[0][0] <= now:
            _, token = heappop(self._lapses)
            lock = self.locks.get(token)
            if lock is not None and lock.until <= now:
                del self.locks[token]
                self._back(lock.message, now, failed=True)
        for session in [name for name, until in self.sessions.items() if until <= now]:
            self.end_session(session, now)

    def lapse(self, now: float) -> None:
        """End all locks as if their time had come."""
        for token, lock in self.locks.items():
            lock.until = now
            heappush(self._lapses, (now, token))
        self.sessions = dict.fromkeys(self.sessions, now)
        self.tick(now)

    def waiting(self) -> int:
        """How many messages are ready."""
        return sum(map(len, self._ready.values()))

    def _store(self, message: Message, now: float) -> int:
        message.sequence, self._next = self._next, self._next + 1
        message.enqueued = max(now, message.due)
        self.messages[message.sequence] = message
        self._order.append(message.sequence)
        if message.due > now:
            heappush(self._due, (message.due, message.sequence))
        else:
            message.due = 0.0
            self._push(message)
        return message.sequence

    def _push(self, message: Message) -> None:
        heappush(self._ready[message.session if self.settings.sessions else None], message.sequence)

    def _drop(self, sequence: int) -> None:
        del self.messages[sequence]
        if len(self._order) > 2 * len(self.messages) + 64:
            self._order = sorted(self.messages)

    def _back(self, message: Message, now: float, *, failed: bool) -> None:
        message.count += failed
        if message.count >= self.settings.max_deliveries:
            self._bury(message, "MaxDeliveryCountExceeded", "the message was delivered too often", now)
        else:
            self._push(message)

    def _bury(self, message: Message, reason: str, description: str, now: float) -> None:
        assert self.dead_letters is not None
        self._drop(message.sequence)
        message.annotate([("DeadLetterReason", reason), ("DeadLetterErrorDescription", description)])
        self.dead_letters._store(message, now)

    def _unlock(self, token: bytes, now: float) -> Message:
        lock = self._valid(token, now)
        del self.locks[token]
        return lock.message

    def _valid(self, token: bytes, now: float) -> Lock:
        self.tick(now)
        if token not in self.locks:
            raise RefusedError(LOCK_LOST, "the lock supplied is invalid: it expired, or the message is gone")
        return self.locks[token]

    def _is_duplicate(self, message_id: str | None, now: float) -> bool:
        if not self.settings.duplicate_seconds or message_id is None:
            return False
        if self._seen.get(message_id, 0.0) > now:
            return True
        self._seen[message_id] = now + self.settings.duplicate_seconds
        return False


@dataclass
class Namespace:
    """All entities; a queue comes into being when it is first named, with the default settings."""

    queues: dict[str, Queue] = field(default_factory=dict)
    topics: dict[str, list[str]] = field(default_factory=dict)
    defaults: Settings = field(default_factory=Settings)

    def queue(self, path: str) -> Queue:
        """The queue, subscription or dead-letter queue of a path, in whatever case."""
        name = path.strip("/").casefold()
        if name.endswith(DEAD_LETTERS):
            dead_letters = self.queue(name.removesuffix(DEAD_LETTERS)).dead_letters
            assert dead_letters is not None
            return dead_letters
        if name not in self.queues:
            self.queues[name] = Queue(name, copy(self.defaults))
        return self.queues[name]

    def create(self, path: str, settings: Settings) -> None:
        """A queue with settings of its own, in place of one of that name; `topic/Subscriptions/name` works too."""
        name = path.casefold()
        self.queues[name] = Queue(name, settings)
        topic, found, _ = name.partition("/subscriptions/")
        if found and name not in self.topics.setdefault(topic, []):
            self.topics[topic].append(name)

    def send(self, path: str, message: Message, now: float) -> int:
        """To a queue, or to all subscriptions of a topic; the sequence number in the last."""
        targets = self.topics.get(path.strip("/").casefold(), [path])
        sequence = 0
        for target in targets:
            sequence = self.queue(target).put(copy(message), now)
        return sequence

    def tick(self, now: float) -> None:
        """Let the time come to all entities."""
        for queue in self.queues.values():
            queue.tick(now)
            if queue.dead_letters is not None:
                queue.dead_letters.tick(now)
