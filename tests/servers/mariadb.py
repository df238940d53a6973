"""MariaDB 10.11 from Debian: loopback only, with a password."""

from __future__ import annotations

import os
import socket

from tests.servers.base import Server
from tests.servers.certificates import Certificates


class MariaDbServer(Server):
    """`mariadbd` with a user `babel` who may do everything, and a database `shop`; durable likewise.

    Args:
        password: of the user.
        tls: with them, it speaks TLS, and asks the user for a certificate of their authority.
        settings: further settings, such as `max_connections="10"`.
    """

    name = "mariadb"
    login = "babel"
    database = "shop"

    def __init__(
        self, password: str = "s3cret-w0rd", tls: Certificates | None = None, **settings: str
    ) -> None:
        super().__init__()
        self.password = password
        self._settings = settings
        self._required = "NONE" if tls is None else "X509"
        if tls is not None:
            own = {"ssl_ca": tls.ca, "ssl_cert": tls.server, "ssl_key": tls.server_key}
            self._settings |= {name: str(file) for name, file in own.items()}

    @property
    def url(self) -> str:
        return f"mariadb+pymysql://{self.login}:{self.password}@{self.address}/{self.database}"

    def prepare(self) -> None:
        (self.home / "init.sql").write_text(
            f"CREATE DATABASE IF NOT EXISTS {self.database};\n"
            f"CREATE USER IF NOT EXISTS '{self.login}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO '{self.login}'@'%' REQUIRE {self._required} WITH GRANT OPTION;\n"
        )
        self.run(
            "mariadb-install-db",
            *("--no-defaults", f"--datadir={self.home}/data", "--auth-root-authentication-method=normal"),
            *("--skip-test-db", "--skip-name-resolve", *self._as_root()),
        )

    def command(self) -> list[str]:
        settings = {
            "datadir": f"{self.home}/data",
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": f"{self.home}/socket",
            "pid-file": f"{self.home}/pid",
            "init-file": f"{self.home}/init.sql",
            "innodb-flush-log-at-trx-commit": "2",  # what a crash of the machine would lose is not tested
            **self._settings,
        }
        words = (f"--{name.replace('_', '-')}={value}" for name, value in settings.items())
        return ["/usr/sbin/mariadbd", "--no-defaults", "--skip-name-resolve", *self._as_root(), *words]

    def ready(self) -> bool:
        """Whether it greets with its version (10) rather than an error (255)."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            return connection.recv(5)[4:] == b"\x0a"

    def _as_root(self) -> list[str]:
        return ["--user=root"] if os.getuid() == 0 else []
