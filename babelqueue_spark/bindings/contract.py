"""The contract between the connector and a broker.

A binding turns one broker's client into a few verbs. Each binding publishes, browses and polls its backlog. A
queue forgets what it has delivered: its binding claims, acknowledges and releases (`Binding`). A log keeps
what was read: its binding reads by offsets (`LogBinding`). Messages enter and leave a binding as Arrow record
batches, never as one object per row: it returns `DELIVERIES`, and takes `OUTGOING`. A binding knows neither
the journal nor Spark.
"""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.errors import BrokerError, OptionError

DeadLetterStyle = Literal["babelqueue", "initphp"]
logger = logging.getLogger(__name__)

Browse = Literal["exact", "intrusive", "none"]

_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_SHOWN_NAME = 255


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a broker can do, as data.

    Attributes:
        publish_batch: most messages one `publish` call should carry.
        visibility_timeout: seconds that a claim lasts by default; None = a configuration may not set any.
        claim_batch: most messages one `claim` call should ask for; 0 where nothing is claimed.
        durable_receipts: a receipt still acknowledges after the connection that claimed it closed.
        connection_claims: a claim ends with the connection that made it: the broker then redelivers its
            messages at once.
        publish_once: `publish` with an `idempotency_key` puts a repeated batch on the queue only once.
        max_delay: longest delay of a message in milliseconds; 0 = none, None = no limit.
        browse: whether messages can be read without consuming them.
        ordered: one reader task gets the messages of a queue in the order they were published; of a log,
            those of a partition.
        keys: the broker keeps a key with each message.
        headers: the broker keeps headers with each message.
        native_dead_letters: the broker moves messages to a dead-letter queue by itself.
        duplicate_detection: the broker drops a message whose `meta.id` it has seen.
        double_deliveries: the broker may give a message to two readers at once, and take the acknowledges of
            both; `id` is then of one message for ever.
        intrusive_backlog: asking for the backlog holds messages back from other readers for a moment.
    """

    publish_batch: int
    max_delay: int | None
    browse: Browse
    ordered: bool
    visibility_timeout: float | None = None
    claim_batch: int = 0
    publish_once: bool = False
    durable_receipts: bool = False
    connection_claims: bool = False
    keys: bool = False
    headers: bool = False
    native_dead_letters: bool = False
    duplicate_detection: bool = False
    double_deliveries: bool = False
    intrusive_backlog: bool = False


@dataclass(frozen=True, kw_only=True)
class BindingConfig:
    """The configuration of a binding; `OptionError` for a URL whose password is cut in two.

    Attributes:
        url: the connection string, secrets resolved.
        visibility_timeout: seconds a claim may stay unacknowledged; None = the binding's default.
        client_options: the `<broker>.<name>` options, names in lower case, values as text.
        native: messages have no envelope of ours: headers show, and set, what the broker's own properties say
            of a message's type, correlation id and message id, as `bq-job`, `bq-trace-id`, `bq-message-id`.
        referenced: names of client options (and `url`) whose values came by reference; no error shows them.
    """

    url: str = field(repr=False)
    visibility_timeout: float | None = None
    native: bool = False
    client_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    referenced: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if _is_cut(self.url):
            raise OptionError(
                "option 'url' has an '@' after its host, as if a password were cut in two: write special "
                "characters percent-encoded, / as %2F, ? as %3F, # as %23, @ as %40"
            )


def _is_cut(url: str) -> bool:
    """Return whether what is before an unescaped `/`, `?` or `#` of a login would be taken for the host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.netloc) and "@" in parts.path + parts.query + parts.fragment


class BaseBinding(ABC):
    """One broker, as seen by one reader or writer in one process.

    Construction parses the configuration and opens nothing, so that a binding may be built anywhere;
    the first verb connects. Verbs raise `BrokerError` with a one-line message that names the broker
    and what to do, and never holds a password. Not safe for concurrent use.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """What errors and docs call the broker."""
    frames_headers: ClassVar[bool] = False
    """Whether a message with headers is a frame around its body, which other programs do not read."""
    kept_headers: frozenset[str] = frozenset()
    """Headers that travel where others do not."""
    event_prefix: ClassVar[str] = "ce_"
    """What the names of CloudEvents attributes begin with in headers."""
    delay_advice: ClassVar[str] = ""
    """What to do about a delay that is too long; ends the error."""
    capabilities: Capabilities  # of the class; an instance may narrow them
    silence_limit: float = 60.0
    """Seconds after which a verb gives up on a broker that says nothing, with all that the client retries."""

    def __init__(self, config: BindingConfig) -> None:
        if config.visibility_timeout is not None and self.capabilities.visibility_timeout is None:
            raise OptionError(
                f"option 'visibilityTimeout' has no meaning for {self.title}, {self._why_no_timeout()}: "
                "remove it"
            )
        self.config = config

    def _why_no_timeout(self) -> str:
        if not self.capabilities.claim_batch:
            return "where nothing is claimed"
        if self.capabilities.connection_claims:
            return "where a claim lasts as long as its connection"
        return "where the queue itself has a lock duration"

    @abstractmethod
    def backlog(self, queue: str) -> int:
        """Return how many messages a reader could get soon: ready, due, or claimed by a dead reader."""

    def publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None = None) -> int:
        """Append `OUTGOING` messages in order; returns how many, after the broker has confirmed.

        With `idempotency_key` (where `publish_once`), a batch whose key was published before is not
        published again, and 0 comes back: messages and key become visible together or not at all.
        Keys are 32 characters; those that begin with the same 16 come from one writer, one at a time, and
        a broker may forget all but the last hundred of them.
        `BrokerError`, and nothing published, for a delay beyond `longest_delay`, or a key without
        `publish_once`; `OptionError` for a queue that `check_target` refuses.
        """
        if idempotency_key is not None and not self.capabilities.publish_once:
            raise BrokerError(
                f"{self.title}: queue '{queue}': it keeps no idempotency keys, so it cannot publish a batch "
                "once: publish without a key"
            )
        self.check_target(queue)
        self._check_delays(queue, messages)
        return self._publish(queue, messages, idempotency_key=idempotency_key)

    @abstractmethod
    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        """Do what `publish` promises, after its checks."""

    def _check_delays(self, queue: str, messages: pa.RecordBatch) -> None:
        asked = pc.max(messages.column("delay")).as_py() or 0
        if asked <= 0:
            return
        longest = self.longest_delay(queue)
        if longest is None or asked <= longest:
            return
        allowed = f"{longest / 1000:g} s is the longest" if longest else "it can delay none"
        advice = f": {self.delay_advice}" if self.delay_advice else ""
        raise BrokerError(
            f"{self.title}: queue '{queue}': a message asks for a delay of {asked / 1000:g} s, but "
            f"{allowed}{advice}"
        )

    @abstractmethod
    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        """Yield the messages that are ready now, in queue order, without consuming them; receipts are null.

        `BrokerError` where `capabilities.browse` is none.
        """

    def now(self) -> float:
        """Seconds since 1970 by the clock that ends claims and delays; connects where that is the server's.

        This host's clock where the broker's client tells no other.
        """
        return time.time()

    def skew(self) -> float | None:
        """Seconds by which this host's clock is ahead of the server's; None where that tells no time."""
        return None

    def missing(self, queue: str) -> str:
        """Name what is not there and the first use of the queue may create; "" where that cannot be told.

        One short question, which creates nothing. A reply to a queue that is missing is not published.
        """
        del queue
        return ""

    def advice(self, queue: str) -> str:
        """Say why a queue may seem empty that is not, and what to do; else "". Creates nothing."""
        del queue
        return ""

    def queues(self) -> list[str]:
        """Return names of queues that are there, 1,000 at most; none where the broker lists none."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Close the connection; idempotent."""

    @classmethod
    def dead_letter_name(cls, queue: str, style: DeadLetterStyle) -> str:
        """Return the queue for dead letters of `queue`: `<queue>.dlq`, or `<queue>.failed`."""
        return f"{queue}.dlq" if style == "babelqueue" else f"{queue}.failed"

    def oldest(self, queue: str) -> float | None:
        """Seconds since 1970 since which the message waits that is claimed next; one round trip at most.

        None where none waits, or the broker does not tell.
        """
        del queue
        return None

    def make_temporary(self, queue: str, idle: float) -> None:  # noqa: B027 (most need no making)
        """Make a queue that goes when it was unused for `idle` seconds, on brokers whose queues are made."""

    def check_queue(self, queue: str) -> None:
        """Raise `OptionError` for a name that no queue of this broker can have; connects to nothing."""
        if not queue.strip() or _CONTROL.search(queue):
            raise self.refused_name(queue, "a name has a visible character, and no line breaks or such")

    def check_target(self, queue: str) -> None:
        """Raise `OptionError` where messages cannot be published to a queue of this name, as `check_queue`.

        Overridden where the broker, or the connector, keeps things of its own under names that can be read.
        """
        self.check_queue(queue)

    def check_foreign(self, queue: str) -> None:
        """Raise `OptionError` where a message, not the user, must not name this queue as a target."""
        self.check_target(queue)

    def refused_name(self, queue: str, why: str) -> OptionError:
        """Make the error about a name, which may come from a message."""
        return OptionError(f"{queue[:_SHOWN_NAME]!r} is not the name of a queue of {self.title}: {why}")

    def identities(self, deliveries: pa.RecordBatch) -> list[str]:
        """Return a name a message that its redelivery will share; overridden where the broker gives no id."""
        return deliveries.column("id").to_pylist()  # type: ignore[no-any-return]

    def attempts(self, body_attempts: pa.Int32Array, deliveries: pa.RecordBatch) -> pa.Int32Array:
        """Return the attempts column: the body's count, reconciled by the binding's rule."""
        del deliveries
        return body_attempts

    def longest_delay(self, queue: str) -> int | None:
        """Longest delay of a message in this queue, in milliseconds; 0 = none, None = no limit."""
        del queue
        return self.capabilities.max_delay

    def retry_delay(self, queue: str, delay: int, attempts: int) -> int:
        """Return the milliseconds that a retry waits, of the `delay` asked for, after so many `attempts`."""
        del attempts
        longest = self.longest_delay(queue)
        return delay if longest is None else min(delay, longest)

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        """Rows of the `OUTGOING` messages that the queue refuses for their size, as far as that is known."""
        del queue, messages
        return []

    def duplicate_window(self, queue: str) -> float:
        """Seconds for which the broker drops a message whose id this queue has seen; 0 = it does not."""
        del queue
        return 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Binding(BaseBinding):
    """A queue: the broker forgets a message when it is acknowledged."""

    lease: float = 0.0
    """Seconds for which a claim is certainly nobody else's; 0 where it ends with the connection.

    Where only messages tell, 0 until the first claim.
    """

    @abstractmethod
    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        """Claim up to `messages` messages; the broker gives them to no other reader until the timeout ends.

        At least one message where one is ready (however large), then no more than `max_bytes` of
        bodies. Returns at once, with an empty batch when nothing is ready.
        """

    @abstractmethod
    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        """Acknowledge claimed messages; return for each whether the broker removed it.

        False where the claim had lapsed: the broker redelivers the message, or has done so.
        The deliveries may come from a claim of another process where receipts are durable.
        """

    @abstractmethod
    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        """Return claimed messages to the queue unchanged, at once; lapsed claims are ignored."""

    def claimable(self, queue: str) -> bool:
        """Return whether messages of this queue can be claimed; where not, `browse` gives their receipts."""
        del queue
        return True

    def _give_back(self, release: Callable[[], object], messages: int) -> None:
        """Call `release` for messages beyond the bounds of a claim; warn if it fails: they lapse."""
        if not messages:
            return
        try:
            release()
        except BrokerError as error:
            logger.warning("%d messages could not be released and will lapse: %s", messages, error)


class LogBinding(BaseBinding):
    """A log: messages stay after they are read, in partitions, under offsets that grow."""

    counts_messages: ClassVar[bool] = True
    """Whether the difference of two offsets is the number of messages between them (and of gaps)."""
    closed_offset: ClassVar[int | None] = None
    """Offset of a partition that was read to its end for ever, where partitions come to one."""

    @abstractmethod
    def beginning_offsets(self, queue: str) -> dict[int, int]:
        """Partition → offset of the first message that is still there; empty where there is no such log."""

    @abstractmethod
    def end_offsets(self, queue: str) -> dict[int, int]:
        """Partition → offset behind the last message that may be read now."""

    def next_offsets(self, queue: str, start: Mapping[int, int], messages: int) -> dict[int, int]:
        """Partition → offset up to which the next batch after `start` reads: about `messages` messages.

        Where offsets do not count messages. A partition that was read to its end for ever stays.
        """
        raise NotImplementedError

    def first_offset(self, queue: str, partition: int, offset: int) -> int:
        """Return the offset to read from where `offset` was reached."""
        del queue, partition
        return offset

    def high_watermarks(self, queue: str) -> dict[int, int]:
        """Partition → offset behind the last message, whether it may be read now or later."""
        return self.end_offsets(queue)

    @abstractmethod
    def read(self, queue: str, partition: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """`DELIVERIES` from offset `first` up to `last`, which is not read; receipts are null.

        `DataLossError` where the first ones are gone.
        """

    @abstractmethod
    def commit_offsets(self, queue: str, offsets: Mapping[int, int]) -> None:
        """Commit how far a reader has come, for monitors; the connector does not read it."""

    def origin(self, queue: str) -> str:
        """Return the queue whose messages these are, where `queue` only keeps them for a while."""
        return queue

    def backlog(self, queue: str) -> int:
        beginnings = self.beginning_offsets(queue)
        return sum(max(0, end - beginnings.get(part, 0)) for part, end in self.end_offsets(queue).items())

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        beginnings = self.beginning_offsets(queue)
        for partition, end in self.end_offsets(queue).items():
            yield from self.read(queue, partition, beginnings.get(partition, 0), end)
