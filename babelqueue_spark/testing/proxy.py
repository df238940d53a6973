"""A proxy between a binding and its server, which is slow, falls silent or hangs up when a test says so."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

_CHUNK = 1 << 16


class Proxy:
    """Forwards connections from a loopback port to a server.

    What the server tells of its own address becomes the proxy's: a client that asks for it comes here again.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []
        self._allowed: int | None = None
        self._to_end = 0
        self._delay = 0.0
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def freeze(self, after: int = 0) -> None:
        """Let `after` more bytes of the server's pass on each connection, old or new; then nothing at all."""
        with self._lock:
            self._allowed = after
            for connection in self._connections:
                connection.allowed = after

    def hang_up(self, connections: int) -> None:
        """End so many new connections when either side has sent its first bytes, which go nowhere."""
        with self._lock:
            self._to_end = connections

    def delay(self, seconds: float) -> None:
        """From now on, hold what the server says for so long, on each connection, old or new."""
        with self._lock:
            self._delay = seconds
            for connection in self._connections:
                connection.delay = seconds

    def cut(self) -> None:
        """End all connections; new ones pass, whatever was frozen."""
        with self._lock:
            cut, self._connections, self._allowed = self._connections, [], None
        for connection in cut:
            connection.close()

    def close(self) -> None:
        _shut(self._listener)
        self._thread.join()
        for connection in self._connections:
            connection.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _accept(self) -> None:
        addresses = _addresses(self._server, ("127.0.0.1", self._port))
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    ends, self._to_end = self._to_end > 0, max(0, self._to_end - 1)
                    connection = _Connection(client, addresses, self._allowed, ends=ends, delay=self._delay)
                    self._connections.append(connection)
                if connection.allowed != 0:
                    connection.forward(self._server)


class SilentServer:
    """Listens on a loopback port, greets each client, and says no more.

    Args:
        greet: what comes between the client's connection and the silence; returns the socket to keep.
    """

    def __init__(self, greet: Callable[[socket.socket], socket.socket]) -> None:
        self._greet = greet
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.greeted = 0
        """Clients that were greeted to the end."""
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, name="silence", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self._thread.join()
        for client in self._kept:
            _shut(client)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.settimeout(5)
                self._kept.append(client)
                with suppress(OSError):  # the client may give up meanwhile
                    self._kept[-1] = self._greet(client)
                    self.greeted += 1


def with_tls(context: ssl.SSLContext) -> Callable[[socket.socket], socket.socket]:
    """Return a greeting of a `SilentServer`: the handshake of TLS."""
    return lambda client: context.wrap_socket(client, server_side=True)


class _Connection:
    """One connection through the proxy.

    Attributes:
        allowed: bytes of the server's that may pass before it falls silent; None = all.
        delay: seconds for which each chunk of the server's is held.
    """

    def __init__(
        self,
        client: socket.socket,
        addresses: list[tuple[bytes, bytes]],
        allowed: int | None,
        *,
        ends: bool,
        delay: float,
    ) -> None:
        self.allowed = allowed
        self.delay = delay
        self._client = client
        self._server: socket.socket | None = None
        self._addresses = addresses
        self._ends = ends
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def forward(self, server: tuple[str, int]) -> None:
        try:
            self._server = socket.create_connection(server)
        except OSError:
            _shut(self._client)
            return
        for work in (self._ask, self._answer):
            self._threads.append(threading.Thread(target=work, args=(self._server,), daemon=True))
            self._threads[-1].start()

    def close(self) -> None:
        self._closed.set()
        self._end()
        for thread in self._threads:
            thread.join()

    def _ask(self, server: socket.socket) -> None:
        with suppress(OSError):
            while content := self._client.recv(_CHUNK):
                if self._ends:
                    break
                if self.allowed == 0:
                    self._closed.wait()
                    break
                server.sendall(content)
        self._end()

    def _answer(self, server: socket.socket) -> None:
        with suppress(OSError):
            while content := server.recv(_CHUNK):
                if self._ends:
                    break
                for told, ours in self._addresses:
                    content = content.replace(told, ours)
                if self.allowed is not None:
                    content = content[: self.allowed]
                    self.allowed -= len(content)
                if self.delay:
                    time.sleep(self.delay)
                self._client.sendall(content)
                if self.allowed == 0:
                    self._closed.wait()
                    break
        self._end()

    def _end(self) -> None:
        for each in (self._client, self._server):
            if each is not None:
                _shut(each)


def _addresses(*places: tuple[str, int]) -> list[tuple[bytes, bytes]]:
    """Return the server's address and ours, as text and as Kafka writes it."""
    texts = [f"{host}:{port}".encode() for host, port in places]
    packed = [host.encode() + struct.pack(">i", port) for host, port in places]
    return [(texts[0], texts[1]), (packed[0], packed[1])]


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
