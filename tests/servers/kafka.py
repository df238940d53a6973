"""Kafka in KRaft mode: broker and controller in one process."""

from __future__ import annotations

from pathlib import Path

from tests.servers.base import Server, free_port, listens
from tests.servers.certificates import Certificates
from tests.servers.jars import jars

SPARK_KAFKA = Path(__file__).parent / "poms" / "spark-kafka.xml"
"""The jars of Spark's own Kafka source and sink."""

_USER = "spark"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=CLIENT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},INTERNAL://127.0.0.1:{internal}
listener.security.protocol.map=CLIENT:{protocol},CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT
inter.broker.listener.name=INTERNAL
log.dirs={home}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


_LOGIN = """
ssl.keystore.type=PEM
ssl.keystore.location={home}/server.pem
listener.name.client.sasl.enabled.mechanisms=PLAIN
listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_{user}="{password}";
"""


class KafkaServer(Server):
    """Kafka from Maven Central, durable across `stop` and `start`.

    Args:
        partitions: of a topic that is made by its first use.
        tls: takes clients by TLS alone, with a certificate of that authority, and with a login.
        password: that of the user `spark`.
    """

    name = "kafka"

    def __init__(self, partitions: int = 1, *, tls: Certificates | None = None, password: str = "") -> None:
        super().__init__()
        self._tls = tls
        self._password = password
        self._partitions = partitions
        self._jars = jars(Path(__file__).parent / "poms" / "kafka.xml")

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def prepare(self) -> None:
        settings = _SETTINGS.format(
            port=self.port,
            controller=free_port(),
            internal=free_port(),
            protocol="SASL_SSL" if self._tls else "PLAINTEXT",
            home=self.home,
            partitions=self._partitions,
        )
        if self._tls is not None:
            pems = self._tls.server_key.read_text() + self._tls.server.read_text()
            (self.home / "server.pem").write_text(pems)
            settings += _LOGIN.format(home=self.home, user=_USER, password=self._password)
        self._settings.write_text(settings)
        self.run(*self._java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._settings))

    def command(self) -> list[str]:
        return [*self._java, "kafka.Kafka", str(self._settings)]

    def ready(self) -> bool:
        return listens(self.port)

    @property
    def _settings(self) -> Path:
        return self.home / "server.properties"

    @property
    def _java(self) -> list[str]:
        return ["java", "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{self._jars}/*"]
