"""PostgreSQL from Debian: loopback only, with a password."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
from importlib.metadata import distribution
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from tests.servers.base import Server
from tests.servers.certificates import Certificates

_PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/usr/lib/postgresql/15/bin"))


class PostgresServer(Server):
    """`postgres` with a superuser `babel` and a database `shop`, durable across `stop` and `start`.

    Args:
        password: of the user.
        tls: with them, it also speaks TLS, to who has a certificate of their authority.
        settings: further settings, such as `max_connections="10"`.
    """

    name = "postgresql"
    login = "babel"
    database = "shop"

    def __init__(
        self, password: str = "s3cret-w0rd", tls: Certificates | None = None, **settings: str
    ) -> None:
        super().__init__()
        self.password = password
        self._tls = tls
        self._settings = settings

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{self.login}:{self.password}@{self.address}/{self.database}"

    def prepare(self) -> None:
        secret = self.home / "password"
        secret.write_text(self.password)
        if user := self.user():
            shutil.chown(secret, user)
        self.run(
            f"{_PROGRAMS}/initdb",
            *("--pgdata", str(self.home / "data"), "--username", self.login, "--pwfile", str(secret)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"),
        )
        if self._tls is not None:
            self._ask_for_certificates(self._tls)
        single = ("--single", "-D", str(self.home / "data"), "postgres")
        self.run(
            "sh", "-c", f"echo 'CREATE DATABASE {self.database}' | {_PROGRAMS}/postgres {' '.join(single)}"
        )

    def command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.home),
            "fsync": "off",  # what a crash of the machine would lose is not tested
            **self._settings,
        }
        words = (word for name, value in settings.items() for word in ("-c", f"{name}={value}"))
        return [f"{_PROGRAMS}/postgres", "-D", str(self.home / "data"), *words]

    def _ask_for_certificates(self, tls: Certificates) -> None:
        own = {"ssl_ca_file": tls.ca, "ssl_cert_file": tls.server, "ssl_key_file": tls.server_key}
        for setting, file in own.items():
            copy = Path(shutil.copy(file, self.home / file.name))
            copy.chmod(0o600)
            if user := self.user():
                shutil.chown(copy, user)
            self._settings[setting] = str(copy)
        self._settings["ssl"] = "on"
        (self.home / "data" / "pg_hba.conf").write_text(
            "hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n"
            "hostnossl all all 127.0.0.1/32 scram-sha-256\n"
        )

    def user(self) -> str | None:
        return "postgres" if os.getuid() == 0 else None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # without waiting for clients to leave
        super().stop()

    def ready(self) -> bool:
        """Whether a login is asked for its password: while it starts or stops, it says something else."""
        words = b"".join(
            word.encode() + b"\0" for word in ("user", self.login, "database", self.database, "")
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(struct.pack("!ii", 8 + len(words), 3 << 16) + words)
            return connection.recv(1) == b"R"


def with_pgmq(server: PostgresServer) -> str:
    """The URL of a new database with the SQL of pgmq, which its Python package brings."""
    parts = make_url(server.url).set(drivername="postgresql")
    with psycopg.connect(parts.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute("CREATE DATABASE pgmq")
    parts = parts.set(database="pgmq")
    script = Path(str(distribution("pgmq").locate_file("pgmq/sql/pgmq.sql"))).read_bytes()
    with psycopg.connect(parts.render_as_string(hide_password=False)) as connection:
        connection.execute(script)
    return parts.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
