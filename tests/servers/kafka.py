"""Kafka in KRaft mode: broker and controller in one process."""

from __future__ import annotations

from pathlib import Path

from tests.servers.base import Server, free_port, listens
from tests.servers.jars import jars

_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
log.dirs={home}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
"""


class KafkaServer(Server):
    """Kafka from Maven Central.

    Args:
        partitions: of a topic that is made by its first use.
    """

    name = "kafka"
    start_seconds = 60.0

    def __init__(self, partitions: int = 1) -> None:
        super().__init__()
        self._partitions = partitions
        self._jars = jars(Path(__file__).parent / "poms" / "kafka.xml")

    @property
    def url(self) -> str:
        return f"kafka://{self.address}"

    def prepare(self) -> None:
        self._settings.write_text(
            _SETTINGS.format(
                port=self.port, controller=free_port(), home=self.home, partitions=self._partitions
            )
        )
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
