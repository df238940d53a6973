"""RabbitMQ from Debian, a node of its own with an epmd of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.base import Server, free_port, listens
from tests.servers.certificates import Certificates

_PROGRAM = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class RabbitServer(Server):
    """`rabbitmq-server` with a user `babel`, durable across `stop` and `start`.

    Args:
        password: of the user.
        tls: also listens with TLS, and takes no client without a certificate of that authority.
    """

    name = "rabbitmq"
    login = "babel"

    def __init__(self, password: str = "s3cret-w0rd", tls: Certificates | None = None) -> None:
        super().__init__()
        self.password = password
        self._tls = tls
        self._tls_port = 0
        self._epmd = 0

    @property
    def url(self) -> str:
        return f"amqp://{self.login}:{self.password}@{self.address}/%2F"

    @property
    def secure_url(self) -> str:
        """The connection string of the TLS listener."""
        return f"amqps://{self.login}:{self.password}@127.0.0.1:{self._tls_port}/%2F"

    def prepare(self) -> None:
        self._epmd, self._tls_port = free_port(), free_port()
        (self.home / "enabled_plugins").write_text("[].")
        (self.home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {self.address}\n"
            f"default_user = {self.login}\n"
            f"default_pass = {self.password}\n"
            "loopback_users = none\n"
            "disk_free_limit.absolute = 50MB\n"
            f"{self._tls_settings() if self._tls else ''}"
        )

    def command(self) -> list[str]:
        return [_PROGRAM]

    def environment(self) -> dict[str, str]:
        home = str(self.home)
        return {
            "HOME": home,
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_ALLOW_INPUT": "true",  # in the foreground, so that our process is the node
            "RABBITMQ_NODENAME": f"rabbit-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-noinput -kernel inet_dist_use_interface {127,0,0,1} "
                "-rabbit dead_letter_worker_publisher_confirm_timeout 500"
            ),
            "RABBITMQ_MNESIA_BASE": home,
            "RABBITMQ_LOG_BASE": home,
            "RABBITMQ_CONFIG_FILE": f"{home}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{home}/enabled_plugins",
        }

    def ready(self) -> bool:
        return listens(self.port) and "Server startup complete" in self._said()

    def stop(self) -> None:
        super().stop()
        if self._epmd:
            subprocess.run(["epmd", "-port", str(self._epmd), "-kill"], capture_output=True, check=False)

    def control(self, *words: str) -> None:
        """`rabbitmqctl` of this node."""
        self.run(
            str(Path(_PROGRAM).with_name("rabbitmqctl")),
            "-n",
            self.environment()["RABBITMQ_NODENAME"],
            *words,
        )

    def _tls_settings(self) -> str:
        assert self._tls is not None
        return (
            f"listeners.ssl.1 = 127.0.0.1:{self._tls_port}\n"
            f"ssl_options.cacertfile = {self._tls.ca}\n"
            f"ssl_options.certfile = {self._tls.server}\n"
            f"ssl_options.keyfile = {self._tls.server_key}\n"
            "ssl_options.verify = verify_peer\n"
            "ssl_options.fail_if_no_peer_cert = true\n"
        )

    def _said(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.home.glob("*.log"))
