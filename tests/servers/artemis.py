"""ActiveMQ Artemis, an instance of its own with users, durable across `stop` and `start`."""

from __future__ import annotations

import re
from pathlib import Path

from tests.servers.base import Server, free_port
from tests.servers.certificates import Certificates
from tests.servers.jars import distribution

_ACTIVE = "AMQ221007"


class ArtemisServer(Server):
    """Artemis from Maven Central, with a user `babel`, and `limited`, who may do all but manage.

    Args:
        tls: also listens with TLS, and takes no client without a certificate of that authority.
        settings: XML for all addresses, in place of the usual, such as `<redelivery-delay>9</redelivery-delay>`.
        addresses: XML of addresses that exist from the start.
        time_to_live: milliseconds after which a silent connection is given up.
    """

    name = "artemis"
    login = "babel"
    password = "s3cret-w0rd"

    def __init__(
        self,
        tls: Certificates | None = None,
        *,
        settings: str = "",
        addresses: str = "",
        time_to_live: int = 60_000,
    ) -> None:
        super().__init__()
        self._tls = tls
        self._tls_port = 0
        self._settings = settings
        self._addresses = addresses
        self._time_to_live = time_to_live
        self._starts = 0
        self._distribution = distribution(Path(__file__).parent / "poms" / "artemis.xml")

    @property
    def url(self) -> str:
        return f"artemis://{self.login}:{self.password}@{self.address}"

    @property
    def limited_url(self) -> str:
        """The connection string of the user who may not manage."""
        return self.url.replace(self.login, "limited", 1)

    @property
    def secure_url(self) -> str:
        """The connection string of the TLS listener."""
        return f"artemis+ssl://{self.login}:{self.password}@127.0.0.1:{self._tls_port}"

    @property
    def instance(self) -> Path:
        """Where its configuration and its data lie."""
        return self.home / "instance"

    def prepare(self) -> None:
        self._tls_port = free_port()
        self.run(
            str(self._distribution / "bin" / "artemis"), "create", str(self.instance), "--silent",
            "--user", self.login, "--password", self.password, "--require-login",
            "--host", "127.0.0.1", "--default-port", str(self.port), "--nio",
            "--no-autotune", "--no-web", "--no-amqp-acceptor", "--no-hornetq-acceptor", "--no-mqtt-acceptor",
            "--no-stomp-acceptor",
        )  # fmt: skip
        etc = self.instance / "etc"
        with (etc / "artemis-users.properties").open("a") as users:
            users.write(f"\nlimited = {self.password}\n")
        with (etc / "artemis-roles.properties").open("a") as roles:
            roles.write("\nlimited = limited\n")
        configuration = etc / "broker.xml"
        configuration.write_text(self._configured(configuration.read_text()))

    def command(self) -> list[str]:
        return [str(self.instance / "bin" / "artemis"), "run"]

    def environment(self) -> dict[str, str]:
        return {
            "JAVA_ARGS": "-Xms64m -Xmx1g -XX:+UseSerialGC --add-opens java.base/jdk.internal.misc=ALL-UNNAMED"
        }

    def ready(self) -> bool:
        return self.log.read_text(errors="replace").count(_ACTIVE) > self._starts

    def start(self) -> None:
        self._starts = self.log.read_text(errors="replace").count(_ACTIVE) if self.log.exists() else 0
        super().start()

    def _configured(self, text: str) -> str:
        before, mark, settings = text.partition('<address-setting match="#">')
        for name in re.findall(r"<([\w-]+)>", self._settings):
            settings = re.sub(rf"<{name}>[^<]*</{name}>", "", settings)
        text = before + mark + self._settings + settings
        replaced = {
            'roles="amq"': 'roles="amq,limited"',
            'type="manage" roles="amq,limited"': 'type="manage" roles="amq"',
            # Messages take three times of the heap what the broker thinks: it has to page before that is full.
            "<global-max-messages>": "<global-max-size>256Mb</global-max-size><global-max-messages>",
            # A share of the disk says nothing on a machine whose disk others fill.
            "<max-disk-usage>90": "<max-disk-usage>-1",
            "<security-settings>": '<security-settings><security-setting match="closed.#">'
            '<permission type="send" roles="amq"/></security-setting>',
            "<addresses>": f"<addresses>{self._addresses}",
            "protocols=CORE": f"connectionTtl={self._time_to_live};amqpIdleTimeout={self._time_to_live};protocols=CORE",
            "</acceptors>": f"{self._secure_acceptor(self._tls) if self._tls else ''}</acceptors>",
        }
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text

    def _secure_acceptor(self, tls: Certificates) -> str:
        own = self.instance / "etc" / "server.pem"
        own.write_bytes(tls.server.read_bytes() + tls.server_key.read_bytes())
        given = {
            "sslEnabled": "true", "protocols": "AMQP", "needClientAuth": "true",
            "keyStoreType": "PEM", "keyStorePath": own,
            "trustStoreType": "PEM", "trustStorePath": tls.ca,
        }  # fmt: skip
        settings = ";".join(f"{name}={value}" for name, value in given.items())
        return f'<acceptor name="secure">tcp://127.0.0.1:{self._tls_port}?{settings}</acceptor>'
