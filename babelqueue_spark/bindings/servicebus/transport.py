"""Handshakes that end: azure-servicebus waits for ever on a service that accepts and does not answer.

It chooses the classes of its transports by names in one of its modules, where ours take the place of its own.
Outside of `bounded` they are as patient as that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from azure.servicebus._pyamqp import _connection
from azure.servicebus._pyamqp.sasl import SASLTransport, SASLWithWebSocket


class _Bound(threading.local):
    seconds: float | None = None


_bound = _Bound()


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Bound the seconds that each step of a handshake may take, for what this thread opens within."""
    before, _bound.seconds = _bound.seconds, seconds
    try:
        yield
    finally:
        _bound.seconds = before


class BoundedTransport(SASLTransport):
    """Its waits for the handshakes of TLS and SASL end with `TimeoutError`, an early end with `OSError`."""

    sock: Any

    @contextmanager
    def block(self) -> Iterator[Any]:
        before = self.sock.gettimeout()
        self.sock.settimeout(_bound.seconds)
        try:
            yield self.sock
        finally:
            if self.sock is not None:
                self.sock.settimeout(before)

    def negotiate(self) -> None:
        try:
            super().negotiate()  # type: ignore[no-untyped-call]
        except TypeError:  # the client reads a field of the frame that did not come
            self._drop()
            raise TimeoutError("the service is silent") from None
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        """Close the socket: the client forgets a connection whose handshake failed."""
        self.sock.close()
        self.sock = None
        self.connected = False

    def _setup_transport(self) -> None:
        self.sock.settimeout(_bound.seconds)
        super()._setup_transport()  # type: ignore[no-untyped-call]


class BoundedWebSocket(SASLWithWebSocket):
    """Its waits are bounded by the client; what it makes of a silence is `TimeoutError` too."""

    def negotiate(self) -> None:
        try:
            super().negotiate()  # type: ignore[no-untyped-call]
        except TypeError:  # as above
            self.close()  # type: ignore[no-untyped-call]
            raise TimeoutError("the service is silent") from None


_connection.SASLTransport = BoundedTransport  # type: ignore[attr-defined]
_connection.SASLWithWebSocket = BoundedWebSocket  # type: ignore[attr-defined]
