"""The bytes of one connection: a socket, and the client's protocol engine behind it.

The client's own containers call handlers for each event; here nobody is called: whoever waits moves bytes
between the socket and the engine until what they wait for is so.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from proton import Condition, Connection, Endpoint, Receiver, Sender, Session, Transport

from babelqueue_spark.bindings.artemis.options import ArtemisOptions
from babelqueue_spark.bindings.options import tls_context

UNNAMED = "unnamed"
"""In place of the name of a condition where the broker gives none."""

_READ = 1 << 18
_IDLE_SECONDS = 60.0
_CLOSE_SECONDS = 2.0


class AmqpError(Exception):
    """What the broker says is wrong.

    Attributes:
        name: of the condition, such as `amqp:not-found`.
        text: the broker's own words, on one line.
    """

    def __init__(self, name: str, text: str | None = None) -> None:
        super().__init__(name)
        self.name = name
        self.text = " ".join((text or "").split())

    @classmethod
    def of(cls, condition: Condition | None) -> AmqpError:
        return cls(UNNAMED) if condition is None else cls(condition.name, condition.description)


class Wire:
    """An open connection; `AmqpError` or `OSError` where that fails or ends."""

    def __init__(self, options: ArtemisOptions) -> None:
        self._timeout = options.timeout
        self._silent = False
        self._engine = Connection()
        self._transport = Transport()
        self._socket = _connected(options)
        try:
            self._open(options)
        except BaseException:
            self._socket.close()
            raise

    @property
    def closed(self) -> bool:
        """Return whether it has ended, or the broker is silent: a late answer is not for the next request."""
        return (
            self._silent
            or self._socket.fileno() < 0
            or bool(
                self._engine.state & Endpoint.REMOTE_CLOSED
                or self._transport.capacity() < 0
                or self._transport.pending() < 0
            )
        )

    @property
    def patience(self) -> float:
        """Seconds for which the broker lets a connection be silent; 0 = for ever."""
        return self._transport.remote_idle_timeout

    def close(self) -> None:
        """Tell the broker, if it still listens."""
        with suppress(AmqpError, OSError):
            self._engine.close()
            self.wait(lambda: bool(self._engine.state & Endpoint.REMOTE_CLOSED), seconds=_CLOSE_SECONDS)
        self._socket.close()

    def session(self, seconds: float | None = None) -> Session:
        """Return a new session, which the broker has opened."""
        session = self._engine.session()
        session.open()
        self.wait(lambda: bool(session.state & Endpoint.REMOTE_ACTIVE), seconds=seconds)
        return session

    def wait(
        self,
        done: Callable[[], bool],
        link: Receiver | Sender | None = None,
        seconds: float | None = None,
        *,
        ends: bool = True,
    ) -> None:
        """Return when it is done; the end of the connection, or of the link, is an error.

        A wait for too long `ends` the connection too: else whoever cleans up would wait once more.
        """
        deadline = time.monotonic() + (seconds or self._timeout)
        while not done():
            if self.closed:
                raise self._end()
            if link is not None and link.state & Endpoint.REMOTE_CLOSED:
                raise AmqpError.of(link.remote_condition)
            left = deadline - time.monotonic()
            if left <= 0:
                self._silent = ends
                raise TimeoutError
            self._move(left)
        self.flush()

    def flush(self) -> None:
        """Send all that is to be sent, and take what came."""
        deadline = time.monotonic() + self._timeout
        self._move(0)
        while self._transport.pending() > 0:
            if time.monotonic() > deadline:
                self._silent = True
                raise TimeoutError
            self._move(self._timeout)

    def _open(self, options: ArtemisOptions) -> None:
        engine, transport = self._engine, self._transport
        engine.container = f"babelqueue-spark-{uuid.uuid4().hex}"
        engine.hostname = options.host
        if options.user is not None:
            engine.user, engine.password = options.user, options.password or ""
        transport.sasl().allow_insecure_mechs = True
        transport.idle_timeout = _IDLE_SECONDS
        transport.bind(engine)
        engine.open()
        self.wait(lambda: bool(engine.state & Endpoint.REMOTE_ACTIVE))

    def _end(self) -> Exception:
        """Why it ended: what the broker said, or, before it said anything, what the engine makes of that."""
        if self._silent:
            return TimeoutError()
        opened = self._engine.state & (Endpoint.REMOTE_ACTIVE | Endpoint.REMOTE_CLOSED)
        condition = self._engine.remote_condition or (None if opened else self._transport.condition)
        return ConnectionError() if condition is None else AmqpError.of(condition)

    def _move(self, seconds: float) -> None:
        """Send what there is and take what came, if necessary after a wait."""
        transport = self._transport
        pending, capacity = transport.pending(), transport.capacity()
        readable, writable, _ = select.select(
            [self._socket] if capacity > 0 else [], [self._socket] if pending > 0 else [], [], seconds
        )
        if writable:
            with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                transport.pop(self._socket.send(transport.peek(pending) or b""))
        if readable:
            self._receive()
        transport.tick(time.monotonic())

    def _receive(self) -> None:
        with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            while (capacity := self._transport.capacity()) > 0:
                content = self._socket.recv(min(capacity, _READ))
                if not content:
                    self._transport.close_tail()
                    return
                self._transport.push(content)


def _connected(options: ArtemisOptions) -> socket.socket:
    plain = socket.create_connection((options.host, options.port), options.timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made = plain
        if options.secure:
            made = tls_context("artemis", options.tls).wrap_socket(plain, server_hostname=options.host)
    except BaseException:
        plain.close()
        raise
    made.setblocking(False)
    return made
