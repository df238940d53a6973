"""The client of one binding: topics, consumers, producers, and errors that say what to do."""

from __future__ import annotations

import json
import re
import ssl
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, quote_plus
from urllib.request import Request, urlopen

import pulsar

from babelqueue_spark.bindings.advice import Advice, denied, forbidden, full, missing, too_large, unreachable
from babelqueue_spark.bindings.pulsar.claims import ClaimRepeatedError
from babelqueue_spark.bindings.pulsar.messages import EntryId
from babelqueue_spark.bindings.pulsar.options import PulsarOptions
from babelqueue_spark.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnreachableError,
    QueueNotFoundError,
)

_UNCONFIRMED = 5_000
_RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")

Position = tuple[int, int]
"""Ledger and number of an entry."""
_OF_ADMIN = {401: BrokerAuthenticationError, 403: BrokerAuthenticationError, 404: QueueNotFoundError}

_ADVICE = {
    "AuthenticationError": denied("it refused the login: check pulsar.token, or the client's certificate"),
    "AuthorizationError": forbidden(
        "this role may not do that: allow it to produce and consume on the topic"
    ),
    "BrokerMetadataError": unreachable("its metadata store does not answer: retry"),
    "BrokerPersistenceError": full("it cannot store: check its bookies"),
    "ConnectError": unreachable("it cannot be reached: check host, port and TLS"),
    "ConsumerBusy": Advice(
        "the subscription is of another type: use a Shared one, or another pulsar.subscription"
    ),
    "InvalidTopicName": Advice("this cannot be the name of a topic"),
    "LookupError": missing(
        "it does not find the topic's broker: check that the tenant and the namespace exist"
    ),
    "MessageTooBig": too_large(
        "a message is larger than the broker takes (maxMessageSize, 5 MiB by default): keep "
        "large data elsewhere and send its address"
    ),
    "NotConnected": unreachable("the connection was lost"),
    "ProducerBlockedQuotaExceededError": full("the backlog quota is used up: consume, or raise it"),
    "ProducerBlockedQuotaExceededException": full("the backlog quota is used up: consume, or raise it"),
    "ProducerQueueIsFull": full("it takes messages too slowly"),
    "Timeout": unreachable(
        "it did not answer in time: check host, port and login, or raise pulsar.operation_timeout_seconds"
    ),
    "TooManyLookupRequestException": unreachable("it has too many lookups to do: retry"),
    "TopicNotFound": missing("the topic does not exist, and the broker may not create it: create it first"),
    "TopicTerminated": Advice("the topic was terminated: it takes no more messages"),
}


@dataclass(frozen=True)
class Cursor:
    """What of a topic, or of one partition, a subscription has acknowledged.

    Attributes:
        topic: whole name of the topic or partition.
        behind: everything up to here is acknowledged.
        last: the topic's last entry when it was asked for.
        acknowledged: ranges of further entries, each without its first and with its last one, in order.
    """

    topic: str
    behind: Position
    last: Position
    acknowledged: tuple[tuple[Position, Position], ...] = ()

    @classmethod
    def parse(cls, topic: str, stats: Mapping[str, Any], subscription: str) -> Cursor:
        """Out of a topic's internal statistics; `KeyError` where it has no such subscription."""
        found = stats["cursors"][subscription]
        ranges = (tuple(map(int, each)) for each in _RANGE.findall(found["individuallyDeletedMessages"]))
        return cls(
            topic,
            _position(found["markDeletePosition"]),
            _position(stats["lastConfirmedEntry"]),
            tuple(sorted(((ledger, after), (other, upto)) for ledger, after, other, upto in ranges)),
        )

    def start(self) -> pulsar.MessageId:
        """Return the message after which a reader starts that is to read what is not acknowledged."""
        return pulsar.MessageId(-1, *self.behind, -1)

    def has_acknowledged(self, entry: Position) -> bool:
        """Return whether an entry is none of those that the subscription still has to give out."""
        following = bisect_left(self.acknowledged, entry, key=lambda each: each[1])
        beyond = following < len(self.acknowledged) and self.acknowledged[following][0] < entry
        return entry <= self.behind or beyond


class PulsarClient:
    """A `pulsar.Client`, made when first needed in the process that needs it."""

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options
        self._client: pulsar.Client | None = None
        self._producers: dict[str, pulsar.Producer] = {}

    def subscribe(self, queue: str, prefetch: int) -> pulsar.Consumer:
        """Return a consumer of the subscription; the broker sends it up to `prefetch` messages ahead."""
        with self.explained(queue):
            return self._subscribed(self.topic(queue), prefetch)

    def stand_by(self, queue: str) -> list[pulsar.Consumer]:
        """Consumers that receive nothing, one for each partition: the subscription is there, and in use."""
        with self.explained(queue):
            return [self._subscribed(topic, 0) for topic in self._partitions(queue)]

    def greet(self, queue: str) -> None:
        """Return when the broker has answered something; a consumer that gets nothing cannot tell."""
        self._partitions(queue)

    def settle(self, queue: str, topic: str, entries: Sequence[EntryId]) -> None:
        """Acknowledge entries of one topic or partition; returns when the broker has done so.

        The client collects acknowledges and sends them when it likes, without an answer. So a consumer is
        made for them that receives nothing: closing it sends them, and has an answer, which comes after
        them. The client opens a lost connection again after 0.1 s at the soonest: a consumer that is still
        connected before it is closed has lost nothing.
        """
        with self.explained(queue):
            consumer = self._subscribed(topic, 0)
            for entry in entries:
                consumer.acknowledge(entry.message_id())
            connected = consumer.is_connected()
            consumer.close()
        if not connected:
            raise self.error("the connection was lost while messages were acknowledged", queue)

    def send(self, queue: str, messages: Iterable[tuple[bytes, dict[str, str], str | None, int]]) -> int:
        """Send bodies with properties, key and delay in milliseconds; returns when all are confirmed."""
        producer = self._producer(queue)
        outcome = _Outcome()
        with self.explained(queue):
            for body, given, key, delay in messages:
                outcome.expect()
                producer.send_async(
                    body,
                    outcome.confirm,
                    properties=given,
                    partition_key=key,
                    deliver_after=timedelta(milliseconds=delay) if delay > 0 else None,
                )
        refused = outcome.refused()
        if refused:
            advice = {name: _ADVICE.get(name, Advice(name)) for name in sorted(refused)}
            reasons = ", ".join(each.text for each in advice.values())
            [(most, _)] = refused.most_common(1)
            raise self.error(
                f"{refused.total()} messages were not confirmed: {reasons}", queue, advice[most].error
            )
        return outcome.expected

    def entries_waiting(self, queue: str) -> int | None:
        """Entries that the subscription has before it and that are due, as the admin endpoint counts them.

        None where no endpoint is given.
        """
        options = self._options
        if options.admin_url is None:
            return None
        count = 0
        for topic in self._partitions(queue):
            stats = self._ask(_admin_path(topic, "stats"), queue)
            subscription = stats.get("subscriptions", {}).get(options.subscription, {})
            count += int(subscription.get("msgBacklogNoDelayed", subscription.get("msgBacklog", 0)))
        return count

    def is_missing(self, queue: str) -> bool:
        """Return whether the admin endpoint knows no such topic; False where none is given."""
        if self._options.admin_url is None:
            return False
        try:
            self._ask(_admin_path(self._partitions(queue)[0], "stats"), queue)
        except QueueNotFoundError:
            return True
        return False

    def cursors(self, queue: str) -> Iterator[Cursor]:
        """Yield how far the subscription is with each partition, as the admin endpoint says."""
        with self.explained(queue):
            self._make_subscription(queue)
        name = quote_plus(self._options.subscription, safe="*")
        for topic in self._partitions(queue):
            stats = self._ask(_admin_path(topic, "internalStats"), queue)
            try:
                yield Cursor.parse(topic, stats, name)
            except (KeyError, ValueError):
                raise self.error(
                    "pulsar.admin_url does not tell how far the subscription is", queue
                ) from None

    def read(self, queue: str, cursor: Cursor, prefetch: int) -> Iterator[pulsar.Message]:
        """Yield by a reader what a subscription has before it, up to the last message of this moment."""
        if cursor.behind >= cursor.last:
            return
        patience = self._options.operation_timeout_seconds * 1000
        with self.explained(queue):
            reader = self._connected().create_reader(
                cursor.topic, cursor.start(), receiver_queue_size=prefetch
            )
            try:
                while reader.has_message_available():
                    message = reader.read_next(timeout_millis=patience)
                    place = message.message_id()
                    entry = (place.ledger_id(), place.entry_id())
                    if entry > cursor.last:
                        return
                    if not cursor.has_acknowledged(entry):
                        yield message
            finally:
                reader.close()

    def error(self, text: str, queue: str, kind: type[BrokerError] = BrokerError) -> BrokerError:
        return kind(f"Pulsar at {self._options.address}: topic '{queue}': {text}")

    def close(self) -> None:
        client, self._client = self._client, None
        self._producers.clear()
        if client is not None:
            with suppress(pulsar.PulsarException):
                client.close()

    @contextmanager
    def explained(self, queue: str) -> Iterator[None]:
        try:
            yield
        except ClaimRepeatedError as error:
            raise self.error(str(error), queue, BrokerUnreachableError) from None
        except pulsar.PulsarException as error:
            name = type(error).__name__
            advice = _ADVICE.get(name, Advice(f"the client failed with {name}"))
            raise self.error(advice.text, queue, advice.error) from None

    def topic(self, queue: str) -> str:
        return queue if "://" in queue else f"{self._options.topic_prefix}{queue}"

    def _connected(self) -> pulsar.Client:
        if self._client is None:
            options = self._options
            given = dict(options.tls)
            self._client = pulsar.Client(
                options.url,
                authentication=_login(options, given),
                operation_timeout_seconds=options.operation_timeout_seconds,
                connection_timeout_ms=options.connection_timeout_ms,
                tls_trust_certs_file_path=given.get("tls_trust_certs_file_path"),
                tls_validate_hostname=given.get("tls_validate_hostname", True),
                stats_interval_in_seconds=0,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            )
        return self._client

    def _subscribed(self, topic: str, prefetch: int) -> pulsar.Consumer:
        return self._connected().subscribe(
            topic,
            self._options.subscription,
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=prefetch,
        )

    def _partitions(self, queue: str) -> list[str]:
        """Whole names: of the partitions, or of the topic where it has none."""
        with self.explained(queue):
            found: list[str] = self._connected().get_topic_partitions(self.topic(queue))
            return found

    def _make_subscription(self, queue: str) -> None:
        """Unless it is there, of whatever type, or may not be made."""
        with suppress(pulsar.AuthorizationError, pulsar.ConsumerBusy):
            for topic in self._partitions(queue):
                self._subscribed(topic, 0).close()

    def _producer(self, queue: str) -> pulsar.Producer:
        if queue not in self._producers:
            with self.explained(queue):
                self._make_subscription(queue)  # without one the broker drops messages as nobody's
                self._producers[queue] = self._connected().create_producer(
                    self.topic(queue),
                    send_timeout_millis=self._options.send_timeout_ms,
                    max_pending_messages=_UNCONFIRMED,
                    block_if_queue_full=True,
                    batching_enabled=self._options.batching,
                )
        return self._producers[queue]

    def _ask(self, path: str, queue: str) -> dict[str, Any]:
        options = self._options
        login = {"Authorization": f"Bearer {options.token}"} if options.token else {}
        secure = str(options.admin_url).startswith("https://")
        context = ssl.create_default_context(cafile=options.tls.get("tls_trust_certs_file_path"))
        try:
            request = Request(f"{options.admin_url}{path}", headers=login)  # noqa: S310 (http or https)
            with urlopen(  # noqa: S310
                request, timeout=options.operation_timeout_seconds, context=context if secure else None
            ) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except HTTPError as error:
            kind = _OF_ADMIN.get(error.code, BrokerError)
            raise self.error(f"pulsar.admin_url answers {error.code} {error.reason}", queue, kind) from None
        except (URLError, OSError, ValueError) as error:
            raise self.error(
                f"pulsar.admin_url cannot be used ({type(error).__name__}): check host and port", queue
            ) from None


class _Outcome:
    """What became of messages; the client's thread confirms them."""

    def __init__(self) -> None:
        self.expected = 0
        self._refused: Counter[str] = Counter()
        self._confirmed = 0
        self._changed = threading.Condition()

    def expect(self) -> None:
        self.expected += 1

    def confirm(self, result: Any, _: Any) -> None:
        with self._changed:
            self._confirmed += 1
            if result != pulsar.Result.Ok:
                self._refused[result.name] += 1
            self._changed.notify()

    def refused(self) -> Counter[str]:
        """Reasons, once the last message was confirmed or refused: at the latest after the send timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._confirmed == self.expected)
            return self._refused


def _admin_path(topic: str, what: str) -> str:
    scheme, _, path = topic.partition("://")
    return f"/admin/v2/{scheme}/{quote(path)}/{what}"


def _login(options: PulsarOptions, tls: dict[str, Any]) -> pulsar.Authentication | None:
    if options.token is not None:
        return pulsar.AuthenticationToken(options.token)
    if "tls_certificate_file_path" in tls:
        return pulsar.AuthenticationTLS(tls["tls_certificate_file_path"], tls["tls_private_key_file_path"])
    return None


def _position(text: str) -> Position:
    ledger, number = text.split(":")
    return int(ledger), int(number)
