"""The stand-in as a process: `python -m tests.servers.servicebus PORT CONTROL_PORT HOME KEY LOCK_SECONDS`.

What it holds is in `HOME/entities` while it is stopped. With `HOME/server.pem` and `HOME/server.key` it also
listens with TLS, on the port in `HOME/tls-port`; with a port in `HOME/websocket-port`, to WebSockets. The control port takes a line of JSON, `{"verb": …}`, and
answers with one.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import ssl
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.servers.servicebus.connection import Broker, Connection, keep_alive
from tests.servers.servicebus.entities import Namespace, Settings
from tests.servers.servicebus.websocket import serve

_TICK_SECONDS = 0.02
_ALIVE_SECONDS = 30.0
_LONGEST_LINE = 1 << 20


class Control:
    """What a test may ask of the server, a method a verb."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def create(self, path: str, **settings: Any) -> None:
        """An empty queue or `topic/Subscriptions/name`, with `Settings`."""
        self._broker.namespace.create(path, Settings(**settings))

    def fault(self, **faults: Any) -> None:
        """Set some of the `Faults`."""
        for name, value in faults.items():
            setattr(self._broker.faults, name, value)

    def drop(self) -> None:
        """Break all connections."""
        self._broker.drop_connections()

    def keep_alive(self) -> None:
        """Send the empty frames that are due now and then."""
        keep_alive(self._broker)

    def lapse(self, path: str) -> None:
        """End all locks of an entity."""
        queue = self._broker.namespace.queue(path)
        queue.lapse(time.time())
        self._broker.dispatch(queue)

    def counts(self, path: str) -> dict[str, int]:
        """How many messages are ready, locked, and there at all."""
        queue = self._broker.namespace.queue(path)
        return {"ready": queue.waiting(), "locked": len(queue.locks), "all": len(queue.messages)}

    def requests(self) -> dict[str, int]:
        """How often each operation was asked for, and how many connections there are."""
        return {**self._broker.requests, "connections": len(self._broker.connections)}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            request = json.loads(line)
            answer = getattr(self, request.pop("verb"))(**request)
            writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()


async def main(port: int, control_port: int, home: Path, key: str, lock_seconds: float) -> None:
    """Serve until SIGTERM, then keep what is there."""
    state = home / "entities"
    defaults = Settings(lock_seconds=lock_seconds)
    namespace: Namespace = (
        pickle.loads(state.read_bytes()) if state.exists() else Namespace(defaults=defaults)
    )
    broker = Broker(namespace, key)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    servers = [await loop.create_server(lambda: Connection(broker), "127.0.0.1", port)]
    if (home / "server.pem").exists():
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(home / "server.pem", home / "server.key")
        tls_port = int((home / "tls-port").read_text())
        servers.append(
            await loop.create_server(lambda: Connection(broker), "127.0.0.1", tls_port, ssl=context)
        )
    if (home / "websocket-port").exists():
        await serve(int((home / "websocket-port").read_text()), port)
    control = Control(broker)
    servers.append(await asyncio.start_server(control.serve, "127.0.0.1", control_port, limit=_LONGEST_LINE))
    print("ready", flush=True)
    alive_at = time.monotonic() + _ALIVE_SECONDS
    while not stop.is_set():
        broker.tick()
        if time.monotonic() > alive_at:
            keep_alive(broker)
            alive_at = time.monotonic() + _ALIVE_SECONDS
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _TICK_SECONDS)
    for server in servers:
        server.close()
    broker.drop_connections()
    for queue in namespace.queues.values():
        for session in list(queue.sessions):
            queue.end_session(session, time.time())
    state.write_bytes(pickle.dumps(namespace))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], float(sys.argv[5])))
