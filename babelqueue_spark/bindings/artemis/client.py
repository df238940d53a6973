"""The connection of one binding: made when needed, kept alive, with errors that say what to do."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from babelqueue_spark.bindings.advice import Advice, denied, forbidden, full, missing, unreachable
from babelqueue_spark.bindings.artemis import amqp
from babelqueue_spark.bindings.artemis.connection import BLOCKED, Connection
from babelqueue_spark.bindings.artemis.options import ArtemisOptions
from babelqueue_spark.bindings.artemis.wire import UNNAMED, AmqpError
from babelqueue_spark.errors import BrokerError

_TICK_SECONDS = 5.0
_MANAGEMENT = "activemq.management"
_PATIENCE_SECONDS = 30.0
_COUNTS = ("messageCount", "deliveringCount", "scheduledCount")

_NO_AMQP = "amqp:connection:framing-error"
_ADVICE = {
    BLOCKED: full("it takes no messages: the address or the broker's disk is full"),
    UNNAMED: Advice("it did not say why"),
    "amqp:connection:forced": unreachable(
        "it closed the connection, as a broker that shuts down: retry later"
    ),
    _NO_AMQP: unreachable(
        "the connection ended before a word of AMQP 1.0: check host and port, and what lies in between"
    ),
    "amqp:link:detach-forced": Advice("it closed the link: was the queue deleted?"),
    "amqp:not-found": missing("the queue does not exist, and may not be created: create it first, ANYCAST"),
    "amqp:resource-deleted": missing("the queue was deleted"),
    "amqp:resource-limit-exceeded": full("the connection was silent for too long, or the address is full"),
    "amqp:unauthorized-access": denied("it refused the login: check user and password"),
}


class ArtemisClient:
    """A `Connection`, made when first needed in the process that needs it.

    A thread answers heartbeats however long the caller is busy with something else.
    """

    def __init__(self, options: ArtemisOptions) -> None:
        self._options = options
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._ended = threading.Event()
        self._management: _Management | None = None
        self._managed = True

    def __reduce__(self) -> tuple[type[ArtemisClient], tuple[ArtemisOptions]]:
        return ArtemisClient, (self._options,)

    @contextmanager
    def connected(self, queue: str) -> Iterator[Connection]:
        """Hold the connection, for as long as nobody else may use it, and explain its errors."""
        with self._lock:
            try:
                yield self._open()
            except (AmqpError, OSError) as error:
                connection = self._connection
                if connection is not None and (isinstance(error, OSError) or connection.closed):
                    self._drop()
                advice = advice_on(error)
                raise self.error(advice.text, queue, advice.error) from None

    def ready(self, queue: str) -> int | None:
        """Messages that are ready, as the broker's management tells; None where it does not tell."""
        if not self._managed:
            return None
        with self.connected(queue) as connection:
            try:
                if self._management is None or self._management.connection is not connection:
                    self._management = _Management(connection)
                return self._management.ready(queue)
            except AmqpError:
                if connection.closed:
                    raise
                self._managed = False
                return None

    def error(self, text: str, queue: str, kind: type[BrokerError] = BrokerError) -> BrokerError:
        return kind(f"Artemis at {self._options.address}: queue '{queue}': {text}")

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _open(self) -> Connection:
        if self._connection is not None:
            with suppress(AmqpError, OSError):
                self._connection.flush()
            if self._connection.closed:
                self._drop()
        if self._connection is None:
            self._connection = self._connect()
            self._ended = threading.Event()
            threading.Thread(
                target=self._keep_alive, args=(self._connection, self._ended), name="artemis", daemon=True
            ).start()
        return self._connection

    def _connect(self) -> Connection:
        """Return a connection; opened again, once, where it ends before anything was asked of it."""
        try:
            return Connection(self._options)
        except (ConnectionError, ssl.SSLEOFError):
            return Connection(self._options)
        except AmqpError as error:
            if error.name != _NO_AMQP:
                raise
            return Connection(self._options)

    def _drop(self) -> None:
        self._ended.set()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _keep_alive(self, connection: Connection, ended: threading.Event) -> None:
        while not ended.wait(min(connection.patience / 4 or _TICK_SECONDS, _TICK_SECONDS)):
            with self._lock, suppress(AmqpError, OSError):
                if not ended.is_set():
                    connection.flush()


def advice_on(error: AmqpError | OSError) -> Advice:
    """Return what to do about an error of the connection or of the broker."""
    if isinstance(error, ssl.SSLError):
        return unreachable("TLS failed: check the certificates and artemis.ssl_ca_certs")
    if isinstance(error, TimeoutError):
        return unreachable("it did not answer in time: check host, port and TLS, or raise artemis.timeout")
    if isinstance(error, ConnectionRefusedError | socket.gaierror):
        return unreachable("it cannot be reached: check host, port and TLS")
    if isinstance(error, OSError):
        return unreachable("the connection was lost")
    known = _ADVICE.get(error.name, Advice(f"it refused what was asked ({error.name})"))
    if "permission=" in error.text:  # under several names
        known = forbidden("this user may not do that: extend its roles")
    return known._replace(text=f"{known.text} ({error.text})") if error.text else known


class _Management:
    """Questions and answers over one connection; `AmqpError` where the user may not ask."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._answers = connection.answers()
        self._questions = connection.sender(_MANAGEMENT, queue=False)

    def ready(self, queue: str) -> int | None:
        """Messages that a consumer could get; None where it knows no such queue."""
        total, *others = map(self._counts(f"queue.{queue.rpartition('::')[2]}").get, _COUNTS)
        return None if total is None else max(0, total - sum(other or 0 for other in others))

    def _counts(self, resource: str) -> dict[str, int | None]:
        """Return what it answers; None in place of an error."""
        reply_to = amqp.text(self._answers.receiver.remote_source.address or "")
        asked = (
            amqp.encoded(
                b"",
                durable=False,
                properties={"reply-to": reply_to, "correlation-id": amqp.text(name)},
                application={"_AMQ_ResourceName": amqp.text(resource), "_AMQ_Attribute": amqp.text(name)},
            )
            for name in _COUNTS
        )
        for refused in self.connection.send(self._questions, asked):
            raise refused
        found: dict[str, int | None] = {}
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(found) < len(_COUNTS):
            if time.monotonic() > deadline:
                raise TimeoutError
            found |= self._answered()
        return found

    def _answered(self) -> dict[str, int | None]:
        arrived = self.connection.read(self._answers, len(_COUNTS))
        return dict(_read(amqp.decoded(raw)) for _, raw in arrived)


def _read(answer: amqp.Message) -> tuple[str, int | None]:
    succeeded = answer.application["_AMQ_OperationSucceeded"]
    return answer.property("correlation-id"), json.loads(answer.body)[0] if succeeded else None
