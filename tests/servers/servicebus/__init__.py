"""A stand-in for Azure Service Bus, for which there is no server to be had without containers.

It speaks AMQP 1.0 to the real client: queues, topics with subscriptions (each gets everything), sessions, locks that
lapse, schedules, duplicate detection, dead letters, peeks, batches, shared access signatures; and it fails on request.
`entities` is the logic, `messages` the wire format of a message, `connection` the protocol, `__main__` the process.
Not there: deferred messages, filters of subscriptions, time to live, transactions, partitioned entities.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from tests.servers.base import Server, free_port, listens
from tests.servers.certificates import Certificates
from tests.servers.servicebus.connection import POLICY

__all__ = ["ServiceBusServer"]

_ROOT = Path(__file__).parents[3]


class ServiceBusServer(Server):
    """The stand-in as a process of its own; what it holds outlives `stop` and `start`, locks of messages too.

    Queues come into being when they are first named; `create` makes some with settings of their own.

    Args:
        key: the shared access key.
        lock_seconds: lock duration of the queues that nobody created.
        tls: also listens with TLS.
        websocket: also listens to WebSockets.
    """

    name = "servicebus"

    def __init__(
        self,
        key: str = "s3cret-w0rd",
        lock_seconds: float = 30.0,
        tls: Certificates | None = None,
        *,
        websocket: bool = False,
    ) -> None:
        super().__init__()
        self.key = key
        self._lock_seconds = lock_seconds
        self._tls = tls
        self._tls_port = 0
        self._websocket_port = free_port() if websocket else 0
        self._control_port = 0

    @property
    def url(self) -> str:
        return (
            f"Endpoint=sb://{self.address};SharedAccessKeyName={POLICY};SharedAccessKey={self.key};"
            "UseDevelopmentEmulator=true"
        )

    @property
    def secure_address(self) -> str:
        """`sb://host:port` of the TLS listener."""
        return f"sb://127.0.0.1:{self._tls_port}"

    @property
    def websocket_address(self) -> str:
        """`sb://host:port` of the WebSocket listener."""
        return f"sb://127.0.0.1:{self._websocket_port}"

    def prepare(self) -> None:
        if self._websocket_port:
            (self.home / "websocket-port").write_text(str(self._websocket_port))
        self._control_port = free_port()
        if self._tls is not None:
            self._tls_port = free_port()
            (self.home / "tls-port").write_text(str(self._tls_port))
            shutil.copy(self._tls.server, self.home / "server.pem")
            shutil.copy(self._tls.server_key, self.home / "server.key")

    def command(self) -> list[str]:
        ports = [str(self.port), str(self._control_port)]
        return [
            sys.executable,
            "-m",
            "tests.servers.servicebus",
            *ports,
            str(self.home),
            self.key,
            str(self._lock_seconds),
        ]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(_ROOT)}

    def ready(self) -> bool:
        return listens(self.port) and "ready" in self.log.read_text().split()

    def create(self, path: str, **settings: Any) -> None:
        """An empty queue or `topic/Subscriptions/name`; `settings` are those of `entities.Settings`."""
        self._control("create", path=path, **settings)

    def fault(self, **faults: Any) -> None:
        """From now on, things go wrong as `connection.Faults` describes."""
        self._control("fault", **faults)

    def drop_connections(self) -> None:
        """Break all connections."""
        self._control("drop")

    def keep_alive(self) -> None:
        """Send an empty frame on each open connection."""
        self._control("keep_alive")

    def lapse(self, path: str) -> None:
        """End all locks of an entity."""
        self._control("lapse", path=path)

    def counts(self, path: str) -> dict[str, int]:
        """How many messages of an entity are `ready` or `locked`, and how many there are in `all`."""
        answer: dict[str, int] = self._control("counts", path=path)
        return answer

    def requests(self) -> dict[str, int]:
        """Operation → how often it was asked for; `connections`: how many there are."""
        answer: dict[str, int] = self._control("requests")
        return answer

    def _control(self, verb: str, **arguments: Any) -> Any:
        with socket.create_connection(("127.0.0.1", self._control_port), timeout=10) as connection:
            connection.sendall(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            return json.loads(connection.makefile().readline())
