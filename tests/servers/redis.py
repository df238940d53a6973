"""redis-server, without persistence."""

from __future__ import annotations

import socket

from tests.servers.base import Server


class RedisServer(Server):
    """`redis-server` from Debian.

    Args:
        password: what clients must give; none by default.
        options: further directives, such as `maxmemory="8mb"`.
    """

    name = "redis"

    def __init__(self, password: str | None = None, **options: str) -> None:
        super().__init__()
        self.password = password
        self._options = {"requirepass": password, **options} if password else options

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}{self.address}/0"

    def command(self) -> list[str]:
        directives = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.home),
            "save": "",
            "appendonly": "no",
            **self._options,
        }
        words = (word for name, value in directives.items() for word in (f"--{name}", value))
        return ["redis-server", *words]

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
