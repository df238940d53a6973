"""One connection, served by a thread of its own, and errors that say what to do.

The thread answers heartbeats however long the caller is busy with something else. It alone touches pika:
the caller hands it an action by `call` or `call_aside`, and waits for the answer.
"""

from __future__ import annotations

import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import pika
from pika import exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.channel import Channel

from babelqueue_spark.bindings.advice import Advice, denied, forbidden, full, missing, too_large, unreachable
from babelqueue_spark.bindings.rabbitmq.buffer import ChannelClaims, DeliveryBuffer
from babelqueue_spark.bindings.rabbitmq.frames import LenientConnection
from babelqueue_spark.bindings.rabbitmq.options import RabbitOptions

_POLL_SECONDS = 1.0
_CLOSE_SECONDS = 5.0

Done = Callable[..., None]
Action = Callable[[Channel, Done], Any]

_TOO_LARGE = too_large("a message is larger than the server takes: raise its max_message_size")
_CODES = {
    311: _TOO_LARGE,
    312: missing("no queue is bound for the routing key: check rabbitmq.exchange and rabbitmq.routing_key"),
    320: unreachable("it closed the connection, as a server does that shuts down: retry when it is back"),
    402: missing("no such exchange: declare it first"),
    403: forbidden("this user may not do that: give it permissions on the queue and on the vhost"),
    404: missing("what it was asked for does not exist"),
    405: Advice("the queue is exclusive to another connection, or locked"),
    406: Advice("it refused what was asked, or a claim was older than its consumer_timeout"),
    530: denied("the vhost does not exist, or this user may not use it"),
}

_ADVICE: Mapping[type[BaseException] | tuple[type[BaseException], ...], Advice] = {
    (exceptions.ProbableAuthenticationError, exceptions.AuthenticationError): denied(
        "it refused the login: check user and password"
    ),
    exceptions.ProbableAccessDeniedError: denied(
        "it refused the vhost: check its name and the user's permissions"
    ),
    exceptions.ConnectionBlockedTimeout: full("it takes no messages: its memory or disk alarm is on"),
    exceptions.IncompatibleProtocolError: unreachable(
        "the connection ended before a word of AMQP 0-9-1: check host and port, and what lies in between"
    ),
    exceptions.AMQPHeartbeatTimeout: unreachable("the connection was lost, for no heartbeat came in time"),
    ssl.SSLError: unreachable("TLS failed: check the certificates and rabbitmq.ssl_ca_certs"),
    exceptions.StreamLostError: unreachable("the connection was lost"),
    exceptions.ShortStringTooLong: Advice(
        "the name of a queue, exchange or routing key is longer than 255 bytes"
    ),
}
# How pika reports a connection that ended during its handshake, before anything was asked of it.
_ENDED = (
    exceptions.IncompatibleProtocolError,
    exceptions.ProbableAuthenticationError,
    exceptions.ProbableAccessDeniedError,
    exceptions.StreamLostError,
)
_UNREACHABLE = unreachable("it cannot be reached: check host, port and TLS")


class RabbitClient:
    """A connection made at the first call, in the process that needs it, with a channel for claims.

    Attributes:
        claims: what is claimed on that channel; None while there is none. The caller's thread sets it with a
            new channel, the connection's thread takes it away when the channel ends.
    """

    def __init__(self, options: RabbitOptions) -> None:
        self.claims: ChannelClaims | None = None
        self._options = options
        self._thread: threading.Thread | None = None
        self._connection: LenientConnection | None = None
        self._channel: Channel | None = None
        self._awaited: Future[Any] | None = None
        self._buffer: DeliveryBuffer | None = None
        self._reason: BaseException | None = None

    def call(self, action: Action) -> Any:
        """Return what `action(channel, done)` passes to `done`; it runs on the thread of the connection."""
        with self._explained():
            self._open()
            return self._ask(lambda done: action(self._opened(), done))

    def call_aside(self, action: Action) -> Any:
        """Call on a channel of its own: an error that closes it leaves claims alone."""

        def aside(done: Done) -> None:
            answers: list[Any] = []

            def opened(channel: Channel) -> None:
                def answered(answer: Any = None) -> None:
                    answers.append(answer)
                    channel.close()

                channel.add_on_close_callback(closed)
                try:
                    action(channel, answered)
                except exceptions.AMQPError as error:
                    self._fail(error)
                    channel.close()

            def closed(_: Channel, reason: BaseException) -> None:
                if isinstance(reason, exceptions.ChannelClosedByClient):
                    done(*answers)
                else:
                    self._fail(reason)

            assert self._connection is not None
            self._connection.channel(on_open_callback=opened)

        with self._explained():
            self._open()
            return self._ask(aside)

    @contextmanager
    def consuming(self, queue: str, prefetch: int) -> Iterator[DeliveryBuffer]:
        """Consume into a buffer, which holds at most `prefetch` messages of the queue."""
        tag = uuid.uuid4().hex

        def consume(channel: Channel, done: Done) -> None:
            assert self.claims is not None
            self._buffer = buffer = DeliveryBuffer(self.claims, native=self._options.native)
            channel.basic_qos(
                prefetch_count=prefetch,
                callback=lambda _: channel.basic_consume(
                    queue, buffer.receive, consumer_tag=tag, callback=lambda _: done(buffer)
                ),
            )

        def cancel(channel: Channel, done: Done) -> None:
            # The server may have cancelled it meanwhile, and pika would not answer.
            if buffer.cancelled:
                done()
            else:
                channel.basic_cancel(tag, done)

        buffer = self.call(consume)
        try:
            with self._explained():
                yield buffer
            if not buffer.cancelled:
                self.call(cancel)
        finally:
            self._buffer = None

    def close(self) -> None:
        thread, connection = self._thread, self._connection
        if thread is not None and connection is not None and thread.is_alive():
            connection.ioloop.add_callback_threadsafe(lambda: _close(connection))
            thread.join(_CLOSE_SECONDS)
        self._thread = self._connection = self._channel = self.claims = None

    def _open(self) -> None:
        if self._thread is None or not self._thread.is_alive() or self._connection is None:
            self._connect()
        if self.claims is None:
            assert self._connection is not None
            connection = self._connection
            self._channel = self._ask(lambda done: connection.channel(on_open_callback=done))
            self._channel.add_on_close_callback(self._channel_closed)
            self._channel.add_on_cancel_callback(self._consumer_cancelled)
            self.claims = ChannelClaims()

    def _connect(self) -> None:
        try:
            self._connect_once()
        except (exceptions.AMQPError, AMQPConnectorException) as error:
            if not any(isinstance(cause, _ENDED) for cause in _causes(error)):
                raise
            self._connect_once()

    def _connect_once(self) -> None:
        self.close()
        self._reason = None
        opened: Future[Any] = Future()
        self._awaited = opened
        parameters = self._options.parameters()
        self._thread = threading.Thread(
            target=self._serve, args=(parameters, opened), name="rabbitmq", daemon=True
        )
        self._thread.start()
        self._connection = opened.result()

    def _serve(self, parameters: pika.connection.Parameters, opened: Future[Any]) -> None:
        try:
            connection = LenientConnection(
                parameters,
                on_open_callback=opened.set_result,
                on_open_error_callback=self._connection_closed,
                on_close_callback=self._connection_closed,
            )
            connection.ioloop.start()
            connection.ioloop.close()
        except BaseException as error:  # noqa: BLE001 (handed to the caller, who waits for it)
            self._lost(error)

    def _opened(self) -> Channel:
        if self._channel is None or self.claims is None:
            raise self._reason or exceptions.ChannelWrongStateError()
        return self._channel

    def _ask(self, action: Callable[[Done], Any]) -> Any:
        answer: Future[Any] = Future()

        def done(value: Any = None) -> None:
            if not answer.done():
                answer.set_result(value)

        def run() -> None:
            self._awaited = answer
            try:
                action(done)
            except Exception as error:  # noqa: BLE001 (handed to the caller)
                self._fail(error)

        assert self._connection is not None
        self._connection.ioloop.add_callback_threadsafe(run)
        while True:
            with suppress(TimeoutError):
                return answer.result(_POLL_SECONDS)
            if not answer.done() and (self._thread is None or not self._thread.is_alive()):
                raise self._reason or exceptions.StreamLostError()

    def _connection_closed(self, connection: Any, reason: BaseException) -> None:
        self._lost(reason)
        connection.ioloop.stop()

    def _channel_closed(self, _: Channel, reason: BaseException) -> None:
        self._lost(reason)

    def _consumer_cancelled(self, _: Any) -> None:
        if self._buffer is not None:
            self._buffer.end(None)

    def _lost(self, reason: BaseException) -> None:
        self.claims = None
        self._reason = reason
        if self._buffer is not None:
            self._buffer.end(reason)
        self._fail(reason)

    def _fail(self, reason: BaseException) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(reason)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (exceptions.AMQPError, AMQPConnectorException, OSError) as error:
            advice = _advice(error)
            raise advice.error(f"RabbitMQ at {self._options.address}: {advice.text}") from None


def _close(connection: LenientConnection) -> None:
    if connection.is_open:
        connection.close()
    elif not connection.is_closing:
        connection.ioloop.stop()


def _advice(error: BaseException) -> Advice:
    for kind, advice in _ADVICE.items():
        if any(isinstance(cause, kind) for cause in _causes(error)):
            return advice
    if isinstance(error, (exceptions.ConnectionClosed, exceptions.ChannelClosed)):
        code, text = error.reply_code, " ".join(str(error.reply_text).split())
        # The server has no code of its own for its max_message_size.
        refused = "larger than configured max size" in text
        known = _TOO_LARGE if refused else _CODES.get(code, Advice("it closed the channel"))
        return known._replace(text=f"{known.text} ({code} {text})")
    return _UNREACHABLE


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and those that it wraps: pika keeps them in several places."""
    yield error
    for nested in (*error.args, getattr(error, "exception", None), *getattr(error, "exceptions", ())):
        if isinstance(nested, BaseException):
            yield from _causes(nested)
